// SPDX-License-Identifier: Apache-2.0
// Each slot of each CollNet table reaches the right function with the right arguments.
#include <gtest/gtest.h>

#include "tests/nccl/fake/under_fake.h"
#include "tests/nccl/host/logger.h"

namespace prunex::nccl::fake {
namespace {

using host::log_from_plugin;

class AbiColl : public testing::TestWithParam<int> {
 protected:
  static std::string run(const std::function<void(host::HostColl&, Fake&)>& body) {
    return under_fake([&](void* plugin, Fake& fake) {
      const auto coll = host::open_coll(plugin, GetParam());
      PRUNEX_MUST(coll->init(42, log_from_plugin) == kSuccess);
      body(*coll, fake);
    });
  }
  static bool per_communicator() { return GetParam() >= 11; }
};

TEST_P(AbiColl, init_and_finalize) {
  PRUNEX_EXPECT_WELL(run([](host::HostColl& coll, Fake& fake) {
    const uint64_t id = per_communicator() ? 42 : 0;
    must_be(fake, {"coll.init", {id, as_number(log_from_plugin)}});
    PRUNEX_MUST(coll.init(43, log_from_plugin) == kSuccess);
    PRUNEX_MUST(times(fake, "coll.init") == (per_communicator() ? 2u : 1u));
    PRUNEX_MUST(coll.finalize() == kSuccess);
    if (per_communicator()) {
      must_be(fake, {"coll.finalize", {kCtx + 1}});
    }
  }));
}

TEST_P(AbiColl, devices_are_those_of_the_network) {
  PRUNEX_EXPECT_WELL(run([](host::HostColl& coll, Fake& fake) {
    const auto net = host::open_net(host::load_plugin(host::plugin_path()), GetParam());
    int mine = 0, theirs = 0;
    PRUNEX_MUST(coll.devices(&mine) == kSuccess && net->devices(&theirs) == kSuccess);
    PRUNEX_MUST(mine == 2 && mine == theirs);
    for (int device = 0; device < mine; ++device) {
      host::Properties a, b;
      PRUNEX_MUST(coll.properties(device, &a) == kSuccess);
      must_be(fake, {"net.properties", {static_cast<uint64_t>(device)}});
      PRUNEX_MUST(net->properties(device, &b) == kSuccess);
      PRUNEX_MUST(a.name == b.name && a.pci_path == b.pci_path && a.guid == b.guid);
      PRUNEX_MUST(a.max_coll_bytes == b.max_coll_bytes && a.virtual_first == b.virtual_first);
    }
  }));
}

TEST_P(AbiColl, connections) {
  PRUNEX_EXPECT_WELL(run([](host::HostColl& coll, Fake& fake) {
    host::Handle handle{};
    void* comm = nullptr;
    PRUNEX_MUST(coll.listen(1, handle, &comm) == kSuccess && comm == object(kListen));
    must_be(fake, {"coll.listen", {kCtx, 1, as_number(handle)}});
    void* handles[2] = {handle, handle};
    PRUNEX_MUST(coll.connect(handles, 2, 1, comm, &comm) == kSuccess && comm == object(kColl));
    must_be(fake, {"coll.connect", {as_number(handle), 2, 1, kListen}});
    int supported = 0;
    PRUNEX_MUST(coll.reduce_support(abi::kBfloat16, abi::kMax, &supported) == kSuccess &&
                supported == 1);
    must_be(fake, {"coll.reduce_support", {9, 2}});
    PRUNEX_MUST(coll.close_coll(object(kColl)) == kSuccess);
    must_be(fake, {"coll.close_coll", {kColl}});
    PRUNEX_MUST(coll.close_listen(object(kListen)) == kSuccess);
    must_be(fake, {"coll.close_listen", {kListen}});
  }));
}

TEST_P(AbiColl, memory_and_completion) {
  PRUNEX_EXPECT_WELL(run([](host::HostColl& coll, Fake& fake) {
    char data[8];
    void* mr = nullptr;
    PRUNEX_MUST(coll.reg_mr(object(kColl), data, 8, kPtrHost, &mr) == kSuccess &&
                mr == object(kMr));
    must_be(fake, {"coll.reg_mr", {kColl, as_number(data), 8, kPtrHost}});
    PRUNEX_MUST(coll.dereg_mr(object(kColl), mr) == kSuccess);
    must_be(fake, {"coll.dereg_mr", {kColl, kMr}});
    void* request = object(0x99);
    PRUNEX_MUST(coll.iflush(object(kColl), data, 8, object(kMr), &request) == kSuccess);
    PRUNEX_MUST(request == object(kRequest));
    must_be(fake, {"coll.iflush", {kColl, as_number(data), 8, kMr}});
    int done = 0, size = 0;
    PRUNEX_MUST(coll.test(request, &done, &size) == kSuccess && done == 1);
    must_be(fake, {"coll.test", {kRequest, as_number(&size)}});
  }));
}

TEST_P(AbiColl, collectives) {
  PRUNEX_EXPECT_WELL(run([](host::HostColl& coll, Fake& fake) {
    char in[8], out[8];
    void* request = object(0x99);
    void* const comm = object(kColl);
    const size_t count = GetParam() >= 9 ? size_t{1} << 33 : 0x7fffffff;
    PRUNEX_MUST(coll.iallreduce(comm, in, out, count, abi::kFloat16, abi::kMin, object(kMr),
                                object(kMr + 1), &request) == kSuccess);
    PRUNEX_MUST(request == object(kRequest));
    must_be(fake,
            {"coll.iallreduce", {kColl, as_number(in), as_number(out), count, 6, 3, kMr, kMr + 1}});
    if (!coll.gathers()) {
      return;
    }
    const size_t window = GetParam() >= 9 ? size_t{1} << 33 : 0xfffffff0;
    const size_t checked = GetParam() >= 9 ? window : size_t{0x7ffffff0};
    PRUNEX_MUST(coll.iallgather(comm, in, out, 100, 200, checked, object(kMr), object(kMr + 1),
                                &request) == kSuccess);
    must_be(fake,
            {"coll.iallgather",
             {kColl, as_number(in), 1, 100, 200, checked, kMr, kMr + 1, as_number(out), checked}});
    PRUNEX_MUST(coll.ireducescatter(comm, in, out, 100, 200, checked, abi::kInt32, abi::kSum,
                                    object(kMr), object(kMr + 1), &request) == kSuccess);
    must_be(fake, {"coll.ireducescatter",
                   {kColl, 1, as_number(out), 100, 200, checked, 2, 0, kMr + 1, kMr, as_number(in),
                    checked}});
  }));
}

INSTANTIATE_TEST_SUITE_P(V, AbiColl, testing::Range(6, 13));

TEST(AbiCollSizes, negative_count_is_refused) {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake& fake) {
    const auto& t = host::coll_table<8>(plugin);
    PRUNEX_MUST(t.init(log_from_plugin) == kSuccess);
    fake.calls.clear();
    void* request = nullptr;
    PRUNEX_MUST(t.iallreduce(object(kColl), nullptr, nullptr, -1, abi::kInt8, abi::kSum, nullptr,
                             nullptr, &request) == kInvalidArgument);
    PRUNEX_MUST(t.iflush(object(kColl), nullptr, -1, nullptr, &request) == kInvalidArgument);
    PRUNEX_MUST(fake.calls.empty());
  }));
}

TEST(AbiCollSizes, up_to_eight_parts) {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake& fake) {
    const auto& t = host::coll_table<12>(plugin);
    void* ctx = nullptr;
    PRUNEX_MUST(t.init(&ctx, 1, log_from_plugin) == kSuccess);
    abi::SgeV9 parts[9] = {};
    for (size_t i = 0; i < 9; ++i) {
      parts[i] = {object(i), object(100 + i), 200 + i};
    }
    void* request = nullptr;
    PRUNEX_MUST(t.iallgather(object(kColl), nullptr, 8, parts, 1, 2, 3, nullptr, &request) ==
                kSuccess);
    PRUNEX_MUST(fake.calls.back().given.size() == 7 + 24 && fake.calls.back().given.back() == 207);
    fake.calls.clear();
    PRUNEX_MUST(t.iallgather(object(kColl), nullptr, 9, parts, 1, 2, 3, nullptr, &request) ==
                kInvalidArgument);
    PRUNEX_MUST(t.ireducescatter(object(kColl), -1, parts, nullptr, 1, 2, 3, abi::kInt8, abi::kSum,
                                 nullptr, &request) == kInvalidArgument);
    PRUNEX_MUST(t.iallgather(object(kColl), nullptr, 1, nullptr, 1, 2, 3, nullptr, &request) ==
                kInvalidArgument);
    PRUNEX_MUST(fake.calls.empty());
  }));
}

}  // namespace
}  // namespace prunex::nccl::fake

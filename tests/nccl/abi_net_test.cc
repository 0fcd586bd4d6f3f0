// SPDX-License-Identifier: Apache-2.0
// Each slot of each Net table reaches the right function with the right arguments.
#include <gtest/gtest.h>

#include "tests/nccl/fake/under_fake.h"
#include "tests/nccl/host/logger.h"
#include "tests/nccl/host/tables_common.h"

namespace prunex::nccl::fake {
namespace {

using host::log_from_plugin;

class AbiNet : public testing::TestWithParam<int> {
 protected:
  // With a communicator of traffic class 5.
  static std::string run(const std::function<void(host::HostNet&, Fake&)>& body) {
    return under_fake([&](void* plugin, Fake& fake) {
      const auto net = host::open_net(plugin, GetParam());
      PRUNEX_MUST(net->init(42, 5, log_from_plugin) == kSuccess);
      body(*net, fake);
    });
  }
  static bool per_communicator() { return GetParam() >= 11; }
};

TEST_P(AbiNet, init_and_finalize) {
  PRUNEX_EXPECT_WELL(run([](host::HostNet& net, Fake& fake) {
    PRUNEX_MUST(std::string(net.name()) == "PRUNEX");
    const uint64_t log = as_number(log_from_plugin);
    const Call wanted =
        per_communicator() ? Call{"net.init", {42, 5, log}} : Call{"net.init", {0, kMinusOne, log}};
    must_be(fake, wanted);
    // A second one: another context, or the same; never an error.
    PRUNEX_MUST(net.init(43, 5, log_from_plugin) == kSuccess);
    PRUNEX_MUST(times(fake, "net.init") == (per_communicator() ? 2u : 1u));
    PRUNEX_MUST(net.finalize() == kSuccess);
    if (per_communicator()) {
      must_be(fake, {"net.finalize", {kCtx + 1}});
    }
    PRUNEX_MUST(host::log_lines(abi::kLogWarn).empty());
    const auto told = host::log_lines(abi::kLogInfo);
    PRUNEX_MUST(told.size() == 1, "%zu INFO lines", told.size());
    for (const std::string& part :
         {"ncclNet_v" + std::to_string(GetParam()) + " ", std::string("9.8.7"),
          std::string("/fake/libprunex.so"), std::string("libnccl-net-prunex.so")}) {
      PRUNEX_MUST(told[0].text.find(part) != std::string::npos, "%s", told[0].text.c_str());
    }
    PRUNEX_MUST(host::log_faults().empty());
  }));
}

TEST_P(AbiNet, failed_init_gives_no_context) {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake& fake) {
    const auto net = host::open_net(plugin, GetParam());
    fake.answer = kSystemError;
    PRUNEX_MUST(net->init(42, 5, log_from_plugin) == kSystemError);
    PRUNEX_MUST(net->finalize() == kSuccess, "NCCL 2.28 finalizes after a failed init");
    PRUNEX_MUST(times(fake, "net.finalize") == 0);
    fake.answer = kSuccess;
    PRUNEX_MUST(net->init(42, 5, log_from_plugin) == kSuccess);
  }));
}

TEST_P(AbiNet, init_again_after_zero_devices) {
  PRUNEX_EXPECT_WELL(run([](host::HostNet& net, Fake& fake) {
    fake.devices = 0;
    PRUNEX_MUST(net.init(42, 5, log_from_plugin) == kSuccess);
    PRUNEX_MUST(times(fake, "net.init") == 2);
    if (!per_communicator()) {
      PRUNEX_MUST(times(fake, "net.finalize") == 1, "the old context is let go");
    }
  }));
}

TEST_P(AbiNet, another_logger_another_context) {
  PRUNEX_EXPECT_WELL(run([](host::HostNet& net, Fake& fake) {
    PRUNEX_MUST(net.init(42, 5, nullptr) == kSuccess);
    PRUNEX_MUST(times(fake, "net.init") == 2);
    PRUNEX_MUST(times(fake, "net.finalize") == 0, "connections may live in the old one");
  }));
}

TEST_P(AbiNet, devices_and_properties) {
  PRUNEX_EXPECT_WELL(run([](host::HostNet& net, Fake& fake) {
    int count = 0;
    PRUNEX_MUST(net.devices(&count) == kSuccess && count == 2);
    host::Properties p;
    PRUNEX_MUST(net.properties(1, &p) == kSuccess);
    must_be(fake, {"net.properties", {1}});
    PRUNEX_MUST(p.name == "fake0" && p.pci_path == "/sys/fake" && p.guid == 77);
    PRUNEX_MUST(p.ptr_support == kPtrHost && p.speed == 25000 && p.port == 3);
    PRUNEX_MUST(p.latency == 1.5F && p.max_comms == 1000 && p.max_recvs == 1);
    const int v = GetParam();
    PRUNEX_MUST(p.net_device_type == (v >= 7 ? 0 : -1) &&
                p.net_device_version == (v >= 7 ? 0 : -1));
    PRUNEX_MUST(p.reg_is_global == (v >= 8 ? 1 : -1));
    PRUNEX_MUST(p.force_flush == (v >= 9 ? 1 : -1));
    PRUNEX_MUST(p.virtual_count == (v >= 9 ? 1 : -1) && p.virtual_first == (v >= 9 ? 1 : -1));
    PRUNEX_MUST(p.max_p2p_bytes == (v >= 9 ? size_t{5} << 30 : 0));
    PRUNEX_MUST(p.max_coll_bytes == (v >= 9 ? size_t{6} << 20 : 0));
    PRUNEX_MUST(p.max_multi_request == (v >= 11 ? 1 : -1));
    PRUNEX_MUST(p.rail == (v >= 12 ? -1 : -2) && p.plane == (v >= 12 ? -1 : -2));
    fake.answer = kInvalidArgument;
    PRUNEX_MUST(net.properties(-1, &p) == kInvalidArgument);
  }));
}

TEST_P(AbiNet, connections) {
  PRUNEX_EXPECT_WELL(run([](host::HostNet& net, Fake& fake) {
    host::Handle handle{};
    void* comm = nullptr;
    PRUNEX_MUST(net.listen(1, handle, &comm) == kSuccess && comm == object(kListen));
    must_be(fake, {"net.listen", {kCtx, 1, as_number(handle)}});
    PRUNEX_MUST(net.connect(1, handle, &comm) == kSuccess && comm == object(kSend));
    // Only v10 has a traffic class per connection: it gets a context of that class.
    const uint64_t ctx = GetParam() == 10 ? kCtx + 1 : kCtx;
    must_be(fake, {"net.connect", {ctx, 1, as_number(handle)}});
    if (GetParam() == 10) {
      const Call& init = fake.calls[fake.calls.size() - 2];
      PRUNEX_MUST(init == (Call{"net.init", {0, 5, as_number(log_from_plugin)}}));
      PRUNEX_MUST(net.connect(1, handle, &comm) == kSuccess && times(fake, "net.init") == 2);
    }
    PRUNEX_MUST(net.accept(object(kListen), &comm) == kSuccess && comm == object(kRecv));
    must_be(fake, {"net.accept", {kListen}});
    PRUNEX_MUST(net.close_send(object(kSend)) == kSuccess);
    must_be(fake, {"net.close_send", {kSend}});
    PRUNEX_MUST(net.close_recv(object(kRecv)) == kSuccess);
    must_be(fake, {"net.close_recv", {kRecv}});
    PRUNEX_MUST(net.close_listen(object(kListen)) == kSuccess);
    must_be(fake, {"net.close_listen", {kListen}});
  }));
}

TEST_P(AbiNet, memory) {
  PRUNEX_EXPECT_WELL(run([](host::HostNet& net, Fake& fake) {
    char data[8];
    void* mr = nullptr;
    PRUNEX_MUST(net.reg_mr(object(kSend), data, 0x7fffffff, kPtrHost, &mr) == kSuccess);
    PRUNEX_MUST(mr == object(kMr));
    must_be(fake, {"net.reg_mr", {kSend, as_number(data), 0x7fffffff, kPtrHost}});
    PRUNEX_MUST(net.reg_mr(object(kSend), data, 0, kPtrHost, &mr) == kSuccess, "the library's say");
    if (GetParam() >= 8) {
      const size_t large = (size_t{1} << 40) + 3;
      PRUNEX_MUST(net.reg_mr(object(kSend), data, large, kPtrCuda, &mr) == kSuccess);
      must_be(fake, {"net.reg_mr", {kSend, as_number(data), large, kPtrCuda}});
    }
    PRUNEX_MUST(net.dereg_mr(object(kSend), object(kMr)) == kSuccess);
    must_be(fake, {"net.dereg_mr", {kSend, kMr}});
  }));
}

TEST_P(AbiNet, sending) {
  PRUNEX_EXPECT_WELL(run([](host::HostNet& net, Fake& fake) {
    char data[8];
    void* request = object(0x1);
    PRUNEX_MUST(net.isend(object(kSend), data, 8, -7, object(kMr), &request) == kSuccess);
    PRUNEX_MUST(request == object(kRequest));
    const auto minus7 = static_cast<uint64_t>(-7);
    must_be(fake, {"net.isend", {kSend, as_number(data), 8, minus7, kMr, 0}});
    if (GetParam() >= 9) {
      const size_t large = size_t{3} << 30;
      PRUNEX_MUST(net.isend(object(kSend), data, large, 1, object(kMr), &request) == kSuccess);
      must_be(fake, {"net.isend", {kSend, as_number(data), large, 1, kMr, 0}});
    }
    fake.answer = kRemoteError;
    PRUNEX_MUST(net.isend(object(kSend), data, 8, 1, object(kMr), &request) == kRemoteError);
    PRUNEX_MUST(request == nullptr, "no request of an earlier call");
  }));
}

TEST_P(AbiNet, receiving) {
  PRUNEX_EXPECT_WELL(run([](host::HostNet& net, Fake& fake) {
    char data[2][8];
    void* places[2] = {data[0], data[1]};
    size_t sizes[2] = {8, 0x40000000};
    int tags[2] = {3, -4};
    void* mrs[2] = {object(kMr), object(kMr + 1)};
    for (const bool optional : {false, true}) {
      void* request = nullptr;
      PRUNEX_MUST(net.irecv(object(kRecv), 2, places, sizes, tags, mrs, optional, &request) ==
                  kSuccess);
      PRUNEX_MUST(request == object(kRequest));
      const uint64_t hint = optional && GetParam() >= 9 ? 1 : 0;
      must_be(fake, {"net.irecv",
                     {kRecv, 2, hint, as_number(data[0]), 8, 3, kMr, as_number(data[1]), 0x40000000,
                      static_cast<uint64_t>(-4), kMr + 1}});
    }
    void* request = nullptr;
    fake.leaves_hint = true;
    PRUNEX_MUST(net.irecv(object(kRecv), 1, places, sizes, tags, mrs, true, &request) == kSuccess);
    PRUNEX_MUST(request == nullptr, "the hint is no request");
    fake.answer = kInternalError;
    PRUNEX_MUST(net.irecv(object(kRecv), 1, places, sizes, tags, mrs, true, &request) ==
                kInternalError);
    PRUNEX_MUST(request == nullptr);
  }));
}

TEST_P(AbiNet, completing) {
  PRUNEX_EXPECT_WELL(run([](host::HostNet& net, Fake& fake) {
    char data[8];
    void* places[1] = {data};
    int sizes[1] = {8};
    void* mrs[1] = {object(kMr)};
    void* request = object(0x99);
    PRUNEX_MUST(net.iflush(object(kRecv), 1, places, sizes, mrs, &request) == kSuccess);
    PRUNEX_MUST(request == object(kRequest));
    must_be(fake, {"net.iflush", {kRecv, 1, as_number(data), 8, kMr}});
    int done = 0;
    PRUNEX_MUST(net.test(object(kRequest), &done, sizes) == kSuccess && done == 1 &&
                sizes[0] == 123);
    must_be(fake, {"net.test", {kRequest, as_number(sizes)}});
    PRUNEX_MUST(net.test(object(kRequest), &done, nullptr) == kSuccess);
    must_be(fake, {"net.test", {kRequest, 0}});
    PRUNEX_MUST(net.set_attr(0x10, 0x2, 0x4) == kSuccess);
    if (per_communicator()) {
      must_be(fake, {"net.set_hint", {kCtx, 0x10, 0x2, 0x4}});
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(V, AbiNet, testing::Range(6, 13));

template <int V>
void refuses_negative_sizes() {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake& fake) {
    const auto& t = host::net_table<V>(plugin);
    PRUNEX_MUST(t.init(log_from_plugin) == kSuccess);
    char data[8];
    void* place = data;
    void* mr = nullptr;
    void* request = object(0x99);
    int size = -1;
    int tag = 0;
    fake.calls.clear();
    if constexpr (V < 8) {
      PRUNEX_MUST(t.reg_mr(object(kSend), data, -1, kPtrHost, &mr) == kInvalidArgument);
    }
    PRUNEX_MUST(t.isend(object(kSend), data, -1, 0, nullptr, &request) == kInvalidArgument);
    PRUNEX_MUST(t.irecv(object(kRecv), 1, &place, &size, &tag, &mr, &request) == kInvalidArgument);
    PRUNEX_MUST(request == nullptr);
    PRUNEX_MUST(t.irecv(object(kRecv), 9, &place, &size, &tag, &mr, &request) == kInvalidArgument);
    PRUNEX_MUST(t.irecv(object(kRecv), -1, &place, &size, &tag, &mr, &request) == kInvalidArgument);
    PRUNEX_MUST(fake.calls.empty(), "nothing of it gets through");
    PRUNEX_MUST(host::log_lines(abi::kLogWarn).size() >= 4, "each in one line");
  }));
}
TEST(AbiNetSizes, negative_is_refused_v6) { refuses_negative_sizes<6>(); }
TEST(AbiNetSizes, negative_is_refused_v7) { refuses_negative_sizes<7>(); }
TEST(AbiNetSizes, negative_is_refused_v8) { refuses_negative_sizes<8>(); }

// What a v6 to v8 slot held before is not taken for a hint.
TEST(AbiNetSizes, no_hint_before_v9) {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake& fake) {
    const auto& t = host::net_table<8>(plugin);
    PRUNEX_MUST(t.init(log_from_plugin) == kSuccess);
    void* place = nullptr;
    void* mr = nullptr;
    int size = 4, tag = 0;
    void* request = object(kOptionalRecv);
    PRUNEX_MUST(t.irecv(object(kRecv), 1, &place, &size, &tag, &mr, &request) == kSuccess);
    PRUNEX_MUST(fake.calls.back().given[2] == 0);
    const auto& t9 = host::net_table<9>(plugin);
    size_t wide = 4;
    request = object(0x7ffff000);  // a request of an earlier use of the slot
    PRUNEX_MUST(t9.irecv(object(kRecv), 1, &place, &wide, &tag, &mr, &request) == kSuccess);
    PRUNEX_MUST(fake.calls.back().given[2] == 0);
  }));
}

// NCCL 2.22 and 2.23 use a plugin that was unloaded and loaded again so.
TEST(AbiNetSizes, listening_needs_no_init_before_v11) {
  for (int version = 6; version < 11; ++version) {
    PRUNEX_EXPECT_WELL(under_fake([&](void* plugin, Fake& fake) {
      const auto net = host::open_net(plugin, version);
      host::Handle handle{};
      void* comm = nullptr;
      PRUNEX_MUST(net->listen(0, handle, &comm) == kSuccess);
      must_be(fake, {"net.listen", {kCtx, 0, as_number(handle)}});
    }));
  }
}

TEST(AbiNetSizes, null_out_pointers_are_refused) {
  PRUNEX_EXPECT_WELL(under_fake([](void* plugin, Fake&) {
    const auto& t = host::net_table<12>(plugin);
    abi::CommConfig config{1};
    PRUNEX_MUST(t.init(nullptr, 1, &config, nullptr, nullptr) == kInvalidArgument);
    void* ctx = nullptr;
    PRUNEX_MUST(t.init(&ctx, 1, nullptr, nullptr, nullptr) == kSuccess,
                "no configuration, no logger");
    PRUNEX_MUST(t.get_properties(0, nullptr) == kInvalidArgument);
    PRUNEX_MUST(t.isend(object(kSend), nullptr, 1, 0, nullptr, nullptr, nullptr) ==
                kInvalidArgument);
    PRUNEX_MUST(t.irecv(object(kRecv), 1, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr) ==
                kInvalidArgument);
    PRUNEX_MUST(t.set_net_attr(ctx, nullptr) == kInvalidArgument);
    PRUNEX_MUST(t.finalize(nullptr) == kSuccess);
  }));
}

}  // namespace
}  // namespace prunex::nccl::fake

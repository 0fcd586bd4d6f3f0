// SPDX-License-Identifier: Apache-2.0
// Collectives over RDMA, on the fake named libibverbs.so.1: what is sent and received lies in
// memory that was registered before, so that a call costs neither a copy nor a registration.
#include <dlfcn.h>

#include <barrier>

#include "tests/nccl_coll/group.h"

namespace prunex::nccl::test {
namespace {

// The fake's own count; -1: another library was loaded.
long fake_count(const char* name) {
  void* library = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* count = library == nullptr ? nullptr : reinterpret_cast<long (*)()>(dlsym(library, name));
  return count == nullptr ? -1 : count();
}

// Registered as NCCL does, for as long as it lives.
class Registered {
 public:
  Registered(const Node& node, size_t count) : node_(node), data(count) {
    EXPECT_EQ(node.calls.reg_mr(node.comm, data.data(), count * sizeof(float), kPtrHost, &mr),
              kSuccess);
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  ~Registered() { EXPECT_EQ(node_.calls.dereg_mr(node_.comm, mr), kSuccess); }

 private:
  const Node& node_;

 public:
  std::vector<float> data;
  void* mr = nullptr;
};

// One float of every block of 128 bytes that is `live`: the same blocks on all nodes.
void fill(std::vector<float>& data, size_t live_of_ten, int node) {
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = i / 32 % 10 < live_of_ten ? static_cast<float>(1 + (i + size_t(node)) % 9) : 0;
  }
}

void reduce_and_check(const Node& node, const Registered& send, Registered& recv) {
  void* request = nullptr;
  ASSERT_EQ(node.calls.iallreduce(node.comm, send.data.data(), recv.data.data(), send.data.size(),
                                  kFloat32, kSum, send.mr, recv.mr, &request),
            kSuccess);
  ASSERT_NE(request, nullptr);
  ASSERT_EQ(node.wait(request), kSuccess);
  for (size_t i = 0; i < send.data.size(); ++i) {
    const float other =
        send.data[i] == 0 ? 0 : static_cast<float>(1 + (i + size_t(1 - node.rank)) % 9);
    ASSERT_EQ(recv.data[i], send.data[i] + other) << i;
  }
}

TEST(CollVerbs, calls_neither_register_nor_copy) {
  ::setenv("PRUNEX_TRANSPORT", "verbs", 1);
  constexpr size_t kCount = size_t{1} << 20;
  std::barrier both(2);  // a node ahead may register for what comes next
  run_nodes(2, [&both](Node& node) {
    Registered send(node, kCount), recv(node, kCount);
    for (const size_t live : {10, 4}) {  // dense, and by the blocks that are not zero
      fill(send.data, live, node.rank);
      for (int i = 0; i < 4; ++i) {
        reduce_and_check(node, send, recv);
      }
      both.arrive_and_wait();
      const long before = fake_count("fake_ibverbs_registrations");
      both.arrive_and_wait();
      for (int i = 0; i < 6; ++i) {
        reduce_and_check(node, send, recv);
      }
      both.arrive_and_wait();
      EXPECT_EQ(fake_count("fake_ibverbs_registrations"), before) << live;
      EXPECT_GT(before, 0);
      both.arrive_and_wait();
    }
    EXPECT_GE(node.stats().mapped, 10U);
  });
  // What is copied goes in pieces of 32 KiB at most.
  EXPECT_GT(fake_count("fake_ibverbs_longest"), 32 << 10);
  EXPECT_EQ(fake_count("fake_ibverbs_pieces"), 0);
  run_nodes(2, [](Node& node) {  // and what nobody registered is copied
    std::vector<float> data(kCount, 1);
    ASSERT_EQ(node.all_reduce(data.data(), data.data(), kCount, kFloat32, kSum), kSuccess);
    EXPECT_EQ(data.back(), 2);
  });
  EXPECT_GT(fake_count("fake_ibverbs_pieces"), 0);
}

}  // namespace
}  // namespace prunex::nccl::test

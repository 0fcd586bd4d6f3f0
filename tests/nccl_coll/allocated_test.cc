// SPDX-License-Identifier: Apache-2.0
// What NCCL's progress thread allocates for calls: nothing, from the first one on where buffers
// were registered, as NCCL registers its own, and from the second of a size on where they were not.
// Every node is a thread of its own here; CollNet has no others.
#include "tests/allocated/allocated.h"

#include <atomic>
#include <barrier>

#include "tests/nccl_coll/group.h"

namespace prunex::nccl::test {
namespace {

constexpr size_t kMost = size_t{2} << 20;  // elements of the largest call
constexpr size_t kAtOnce = 8;              // calls under way

enum class Data : uint8_t { dense, blocks, masked };

struct Call {
  Data data = Data::dense;
  size_t count = 0;
};

// A buffer of one call, registered or not, and its mask.
class Buffer {
 public:
  Buffer(const Node& node, Call call, prunex_contract_t contract, bool registered)
      : node_(node), call_(call), send(call.count), recv(call.count) {
    if (registered) {
      EXPECT_EQ(node.calls.reg_mr(node.comm, send.data(), send.size() * sizeof(float), kPtrHost,
                                  &send_mr),
                kSuccess);
      EXPECT_EQ(node.calls.reg_mr(node.comm, recv.data(), recv.size() * sizeof(float), kPtrHost,
                                  &recv_mr),
                kSuccess);
    }
    for (size_t i = 0; i < send.size(); ++i) {
      send[i] = value(i, node.rank);
    }
    if (call.data != Data::masked) {
      return;
    }
    std::vector<uint8_t> keep(call.count);
    for (size_t i = 0; i < keep.size(); ++i) {
      keep[i] = live(i) ? 1 : 0;
    }
    const auto size = static_cast<int64_t>(call.count);
    const prunex_tensor_t tensor = {sizeof tensor, PRUNEX_FLOAT32, 1, &size, nullptr};
    prunex_mask_desc_t desc = {};
    desc.struct_size = sizeof desc;
    desc.kind = PRUNEX_MASK_BYTES;
    desc.contract = contract;
    desc.declared_kept = -1;
    desc.name = "a parameter whose name is longer than what fits into a string itself";
    desc.cells = keep.data();
    desc.cells_len = keep.size();
    EXPECT_EQ(prunex_register_mask(send.data(), &tensor, &desc, &mask_), PRUNEX_SUCCESS)
        << prunex_last_error();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (mask_ != 0) {
      EXPECT_EQ(prunex_unregister_mask(mask_), PRUNEX_SUCCESS);
    }
    for (void* mr : {send_mr, recv_mr}) {
      EXPECT_TRUE(mr == nullptr || node_.calls.dereg_mr(node_.comm, mr) == kSuccess);
    }
  }
  void post() {
    EXPECT_EQ(node_.calls.iallreduce(node_.comm, send.data(), recv.data(), send.size(), kFloat32,
                                     kSum, send_mr, recv_mr, &request),
              kSuccess);
  }
  [[nodiscard]] bool right() const {
    for (size_t i = 0; i < recv.size(); ++i) {
      float sum = 0;
      for (int n = 0; n < node_.nodes; ++n) {
        sum += value(i, n);
      }
      if (recv[i] != sum) {
        return false;
      }
    }
    return true;
  }

 private:
  // Whole blocks of 128 bytes, so that both ways find the same.
  [[nodiscard]] bool live(size_t i) const { return call_.data == Data::dense || i / 32 % 10 < 4; }
  [[nodiscard]] float value(size_t i, int node) const {
    return live(i) ? static_cast<float>(1 + (i + static_cast<size_t>(node) * 5) % 19) : 0;
  }
  const Node& node_;
  const Call call_;
  prunex_mask_t mask_ = 0;

 public:
  std::vector<float> send, recv;
  void *send_mr = nullptr, *recv_mr = nullptr, *request = nullptr;
};

struct Case {
  int nodes;
  bool registered;
  prunex_contract_t contract;
};

class CollAllocated : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!prunex::test::counts_allocations()) {
      GTEST_SKIP() << "the sanitizer brings an operator new of its own";
    }
    ::unsetenv("PRUNEX_TRANSPORT");
  }
};
INSTANTIATE_TEST_SUITE_P(CollNet, CollAllocated,
                         ::testing::Values(Case{2, true, PRUNEX_LOSSLESS},
                                           Case{3, true, PRUNEX_SAMPLED},
                                           Case{2, false, PRUNEX_PROJECT},
                                           Case{1, true, PRUNEX_LOSSLESS}));

using Buffers = std::vector<std::unique_ptr<Buffer>>;

// All at once; what this thread allocated for it, in posting, testing and flushing.
size_t round_of(const Node& node, Buffers& buffers) {
  for (auto& b : buffers) {
    std::fill(b->recv.begin(), b->recv.end(), -1.0f);
  }
  const size_t before = prunex::test::allocations();
  for (auto& b : buffers) {
    b->post();
    EXPECT_NE(b->request, nullptr);
  }
  for (auto& b : buffers) {
    int bytes = 0;
    EXPECT_EQ(node.wait(b->request, &bytes), kSuccess);
    void* flush = nullptr;
    EXPECT_EQ(node.calls.iflush(node.comm, b->recv.data(), bytes, b->recv_mr, &flush), kSuccess);
    EXPECT_EQ(flush, nullptr);
  }
  const size_t after = prunex::test::allocations();
  for (auto& b : buffers) {
    EXPECT_TRUE(b->right());
  }
  return after - before;
}

// Short and long ones, in one piece and in several, dense, by their blocks and masked, mixed.
TEST_P(CollAllocated, nothing_for_calls_that_are_under_way_together) {
  const Case what = GetParam();
  std::barrier all(what.nodes);  // the registry is the process', and so are its locks
  run_nodes(what.nodes, [&](Node& node) {
    constexpr Call kCalls[kAtOnce] = {
        {Data::masked, kMost + 5000},  {Data::dense, 100},          {Data::blocks, kMost / 4},
        {Data::masked, 3000},          {Data::dense, kMost / 8},    {Data::masked, kMost / 2},
        {Data::blocks, kMost / 2 + 7}, {Data::dense, kMost + 1000},
    };
    Buffers buffers;
    for (const Call& call : kCalls) {
      buffers.push_back(std::make_unique<Buffer>(node, call, what.contract, what.registered));
    }
    all.arrive_and_wait();
    // Memory for what nobody registered is made by the first calls of each of three places.
    const int free = what.registered ? 0 : 3;
    for (int round = 0; round < 13; ++round) {
      const size_t allocated = round_of(node, buffers);
      EXPECT_TRUE(allocated == 0 || round < free) << "round " << round << ": " << allocated;
    }
    const CollStats stats = node.stats();
    EXPECT_EQ(stats.calls, 13u * kAtOnce);
    EXPECT_GE(stats.masked, 13u * 3);
    EXPECT_EQ(stats.mapped > 0, node.nodes > 1);
    EXPECT_GT(stats.dense, 0u);
    all.arrive_and_wait();
  });
}

// Nodes that registered different masks: said once, and no call after that costs anything.
TEST_F(CollAllocated, nothing_while_masks_differ) {
  std::barrier all(2);
  run_nodes(2, [&](Node& node) {
    Buffers buffers;
    const Data data = node.rank == 0 ? Data::masked : Data::blocks;
    buffers.push_back(std::make_unique<Buffer>(node, Call{data, kMost / 4}, PRUNEX_LOSSLESS, true));
    all.arrive_and_wait();
    (void)round_of(node, buffers);
    for (int round = 0; round < 5; ++round) {
      EXPECT_EQ(round_of(node, buffers), 0u) << "round " << round;
    }
    EXPECT_EQ(node.stats().mismatched, 6u);
    all.arrive_and_wait();
  });
}

// A row of tests that finds nothing done, and windows of the other collectives, in parts.
TEST_F(CollAllocated, nothing_for_windows_in_parts_and_while_waiting) {
  std::barrier all(2);
  run_nodes(2, [&](Node& node) {
    constexpr size_t kSegment = size_t{256} << 10;
    const size_t segment = kSegment * sizeof(float);
    std::vector<float> own(kSegment, static_cast<float>(1 + node.rank)), whole(2 * kSegment);
    std::array<CollPart, 2> parts{};
    for (size_t n = 0; n < 2; ++n) {
      parts[n].address = whole.data() + n * kSegment;
      parts[n].bytes = segment;
    }
    for (int round = 0; round < 6; ++round) {
      all.arrive_and_wait();
      const size_t before = prunex::test::allocations();
      void* request = nullptr;
      EXPECT_EQ(node.calls.iallgather(node.comm, own.data(), 2, parts.data(), segment, 0,
                                      2 * segment, nullptr, &request),
                kSuccess);
      EXPECT_EQ(node.wait(request), kSuccess);
      EXPECT_EQ(node.calls.ireducescatter(node.comm, 2, parts.data(), own.data(), segment, 0,
                                          2 * segment, kFloat32, kMax, nullptr, &request),
                kSuccess);
      if (node.rank == 0) {  // the other is late: a call that is not done costs nothing
        int done = 0;
        for (int i = 0; i < 1000 && done == 0; ++i) {
          EXPECT_EQ(node.calls.test(request, &done, nullptr), kSuccess);
        }
        EXPECT_TRUE(done != 0 || node.wait(request) == kSuccess);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        EXPECT_EQ(node.wait(request), kSuccess);
      }
      const size_t after = prunex::test::allocations();
      EXPECT_TRUE(round < 3 || after == before) << "round " << round << ": " << after - before;
      EXPECT_EQ(whole.front(), 1);
      EXPECT_EQ(whole.back(), 2);
      EXPECT_EQ(own.back(), static_cast<float>(1 + node.rank));
    }
  });
}

}  // namespace
}  // namespace prunex::nccl::test

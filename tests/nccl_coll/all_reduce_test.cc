// SPDX-License-Identifier: Apache-2.0
// Dense all-reduces of every type, operation, size and number of nodes, against integers.
#include <algorithm>
#include <mutex>

#include "tests/nccl_coll/group.h"

namespace prunex::nccl::test {
namespace {

// Exact in every type with up to six nodes: products are powers of two up to 2^6, signed.
int64_t value(int type, int op, size_t i, int node) {
  const auto mixed = static_cast<int64_t>((i * 7 + static_cast<size_t>(node) * 13 + i / 97) % 23);
  const bool has_sign = type != kUint8 && type != kUint32 && type != kUint64;
  if (op == kProd) {
    const int64_t magnitude = 1 + mixed % 2;
    return has_sign && mixed % 3 == 0 ? -magnitude : magnitude;
  }
  if (type >= kFloat8e4m3) {
    return mixed % 3 - 1;  // E5M2 counts to 8 without rounding
  }
  return has_sign ? mixed - 11 : mixed;
}

std::vector<std::byte> make(int type, int op, size_t count, int node) {
  std::vector<std::byte> data(count * size_of_type(type));
  for (size_t i = 0; i < count; ++i) {
    store(type, data, i, value(type, op, i, node));
  }
  return data;
}

void check(const std::vector<std::byte>& got, int type, int op, size_t count, int nodes,
           const std::string& what) {
  for (size_t i = 0; i < count; ++i) {
    int64_t want = value(type, op, i, 0);
    for (int n = 1; n < nodes; ++n) {
      want = combine(op, want, value(type, op, i, n));
    }
    ASSERT_EQ(load(type, got, i), want) << what << ", element " << i;
  }
}

std::string name(int type, int op, size_t count, int nodes) {
  return std::string(prunex::name_of(dtype_of(type))) + " op " + std::to_string(op) + " x " +
         std::to_string(count) + " on " + std::to_string(nodes) + " nodes";
}

class Nodes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(CollNet, Nodes, ::testing::Values(1, 2, 3, 4, 5));

TEST_P(Nodes, all_types_and_operations_in_place_and_not) {
  run_nodes(GetParam(), [](Node& node) {
    for (int type = 0; type < kTypes; ++type) {
      for (int op = 0; op < kOps; ++op) {
        int supported = 0;
        ASSERT_EQ(node.calls.reduce_support(type, op, &supported), kSuccess);
        ASSERT_EQ(supported, 1);
        for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1001}, size_t{40'001}}) {
          const std::string what = name(type, op, count, node.nodes);
          const std::vector<std::byte> send = make(type, op, count, node.rank);
          std::vector<std::byte> recv(send.size(), std::byte{0x33});
          ASSERT_EQ(node.all_reduce(send.data(), recv.data(), count, type, op), kSuccess) << what;
          check(recv, type, op, count, node.nodes, what);
          EXPECT_EQ(send, make(type, op, count, node.rank)) << what << ": the send buffer changed";
          std::vector<std::byte> both = send;
          ASSERT_EQ(node.all_reduce(both.data(), both.data(), count, type, op), kSuccess) << what;
          EXPECT_EQ(both, recv) << what << ", in place";
        }
      }
    }
  });
}

TEST_P(Nodes, odd_and_huge_counts) {
  run_nodes(GetParam(), [](Node& node) {
    // Longer than one piece, and not a multiple of anything; unaligned for its type.
    for (const size_t count : {size_t{262'145}, size_t{2'097'152}, size_t{5'242'883}}) {
      const std::vector<std::byte> send = make(kFloat32, kSum, count, node.rank);
      std::vector<std::byte> recv(send.size());
      ASSERT_EQ(node.all_reduce(send.data(), recv.data(), count, kFloat32, kSum), kSuccess);
      check(recv, kFloat32, kSum, count, node.nodes, name(kFloat32, kSum, count, node.nodes));
    }
    constexpr size_t kCount = 100'003;
    const std::vector<std::byte> data = make(kFloat64, kSum, kCount, node.rank);
    std::vector<std::byte> shifted(data.size() + 3);
    std::copy(data.begin(), data.end(), shifted.begin() + 3);
    std::vector<std::byte> recv(data.size() + 5);
    ASSERT_EQ(node.all_reduce(shifted.data() + 3, recv.data() + 5, kCount, kFloat64, kSum),
              kSuccess);
    recv.erase(recv.begin(), recv.begin() + 5);
    check(recv, kFloat64, kSum, kCount, node.nodes, "unaligned");
  });
}

// As NCCL drives it: eight in flight, FIFO slots reused, tested in any order.
TEST_P(Nodes, eight_in_flight_tested_in_random_order) {
  run_nodes(GetParam(), [](Node& node) {
    struct Slot {
      std::vector<std::byte> send, recv;
      size_t count = 0;
      int type = 0, op = 0;
      void* request = nullptr;
    };
    std::mt19937 shape(5);                                       // the same on all nodes
    std::mt19937 local(static_cast<unsigned>(100 + node.rank));  // each its own order
    std::vector<Slot> slots(8);
    for (int round = 0; round < 12; ++round) {
      for (Slot& s : slots) {
        s.type = static_cast<int>(shape() % kTypes);
        s.op = static_cast<int>(shape() % kOps);
        constexpr size_t kCounts[] = {0, 1, 33, 4096, 70'000};
        s.count = kCounts[shape() % 5] + shape() % 3;
        s.send = make(s.type, s.op, s.count, node.rank);
        s.recv.assign(s.send.size(), std::byte{0x77});
        ASSERT_EQ(node.calls.iallreduce(node.comm, s.send.data(), s.recv.data(), s.count, s.type,
                                        s.op, nullptr, nullptr, &s.request),
                  kSuccess);
        ASSERT_NE(s.request, nullptr);
      }
      std::vector<size_t> order = {0, 1, 2, 3, 4, 5, 6, 7};
      std::shuffle(order.begin(), order.end(), local);
      for (const size_t i : order) {
        Slot& s = slots[i];
        int bytes = -1;
        ASSERT_EQ(node.wait(s.request, &bytes), kSuccess);
        EXPECT_EQ(static_cast<size_t>(bytes), s.send.size());
        check(s.recv, s.type, s.op, s.count, node.nodes,
              name(s.type, s.op, s.count, node.nodes) + " in flight");
      }
    }
    EXPECT_EQ(node.stats().calls, 12u * 8u);
  });
}

TEST(CollNet, the_thirty_third_in_flight_is_told_to_come_again) {
  run_nodes(2, [](Node& node) {
    std::vector<float> data(64, 1.0f);
    std::vector<std::vector<float>> recv(kMaxRequests + 1, std::vector<float>(64));
    std::vector<void*> requests;
    for (int i = 0; i < kMaxRequests; ++i) {
      void* request = nullptr;
      ASSERT_EQ(node.calls.iallreduce(node.comm, data.data(), recv[static_cast<size_t>(i)].data(),
                                      64, kFloat32, kSum, nullptr, nullptr, &request),
                kSuccess);
      ASSERT_NE(request, nullptr);
      requests.push_back(request);
    }
    void* more = &more;
    ASSERT_EQ(node.calls.iallreduce(node.comm, data.data(), recv.back().data(), 64, kFloat32, kSum,
                                    nullptr, nullptr, &more),
              kSuccess);
    EXPECT_EQ(more, nullptr);
    for (void* r : requests) {
      ASSERT_EQ(node.wait(r), kSuccess);
    }
    ASSERT_EQ(node.all_reduce(data.data(), recv.back().data(), 64, kFloat32, kSum), kSuccess);
    EXPECT_EQ(recv.back()[63], 2.0f);
  });
}

// Whatever bits come in, NaN and infinities too, every node gets the same out.
TEST_P(Nodes, all_nodes_get_the_same_bits) {
  std::mutex mutex;
  std::vector<std::vector<std::vector<std::byte>>> results(static_cast<size_t>(GetParam()));
  run_nodes(GetParam(), [&](Node& node) {
    std::mt19937_64 random(static_cast<uint64_t>(node.rank) + 11);
    std::vector<std::vector<std::byte>> mine;
    for (const int type : {static_cast<int>(kFloat16), static_cast<int>(kBfloat16),
                           static_cast<int>(kFloat32), static_cast<int>(kFloat64)}) {
      for (int op = 0; op < kOps; ++op) {
        for (const size_t count : {size_t{100}, size_t{9'000}, size_t{300'000}}) {
          std::vector<std::byte> data(count * size_of_type(type));
          for (std::byte& b : data) {
            b = static_cast<std::byte>(random());
          }
          ASSERT_EQ(node.all_reduce(data.data(), data.data(), count, type, op), kSuccess);
          mine.push_back(std::move(data));
        }
      }
    }
    const std::lock_guard lock(mutex);
    results[static_cast<size_t>(node.rank)] = std::move(mine);
  });
  for (size_t n = 1; n < results.size(); ++n) {
    EXPECT_TRUE(results[n] == results[0]) << "node " << n;
  }
}

// NCCL's progress thread serves others too: a long call takes many short polls.
TEST(CollNet, no_poll_does_more_than_a_little) {
  run_nodes(1, [](Node& node) {
    constexpr size_t kCount = size_t{4} << 20;  // 16 MiB, at 256 KiB of work per poll
    const std::vector<float> data(kCount, 1.0f);
    std::vector<float> out(kCount);
    void* request = nullptr;
    ASSERT_EQ(node.calls.iallreduce(node.comm, data.data(), out.data(), kCount, kFloat32, kSum,
                                    nullptr, nullptr, &request),
              kSuccess);
    int polls = 0, done = 0;
    for (; done == 0; ++polls) {
      ASSERT_EQ(node.calls.test(request, &done, nullptr), kSuccess);
    }
    EXPECT_GE(polls, 40);
    EXPECT_EQ(out, data);
  });
}

TEST(CollNet, many_small_calls_in_a_row) {
  run_nodes(3, [](Node& node) {
    for (int i = 0; i < 2000; ++i) {
      float v = static_cast<float>(i + node.rank);
      ASSERT_EQ(node.all_reduce(&v, &v, 1, kFloat32, kSum), kSuccess);
      ASSERT_EQ(v, static_cast<float>(3 * i + 3));
    }
  });
}

}  // namespace
}  // namespace prunex::nccl::test

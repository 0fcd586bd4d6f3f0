// SPDX-License-Identifier: Apache-2.0
// All-gather and reduce-scatter of windows: any window of the n segments, also one that misses
// this node's or has no bytes at all.
#include <algorithm>

#include "tests/nccl_coll/group.h"

namespace prunex::nccl::test {
namespace {

std::byte byte_at(size_t i, size_t bytes_per_rank) {
  return static_cast<std::byte>(i * 31 + i / bytes_per_rank * 7 + i / 256);
}

struct Cut {
  size_t offset, bytes;
};

// The part of a node's segment that lies inside the window, as an offset into the window.
Cut own_of(const Cut& window, size_t bytes_per_rank, int node) {
  const size_t begin = std::max(window.offset, static_cast<size_t>(node) * bytes_per_rank);
  const size_t end =
      std::min(window.offset + window.bytes, static_cast<size_t>(node + 1) * bytes_per_rank);
  return begin < end ? Cut{begin - window.offset, end - begin} : Cut{0, 0};
}

std::vector<Cut> windows(size_t total, size_t bytes_per_rank, size_t grain) {
  std::vector<Cut> out = {{0, total},
                          {0, 0},
                          {total, 0},
                          {0, bytes_per_rank},
                          {total - bytes_per_rank, bytes_per_rank},
                          {bytes_per_rank / 2 / grain * grain,
                           std::min(bytes_per_rank, total - bytes_per_rank / 2) / grain * grain}};
  std::mt19937 random(9);
  for (int i = 0; i < 12; ++i) {
    const size_t offset = random() % (total / grain + 1) * grain;
    out.push_back({offset, random() % ((total - offset) / grain + 1) * grain});
  }
  return out;
}

class Windows : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(CollNet, Windows, ::testing::Values(1, 2, 3, 5));

TEST_P(Windows, all_gather) {
  run_nodes(GetParam(), [](Node& node) {
    for (const size_t bytes_per_rank : {size_t{1}, size_t{1000}, size_t{700'001}}) {
      const size_t total = bytes_per_rank * static_cast<size_t>(node.nodes);
      for (const Cut& w : windows(total, bytes_per_rank, 1)) {
        const Cut own = own_of(w, bytes_per_rank, node.rank);
        std::vector<std::byte> send(own.bytes);
        for (size_t i = 0; i < own.bytes; ++i) {
          send[i] = byte_at(w.offset + own.offset + i, bytes_per_rank);
        }
        for (const bool in_place : {false, true}) {
          std::vector<std::byte> recv(w.bytes + 1, std::byte{0x5a});
          const void* from = send.data();
          if (in_place) {
            std::copy(send.begin(), send.end(),
                      recv.begin() + static_cast<std::ptrdiff_t>(own.offset));
            from = recv.data() + own.offset;
          }
          const CollPart part{nullptr, recv.data(), w.bytes};
          void* request = nullptr;
          ASSERT_EQ(node.calls.iallgather(node.comm, own.bytes == 0 ? nullptr : from, 1, &part,
                                          bytes_per_rank, w.offset, w.bytes, nullptr, &request),
                    kSuccess);
          int bytes = -1;
          ASSERT_EQ(node.wait(request, &bytes), kSuccess);
          EXPECT_EQ(static_cast<size_t>(bytes), w.bytes);
          for (size_t i = 0; i < w.bytes; ++i) {
            ASSERT_EQ(recv[i], byte_at(w.offset + i, bytes_per_rank))
                << i << " of window " << w.offset << "+" << w.bytes;
          }
          EXPECT_EQ(recv[w.bytes], std::byte{0x5a});
        }
      }
    }
  });
}

TEST_P(Windows, reduce_scatter) {
  run_nodes(GetParam(), [](Node& node) {
    for (const int type : {static_cast<int>(kInt8), static_cast<int>(kFloat16),
                           static_cast<int>(kFloat32), static_cast<int>(kUint64)}) {
      const size_t size = size_of_type(type);
      for (const size_t per_rank : {size_t{1}, size_t{1001}, size_t{100'003}}) {
        const size_t bytes_per_rank = per_rank * size;
        const size_t total = bytes_per_rank * static_cast<size_t>(node.nodes);
        const auto value = [](size_t i, int n) {
          return static_cast<int64_t>((i * 3 + static_cast<size_t>(n) * 11) % 13);
        };
        for (const Cut& w : windows(total, bytes_per_rank, size)) {
          const Cut own = own_of(w, bytes_per_rank, node.rank);
          std::vector<std::byte> send(w.bytes);
          for (size_t i = 0; i < w.bytes / size; ++i) {
            store(type, send, i, value(w.offset / size + i, node.rank));
          }
          const int op = per_rank % 2 == 0 ? kSum : (w.bytes % 3 == 0 ? kMax : kSum);
          std::vector<std::byte> recv(own.bytes);
          const CollPart part{nullptr, send.data(), w.bytes};
          void* request = nullptr;
          ASSERT_EQ(node.calls.ireducescatter(node.comm, 1, &part, recv.data(), bytes_per_rank,
                                              w.offset, w.bytes, type, op, nullptr, &request),
                    kSuccess);
          int bytes = -1;
          ASSERT_EQ(node.wait(request, &bytes), kSuccess);
          EXPECT_EQ(static_cast<size_t>(bytes), own.bytes);
          for (size_t i = 0; i < own.bytes / size; ++i) {
            const size_t at = (w.offset + own.offset) / size + i;
            int64_t want = value(at, 0);
            for (int n = 1; n < node.nodes; ++n) {
              want = combine(op, want, value(at, n));
            }
            ASSERT_EQ(load(type, recv, i), want) << i;
          }
        }
      }
    }
  });
}

TEST_P(Windows, reduce_scatter_in_place) {
  run_nodes(GetParam(), [](Node& node) {
    constexpr size_t kEach = 200'000;
    const auto nodes = static_cast<size_t>(node.nodes);
    std::vector<float> data(kEach * nodes, static_cast<float>(node.rank + 1));
    const CollPart part{nullptr, data.data(), data.size() * 4};
    float* own = data.data() + kEach * static_cast<size_t>(node.rank);
    void* request = nullptr;
    ASSERT_EQ(node.calls.ireducescatter(node.comm, 1, &part, own, kEach * 4, 0, data.size() * 4,
                                        kFloat32, kSum, nullptr, &request),
              kSuccess);
    ASSERT_EQ(node.wait(request), kSuccess);
    for (size_t i = 0; i < kEach; ++i) {
      ASSERT_EQ(own[i], static_cast<float>(nodes * (nodes + 1) / 2));
    }
  });
}

TEST(CollNet, windows_in_several_parts) {
  run_nodes(3, [](Node& node) {
    constexpr size_t kPer = 1000;
    std::vector<std::byte> send(kPer * 4, static_cast<std::byte>(node.rank + 1));
    std::vector<std::byte> a(5000), b(1), c(12'000 - 5001);
    const CollPart parts[] = {{nullptr, a.data(), a.size()},
                              {nullptr, b.data(), b.size()},
                              {nullptr, nullptr, 0},
                              {nullptr, c.data(), c.size()}};
    void* request = nullptr;
    ASSERT_EQ(node.calls.iallgather(node.comm, send.data(), 4, parts, kPer * 4, 0, kPer * 12,
                                    nullptr, &request),
              kSuccess);
    ASSERT_EQ(node.wait(request), kSuccess);
    EXPECT_EQ(a[3999], std::byte{1});
    EXPECT_EQ(a[4000], std::byte{2});
    EXPECT_EQ(b[0], std::byte{2});
    EXPECT_EQ(c.back(), std::byte{3});
    const std::vector<int32_t> ones(1250, 1), one(1, 1), rest(3000 - 1251, 1);
    std::vector<int32_t> sum(kPer, -1);
    const CollPart sends[] = {{nullptr, const_cast<int32_t*>(ones.data()), ones.size() * 4},
                              {nullptr, const_cast<int32_t*>(one.data()), 4},
                              {nullptr, const_cast<int32_t*>(rest.data()), rest.size() * 4}};
    ASSERT_EQ(node.calls.ireducescatter(node.comm, 3, sends, sum.data(), kPer * 4, 0, kPer * 12,
                                        kInt32, kSum, nullptr, &request),
              kSuccess);
    ASSERT_EQ(node.wait(request), kSuccess);
    EXPECT_EQ(sum, std::vector<int32_t>(kPer, 3));
  });
}

// All kinds of calls behind each other, as they come: each finds its own data.
TEST(CollNet, mixed_calls_in_flight) {
  run_nodes(4, [](Node& node) {
    for (int round = 0; round < 10; ++round) {
      constexpr size_t kEach = 30'000;
      std::vector<float> sum(kEach, 1.0f), gathered(kEach * 4), scattered(kEach);
      const std::vector<float> own(kEach, static_cast<float>(node.rank));
      std::vector<float> all(kEach * 4, 2.0f);
      void* requests[3] = {};
      ASSERT_EQ(node.calls.iallreduce(node.comm, sum.data(), sum.data(), kEach, kFloat32, kSum,
                                      nullptr, nullptr, &requests[0]),
                kSuccess);
      const CollPart to{nullptr, gathered.data(), gathered.size() * 4};
      ASSERT_EQ(node.calls.iallgather(node.comm, own.data(), 1, &to, kEach * 4, 0, kEach * 16,
                                      nullptr, &requests[1]),
                kSuccess);
      const CollPart from{nullptr, all.data(), all.size() * 4};
      ASSERT_EQ(node.calls.ireducescatter(node.comm, 1, &from, scattered.data(), kEach * 4, 0,
                                          kEach * 16, kFloat32, kProd, nullptr, &requests[2]),
                kSuccess);
      for (int i = 2; i >= 0; --i) {
        ASSERT_EQ(node.wait(requests[i]), kSuccess);
      }
      EXPECT_EQ(sum, std::vector<float>(kEach, 4.0f));
      EXPECT_EQ(gathered[kEach * 3], 3.0f);
      EXPECT_EQ(gathered[kEach * 2 - 1], 1.0f);
      EXPECT_EQ(scattered, std::vector<float>(kEach, 16.0f));
    }
  });
}

}  // namespace
}  // namespace prunex::nccl::test

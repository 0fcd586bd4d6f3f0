// SPDX-License-Identifier: Apache-2.0
// All-reduces of buffers that nobody registered: blocks that are zero bytes everywhere do not
// travel, whatever the rest holds.
#include <cmath>
#include <limits>
#include <mutex>

#include "plugin/nccl/coll/blocks.h"
#include "tests/nccl_coll/group.h"

namespace prunex::nccl::test {
namespace {

using coll::BlockMap;

// Blocks of 128 bytes: block b of node n is non-zero when (b + n) % of < live.
std::vector<float> sparse(size_t count, int node, size_t live, size_t of) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) {
    if ((i / 32 + static_cast<size_t>(node)) % of < live) {
      data[i] = static_cast<float>(1 + (i + static_cast<size_t>(node)) % 9);
    }
  }
  return data;
}

class Mapped : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(CollNet, Mapped, ::testing::Values(2, 3, 5));

TEST_P(Mapped, only_the_union_travels) {
  run_nodes(GetParam(), [](Node& node) {
    for (const size_t count : {size_t{20'000}, size_t{262'144}, size_t{1'234'567}}) {
      const std::vector<float> send = sparse(count, node.rank, 1, 10);
      std::vector<float> want(count);
      for (int n = 0; n < node.nodes; ++n) {
        const std::vector<float> one = sparse(count, n, 1, 10);
        for (size_t i = 0; i < count; ++i) {
          want[i] += one[i];
        }
      }
      const CollStats before = node.stats();
      std::vector<float> out(count, std::numeric_limits<float>::quiet_NaN());
      ASSERT_EQ(node.all_reduce(send.data(), out.data(), count, kFloat32, kSum), kSuccess);
      ASSERT_EQ(out, want);
      std::vector<float> both = send;
      ASSERT_EQ(node.all_reduce(both.data(), both.data(), count, kFloat32, kSum), kSuccess);
      ASSERT_EQ(both, want);
      const CollStats after = node.stats();
      EXPECT_EQ(after.mapped - before.mapped, 2u) << count;
      // Of a dense scatter; small unions are exchanged, for which only the dense call's bytes hold.
      const auto nodes = static_cast<double>(node.nodes);
      const double dense = 2 * (nodes - 1) / nodes * static_cast<double>(count) * 4;
      const double share = count == 20'000 ? 1 : nodes / 10 * 1.05;
      const double limit = dense * share + dense * 0.01 + 4096;
      EXPECT_LE(static_cast<double>(after.wire_bytes - before.wire_bytes) / 2, limit) << count;
    }
  });
}

// NCCL's chunks are full: behind the data lies what was there before. It may be anything, on every
// node something else, and must not disturb anything.
TEST_P(Mapped, garbage_tails) {
  run_nodes(GetParam(), [](Node& node) {
    constexpr size_t kCount = 131'072, kData = 100'000;
    std::mt19937_64 random(static_cast<uint64_t>(node.rank));
    for (int round = 0; round < 3; ++round) {
      std::vector<float> send = sparse(kCount, node.rank, 1, 16);
      for (size_t i = kData; i < kCount; ++i) {
        const auto bits = static_cast<uint32_t>(round == 0 ? 0x33333333u : random());
        std::memcpy(&send[i], &bits, sizeof bits);
        if (round == 2 && i % 3 == 0) {
          send[i] = std::numeric_limits<float>::signaling_NaN();
        }
      }
      std::vector<float> out(kCount);
      ASSERT_EQ(node.all_reduce(send.data(), out.data(), kCount, kFloat32, kSum), kSuccess);
      for (size_t i = 0; i < kData; ++i) {
        float want = 0;
        for (int n = 0; n < node.nodes; ++n) {
          const bool live = (i / 32 + static_cast<size_t>(n)) % 16 < 1;
          want += live ? static_cast<float>(1 + (i + static_cast<size_t>(n)) % 9) : 0;
        }
        ASSERT_EQ(out[i], want) << i;
      }
    }
    EXPECT_EQ(node.stats().mapped, 3u);
  });
}

// The result has the same bits as a dense one: a node that maps and one that never does agree.
TEST_P(Mapped, same_bits_as_dense_for_every_type_and_operation) {
  run_nodes(GetParam(), [](Node& node) {
    for (int type = 0; type < kTypes; ++type) {
      for (int op = 0; op < kOps; ++op) {
        const size_t size = size_of_type(type);
        const size_t count = 80'000 / size + 3;
        std::mt19937_64 random(static_cast<uint64_t>(node.rank + 31 * type + op));
        std::vector<std::byte> send(count * size);
        for (size_t i = 0; i < send.size(); ++i) {
          send[i] = i / 128 % 4 == 0 ? static_cast<std::byte>(random()) : std::byte{0};
        }
        // A lone -0.0 is not zero bytes.
        send[512 * 3 + 128 + size - 1] = std::byte{0x80};
        std::vector<std::byte> mapped(send.size(), std::byte{0x11});
        ASSERT_EQ(node.all_reduce(send.data(), mapped.data(), count, type, op), kSuccess);
        // In calls below 32 KiB nothing is mapped.
        std::vector<std::byte> dense(send.size());
        for (size_t at = 0; at < count;) {
          const size_t n = std::min<size_t>(count - at, 20'000 / size);
          ASSERT_EQ(node.all_reduce(send.data() + at * size, dense.data() + at * size, n, type, op),
                    kSuccess);
          at += n;
        }
        ASSERT_TRUE(mapped == dense) << prunex::name_of(dtype_of(type)) << " op " << op;
      }
    }
    EXPECT_EQ(node.stats().mapped, static_cast<uint64_t>(kTypes * kOps));
  });
}

TEST_P(Mapped, all_zero_moves_nothing) {
  run_nodes(GetParam(), [](Node& node) {
    const std::vector<float> zero(300'000, 0.0f);
    std::vector<float> out(zero.size(), 5.0f);
    ASSERT_EQ(node.all_reduce(zero.data(), out.data(), out.size(), kFloat32, kSum), kSuccess);
    EXPECT_EQ(out, zero);
    EXPECT_EQ(node.stats().mapped, 1u);
    EXPECT_LE(node.stats().wire_bytes, static_cast<uint64_t>(node.nodes) * 2000);
  });
}

// Dense data: the wire never carries more than a dense call's bytes, 1 % and 4 KiB, and maps are
// tried ever more seldom. When zeros come back, they are found again.
TEST_P(Mapped, dense_data_backs_off_and_recovers) {
  run_nodes(GetParam(), [](Node& node) {
    constexpr size_t kCount = 65'536;
    const std::vector<float> full(kCount, 1.0f);
    std::vector<float> out(kCount);
    const auto nodes = static_cast<double>(node.nodes);
    for (int i = 0; i < 200; ++i) {
      const CollStats before = node.stats();
      ASSERT_EQ(node.all_reduce(full.data(), out.data(), kCount, kFloat32, kSum), kSuccess);
      const double dense = 2 * (nodes - 1) / nodes * kCount * 4;
      ASSERT_LE(static_cast<double>(node.stats().wire_bytes - before.wire_bytes),
                dense * 1.01 + 4096);
    }
    EXPECT_EQ(node.stats().dense, 200u);
    const std::vector<float> zero(kCount, 0.0f);
    int calls = 0;
    for (; calls < 100 && node.stats().mapped == 0; ++calls) {
      ASSERT_EQ(node.all_reduce(zero.data(), out.data(), kCount, kFloat32, kSum), kSuccess);
      ASSERT_EQ(out, zero);
    }
    EXPECT_LE(calls, 66);
    ASSERT_EQ(node.all_reduce(zero.data(), out.data(), kCount, kFloat32, kSum), kSuccess);
    EXPECT_EQ(node.stats().mapped, 2u) << "after one success maps are made every time";
  });
}

// One node's data are sparse, the other's are not: they still choose alike.
TEST(CollNet, one_dense_node_among_sparse_ones) {
  run_nodes(3, [](Node& node) {
    constexpr size_t kCount = 100'000;
    for (int i = 0; i < 20; ++i) {
      const bool mine = i % 3 == node.rank;
      const std::vector<float> data(kCount, mine ? 1.0f : 0.0f);
      std::vector<float> out(kCount);
      ASSERT_EQ(node.all_reduce(data.data(), out.data(), kCount, kFloat32, kSum), kSuccess);
      ASSERT_EQ(out, std::vector<float>(kCount, 1.0f));
    }
  });
}

TEST(BlockMap, scan_pack_and_unpack_are_inverse) {
  std::mt19937 random(3);
  for (const size_t bytes : {size_t{1}, size_t{127}, size_t{128}, size_t{129}, size_t{8192},
                             size_t{8193}, size_t{1'000'001}}) {
    for (const size_t block : {size_t{128}, size_t{512}}) {
      for (const unsigned of : {1u, 2u, 5u, 1000u}) {
        std::vector<std::byte> data(bytes);
        for (size_t b = 0; b * block < bytes; ++b) {
          if (random() % of == 0) {
            data[b * block + random() % std::min(block, bytes - b * block)] = std::byte{0x80};
          }
        }
        BlockMap map = coll::make_block_map(bytes, block);
        coll::scan_blocks(map, data.data(), 0, map.blocks());
        for (size_t b = 0; b < map.blocks(); ++b) {
          bool any = false;
          for (size_t i = b * block; i < std::min(bytes, (b + 1) * block); ++i) {
            any = any || data[i] != std::byte{0};
          }
          ASSERT_EQ(map.kept(b), any) << b;
        }
        std::vector<std::byte> packed(map.kept_bytes()), out(bytes, std::byte{9});
        size_t in = 0, back = 0;
        for (size_t b = 0; b < map.blocks();) {  // in uneven pieces
          const size_t end = std::min<size_t>(map.blocks(), b + 1 + random() % 200);
          in += coll::pack_blocks(map, data.data(), b, end, packed.data() + in);
          back += coll::unpack_blocks(map, packed.data() + back, b, end, out.data(), true);
          ASSERT_EQ(in, back);
          b = end;
        }
        ASSERT_EQ(in, packed.size());
        ASSERT_EQ(out, data);
      }
    }
  }
}

TEST(BlockMap, foreign_maps_are_checked) {
  BlockMap map = coll::make_block_map(128 * 70, 128);  // two words, six bits of the second
  std::vector<std::byte> other(16);
  EXPECT_TRUE(coll::merge_map(map, other));
  other[8] = std::byte{0x20};
  EXPECT_TRUE(coll::merge_map(map, other));
  EXPECT_EQ(map.kept_bytes(), 128u);
  other[8] = std::byte{0x40};  // a block past the end
  EXPECT_FALSE(coll::merge_map(map, other));
  other.resize(15);
  EXPECT_FALSE(coll::merge_map(map, other));
}

TEST(BlockMap, maps_stay_below_a_hundredth_of_a_dense_call) {
  for (size_t nodes = 2; nodes <= 4096; nodes = nodes * 3 / 2) {
    const size_t block = coll::block_bytes_for(nodes);
    const double dense = 2.0 * static_cast<double>(nodes - 1) / static_cast<double>(nodes);
    const double maps = static_cast<double>(nodes - 1) / 8 / static_cast<double>(block);
    EXPECT_LT(maps, 0.01 * dense) << nodes;
  }
}

}  // namespace
}  // namespace prunex::nccl::test

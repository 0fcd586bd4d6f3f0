// SPDX-License-Identifier: Apache-2.0
// What the device makes of byte masks, blocks and scores, emulated between the scans (which are
// CUB's), against the host's masks and kernels.
#include "kernels/cuda/index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cuda/blocks.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/tuning.h"
#include "kernels/exact.h"
#include "kernels/pack.h"
#include "tests/cuda/emulate.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {
namespace {

// As index.cu does it: words, an exclusive sum of their popcounts, tiles.
cuda::Lowered plan_of_bytes(const uint8_t* cells, uint64_t count, uint32_t tile) {
  cuda::Lowered plan;
  plan.count = count;
  plan.words.resize((count + 31) / 32 + 1);
  uint32_t rank = 0;
  for (uint64_t w = 0; w < plan.words.size(); ++w) {
    plan.words[w] = {cuda::cell_bits(cells, count, w), rank};
    rank += cuda::popcount(plan.words[w].bits);
  }
  plan.kept = rank;
  plan.tiles.resize((count + tile - 1) / tile);
  for (uint64_t t = 0; t < plan.tiles.size(); ++t) {
    plan.tiles[t] = cuda::bitmap_tile(plan.words.data(), count, tile, t);
  }
  return plan;
}

TEST(CudaIndex, plans_of_byte_masks_pack_as_the_hosts) {
  Rng rng(1);
  for (const uint64_t count : {1u, 31u, 32u, 33u, 1000u, 4096u, 70'001u}) {
    for (const double density : {0.0, 0.02, 0.5, 0.97, 1.0}) {
      for (const size_t shift : {0u, 5u}) {
        std::vector<uint8_t> memory(count + shift);
        uint8_t* const cells = memory.data() + shift;
        const Bits bits = random_bits(rng, count, density, 1 + below(rng, 60));
        for (uint64_t i = 0; i < count; ++i) {
          cells[i] = bits[i] != 0 ? static_cast<uint8_t>(1 + below(rng, 255)) : 0;
        }
        MaskSpec spec;
        spec.kind = MaskKind::bytes;
        spec.ndim = 1;
        spec.sizes[0] = static_cast<int64_t>(count);
        spec.cells = {cells, count};
        const auto mask = std::make_shared<CompiledMask>(*compile(spec));
        const Case c = make_case("bytes", {mask}, {count});
        const cuda::Lowered plan = plan_of_bytes(cells, count, below(rng, 2) == 0 ? 1024 : 4096);
        ASSERT_EQ(plan.kept, mask->kept);
        std::vector<std::byte> buffer(count * 4), want(mask->kept * 4), got(want.size());
        fill(c, DType::f32, rng, 3, buffer.data());
        const Slice all{0, mask->kept, 0, count};
        AuditCount dropped;
        std::byte nothing{};
        pack(c.layout, DType::f32, buffer.data(), all, want.empty() ? &nothing : want.data(),
             &dropped);
        cuda::AuditRecord record;
        emulate_pack({2, 64}, plan, {0, count, 0}, DType::f32, buffer.data(), got.data(), &record);
        ASSERT_EQ(got, want) << count << " " << density;
        EXPECT_EQ(record.lossless, dropped.lossless);
        std::vector<std::byte> back(buffer.size()), want_back(buffer.size());
        unpack(c.layout, DType::f32, want.empty() ? &nothing : want.data(), all, want_back.data());
        emulate_unpack({2, 64}, plan, {0, count, 0}, DType::f32, got.data(), back.data());
        ASSERT_EQ(back, want_back) << count << " " << density;
      }
    }
  }
}

// The warp's votes, lane by lane, and both moves, against pack_blocks and unpack_blocks.
TEST(CudaBlocks, as_on_the_host) {
  Rng rng(2);
  for (const uint64_t blocks : {1u, 4u, 31u, 32u, 33u, 64u, 200u}) {
    for (const size_t shift : {0u, 3u, 8u}) {
      Fenced memory(blocks * kZeroBlock + shift, Fenced::At::end);
      std::byte* const from = memory.data() + shift;
      for (uint64_t b = 0; b < blocks; ++b) {
        std::memset(from + b * kZeroBlock, 0, kZeroBlock);
        if (below(rng, 2) == 0) {
          from[b * kZeroBlock + below(rng, kZeroBlock)] = std::byte{0x80};
        }
      }
      const uint32_t words = static_cast<uint32_t>((blocks + 63) / 64 * 2);
      std::vector<uint32_t> bits(words, 0), ranks(words, 0);
      for (uint32_t w = 0; w < words; ++w) {
        for (uint32_t step = 0; step < cuda::kSteps; ++step) {
          uint32_t votes = 0;
          for (uint32_t lane = 0; lane < 32; ++lane) {
            const cuda::Vector16 v = cuda::block_part(from, blocks, w, step, lane);
            votes |= ((v.low | v.high) != 0 ? 1u : 0u) << lane;
          }
          bits[w] |= cuda::block_bits(votes) << (step * cuda::kBlocksPerStep);
        }
        ranks[w] = w == 0 ? 0 : ranks[w - 1] + cuda::popcount(bits[w - 1]);
      }
      const size_t bytes = (ranks[words - 1] + cuda::popcount(bits[words - 1])) * kZeroBlock;
      Fenced got(bytes, Fenced::At::end), back(blocks * kZeroBlock + shift, Fenced::At::end);
      std::vector<std::byte> want;
      for (uint64_t first = 0; first < blocks; first += 64) {
        const size_t n = std::min<uint64_t>(64, blocks - first);
        std::vector<std::byte> packed(n * kZeroBlock);
        const uint64_t set = pack_blocks(from + first * kZeroBlock, n, packed.data());
        ASSERT_EQ(set, bits[first / 32] | uint64_t{bits[first / 32 + 1]} << 32);
        packed.resize(static_cast<size_t>(std::popcount(set)) * kZeroBlock);
        want.insert(want.end(), packed.begin(), packed.end());
      }
      ASSERT_EQ(want.size(), bytes);
      std::memset(back.data(), 0xa5, back.size());
      for (const bool pack : {true, false}) {
        for (uint32_t w = 0; w < words; ++w) {
          for (uint32_t at = 0; at < cuda::kSteps * 32; ++at) {
            const uint32_t step = at / 32, lane = at % 32;
            pack ? cuda::pack_block_part(from, blocks, w, bits[w], ranks[w], step, lane, got.data())
                 : cuda::unpack_block_part(got.data(), blocks, w, bits[w], ranks[w], step, lane,
                                           back.data() + shift);
          }
        }
        ASSERT_TRUE(bytes == 0 || std::memcmp(got.data(), want.data(), bytes) == 0);
      }
      EXPECT_EQ(std::memcmp(back.data() + shift, from, blocks * kZeroBlock), 0);
    }
  }
}

TEST(CudaNorms, groups_of_filters_and_channels) {
  const cuda::GroupShape filters{1, 6, 20}, channels{6, 5, 4};
  for (uint64_t e = 0; e < 120; ++e) {
    const uint64_t filter = e / 20, channel = e / 4 % 5;
    EXPECT_EQ(filters.element(filter * filters.members() + e % 20), e);
    EXPECT_EQ(channels.element(channel * channels.members() + filter * 4 + e % 4), e);
  }
  const float values[] = {-3, 0.5f};
  const auto* data = reinterpret_cast<const std::byte*>(values);
  EXPECT_EQ(cuda::square_of(DType::f32, data, 0), 9);
  EXPECT_EQ(cuda::square_of(DType::f32, data, 1), 0.25);
}

TEST(CudaTopK, keys_are_in_the_order_of_scores) {
  std::vector<double> scores{-INFINITY, -1e300, -1,        -1e-310, 0,
                             1e-310,    1,      1 + 1e-15, 1e300,   INFINITY};
  for (size_t i = 0; i + 1 < scores.size(); ++i) {
    EXPECT_LT(cuda::order_key(scores[i]), cuda::order_key(scores[i + 1])) << i;
  }
  EXPECT_EQ(cuda::order_key(-0.0), cuda::order_key(0.0));
  EXPECT_LT(cuda::order_key(NAN), cuda::order_key(-INFINITY));
  EXPECT_LT(cuda::order_key(-NAN), cuda::order_key(-INFINITY));
}

TEST(CudaTuning, every_row_can_be_launched) {
  uint32_t before = 0;
  for (const cuda::Tuning& tuning : cuda::kTunings) {
    EXPECT_GT(tuning.arch, before) << "rows ascend";
    before = tuning.arch;
    EXPECT_EQ(tuning.threads % 32, 0u);
    EXPECT_LE(tuning.threads, cuda::kMaxThreads);
    EXPECT_LE(tuning.threads * tuning.blocks_per_sm, 2048u) << "threads that an SM holds";
    for (const uint64_t count : {1ull, 1000ull, 6'500'000ull, 1ull << 33}) {
      for (const size_t size : {1u, 2u, 4u, 8u}) {
        const uint32_t tile = cuda::tile_elements(tuning, 132, count, size);
        EXPECT_GE(tile * size, 1024u);
        EXPECT_LE(tile, cuda::kMaxTile);
        EXPECT_EQ(tile % 32, 0u) << "plans made on the device need whole words";
      }
    }
  }
  EXPECT_EQ(cuda::tuning_of(75).arch, 80u);
  EXPECT_EQ(cuda::tuning_of(86).arch, 80u);
  EXPECT_EQ(cuda::tuning_of(90).arch, 90u);
  EXPECT_EQ(cuda::tuning_of(120).arch, 100u);
  EXPECT_EQ(cuda::grid_blocks(cuda::tuning_of(90), 132, 5), 5u);
  EXPECT_EQ(cuda::grid_blocks(cuda::tuning_of(90), 132, 1'000'000), 132u * 8);
  EXPECT_EQ(cuda::grid_blocks(cuda::tuning_of(90), 132, 0), 1u);
}

TEST(CudaDivider, is_exact_below_two_to_the_31) {
  Rng rng(3);
  for (int i = 0; i < 200'000; ++i) {
    const auto d = static_cast<uint32_t>(1 + below(rng, uint64_t{1} << (1 + below(rng, 30))));
    const auto divider = cuda::Divider::of(d);
    const auto n = static_cast<uint32_t>(below(rng, uint64_t{1} << 31));
    const uint32_t q = n / d * d;
    for (const uint32_t x : {n, q, q == 0 ? 0 : q - 1, (1u << 31) - 1}) {
      ASSERT_EQ(divider.divide(x), x / d) << x << " / " << d;
    }
  }
}

}  // namespace
}  // namespace prunex::test

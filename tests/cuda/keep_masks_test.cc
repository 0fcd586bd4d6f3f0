// SPDX-License-Identifier: Apache-2.0
// Layouts as keep vectors: the same elements are kept, in the same order, and structured masks are
// such, as trainers have them.
#include "kernels/cuda/keep_masks.h"

#include <gtest/gtest.h>

#include "kernels/cuda/lower_keeps.h"
#include "tests/cuda/emulate.h"
#include "tests/cuda/emulate_keeps.h"
#include "tests/cuda/keep_bucket.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {
namespace {

// The whole buffer. Not inlined: with constants in it g++ 12 takes what is never read for read.
[[gnu::noinline]] void move_all(const cuda::Lowered& plan, DType type, bool packs, const void* from,
                                void* to) {
  const auto* const in = static_cast<const std::byte*>(from);
  auto* const out = static_cast<std::byte*>(to);
  const cuda::Range all{0, plan.count, 0};
  packs ? emulate_pack({3, 64}, plan, all, type, in, out, nullptr)
        : emulate_unpack({3, 64}, plan, all, type, in, out);
}

// 0 or 1 for every element of the buffer, as the plan says.
Bits kept_by(const cuda::LayoutKeeps& keeps, uint32_t tile, const Layout& layout) {
  const auto lowered = cuda::lower_keeps(keeps.tensors, tile);
  EXPECT_TRUE(lowered);
  const cuda::Lowered plan = emulate_keeps(*lowered, keeps.keeps.data());
  EXPECT_EQ(plan.count, layout.count);
  EXPECT_EQ(plan.kept, layout.kept);
  const std::vector<uint8_t> ones(layout.kept + 1, 1);
  Bits out(layout.count, 7);
  move_all(plan, DType::u8, false, ones.data(), out.data());
  return out;
}

// Which elements go where: numbers in the packed order.
void expect_same_order(const cuda::LayoutKeeps& keeps, const Layout& layout,
                       const std::vector<uint64_t>& kept) {
  const cuda::Lowered plan =
      emulate_keeps(*cuda::lower_keeps(keeps.tensors, 256), keeps.keeps.data());
  std::vector<uint64_t> buffer(layout.count), packed(layout.kept + 1);
  for (size_t i = 0; i < buffer.size(); ++i) {
    buffer[i] = i;
  }
  move_all(plan, DType::u64, true, buffer.data(), packed.data());
  packed.resize(layout.kept);
  EXPECT_EQ(packed, kept);
}

TEST(CudaKeepMasks, every_structure) {
  int as_keeps = 0;
  for (const uint64_t seed : {1u, 2u, 3u}) {
    for (const Case& c : all_cases(seed)) {
      const auto keeps = cuda::keeps_of(c.layout);
      if (!keeps) {
        continue;  // the host's
      }
      ++as_keeps;
      for (const uint32_t tile : {32u, 1024u, 4096u}) {
        ASSERT_EQ(kept_by(*keeps, tile, c.layout), c.keep) << c.name << ", tiles of " << tile;
      }
      expect_same_order(*keeps, c.layout, c.kept);
      for (size_t s = 0; s < c.layout.segments.size(); ++s) {
        EXPECT_EQ(keeps->tensors[s].projected != 0, c.layout.segments[s].projected);
      }
    }
  }
  EXPECT_GT(as_keeps, 10);
}

TEST(CudaKeepMasks, random_buckets_of_rows_and_columns) {
  Rng rng(4);
  int as_keeps = 0;
  for (int round = 0; round < 200; ++round) {
    const KeepBucket bucket = random_keep_bucket(rng);
    if (const auto keeps = cuda::keeps_of(bucket.layout)) {
      ++as_keeps;
      const auto want = kept_by({bucket.tensors, bucket.keeps}, 1024, bucket.layout);
      ASSERT_EQ(kept_by(*keeps, 1024, bucket.layout), want) << "round " << round;
    }
  }
  EXPECT_GT(as_keeps, 50);
}

std::shared_ptr<const CompiledMask> conv_mask(Rng& rng, uint64_t out, uint64_t in, uint64_t kernel,
                                              bool rows, bool columns, bool channels_last) {
  MaskSpec spec;
  spec.kind = MaskKind::dims;
  spec.ndim = 4;
  const auto o = static_cast<int64_t>(out), i = static_cast<int64_t>(in),
             k = static_cast<int64_t>(kernel);
  spec.sizes = {o, i, k, k};
  if (channels_last) {
    spec.strides = {k * k * i, 1, k * i, i};
  }
  const Bits row_bits = random_bits(rng, out, 0.5), column_bits = random_bits(rng, in, 0.5);
  if (rows) {
    spec.keep[0] = row_bits;
  }
  if (columns) {
    spec.keep[1] = column_bits;
  }
  return std::make_shared<const CompiledMask>(*compile(spec));
}

// ResNet-50's convolutions, pruned by filters, by channels and by both, in either memory format:
// the device makes all of their plans.
TEST(CudaKeepMasks, resnet50) {
  struct Conv {
    uint64_t out, in, kernel;
  };
  std::vector<Conv> convs = {{64, 3, 7}};
  uint64_t in = 64;
  for (const uint64_t width : {64u, 128u, 256u, 512u}) {
    for (const Conv& c : {Conv{width, in, 1}, Conv{width, width, 3}, Conv{4 * width, width, 1},
                          Conv{4 * width, in, 1}, Conv{width, 4 * width, 1}}) {
      convs.push_back(c);
    }
    in = 4 * width;
  }
  Rng rng(5);
  for (const bool last : {false, true}) {
    for (int which = 1; which < 4; ++which) {
      std::vector<Segment> segments;
      uint64_t at = 0;
      for (const Conv& c : convs) {
        const bool stem = c.in == 3;
        auto mask = conv_mask(rng, c.out, c.in, c.kernel, (which & 1) != 0 || stem,
                              (which & 2) != 0 && !stem, last);
        const uint64_t count = mask->count;
        Segment one{at, count, std::move(mask), {}};
        const auto layout = make_layout({Segment{0, count, one.mask, {}}}, count);
        EXPECT_TRUE(cuda::keeps_of(*layout))
            << c.out << " x " << c.in << " x " << c.kernel << ", which " << which << last;
        segments.push_back(std::move(one));
        at += count;
        segments.push_back({at, 2 * c.out, nullptr, {}});  // of the normalisation
        at += 2 * c.out;
      }
      const auto layout = make_layout(std::move(segments), at);
      const auto keeps = cuda::keeps_of(*layout);
      ASSERT_TRUE(keeps);
      EXPECT_LT(keeps->keeps.size(), layout->count / 200) << "bytes to the device";
    }
  }
}

TEST(CudaKeepMasks, what_the_host_lowers) {
  Rng rng(6);
  const auto one = [](uint64_t count, std::shared_ptr<const CompiledMask> mask) {
    return cuda::keeps_of(*make_layout({Segment{0, count, std::move(mask), {}}}, count));
  };
  MaskSpec spec;
  spec.kind = MaskKind::bytes;
  spec.ndim = 1;
  spec.sizes = {100'000};
  const Bits cells = random_bits(rng, 100'000, 0.5);
  spec.cells = cells;
  EXPECT_FALSE(one(100'000, std::make_shared<const CompiledMask>(*compile(spec)))) << "no rows";
  EXPECT_FALSE(one(900'000, conv_mask(rng, 100'000, 1, 3, true, false, false))) << "rows of 9";
  EXPECT_TRUE(one(4000, conv_mask(rng, 4000, 1, 1, true, false, false))) << "a vector";
  EXPECT_TRUE(cuda::keeps_of(dense_layout(0)));
  EXPECT_TRUE(cuda::keeps_of(dense_layout(1'000'000)));
  EXPECT_FALSE(cuda::keeps_of(dense_layout(uint64_t{1} << 40)));
}

}  // namespace
}  // namespace prunex::test

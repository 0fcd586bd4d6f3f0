// SPDX-License-Identifier: Apache-2.0
// Lowering, pack, audit and unpack of the device, emulated thread by thread on the CPU, against the
// host's scalar kernels and an element-by-element account of what is dropped.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/exact.h"
#include "kernels/pack.h"
#include "tests/cuda/emulate.h"
#include "tests/kernels/mask_reference.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {
namespace {

constexpr std::byte kPoison{0xa5};
constexpr uint32_t kTiles[] = {64, 256, 1000, 4096, 16384};

class CudaMove : public ::testing::Test {
 protected:
  CudaMove() { host::use_version(host::Version::scalar); }
  RestoreIsa restore_;
};

cuda::AuditRecord reference_audit(const Case& c, DType type, const std::byte* buffer,
                                  const Slice& s) {
  cuda::AuditRecord want;
  for (const Segment& segment : c.layout.segments) {
    for (uint64_t i = std::max(segment.offset, s.elem_begin);
         i < std::min(segment.offset + segment.count, s.elem_end); ++i) {
      const std::byte* p = buffer + i * size_of(type);
      if (c.keep[i] != 0 || !differs_from_zero(type, p)) {
        continue;
      }
      (segment.projected ? want.projected : want.lossless) += 1;
      if (!segment.projected) {
        want.first = std::min(want.first, i);
      }
      uint64_t bits = 0;
      std::memcpy(&bits, p, size_of(type));
      const double v = cuda::number_of(type, bits);
      if (std::isfinite(v)) {
        want.energy += v * v;
      } else {
        want.nonfinite += 1;
      }
    }
  }
  return want;
}

void expect_tiles_cover(const cuda::Lowered& plan, uint32_t tile) {
  uint64_t at = 0;
  for (const cuda::Tile& t : plan.tiles) {
    ASSERT_EQ(t.elem, at);
    ASSERT_GE(t.count, 1u);
    ASSERT_LE(t.count, tile);
    at += t.count;
  }
  ASSERT_EQ(at, plan.count);
}

void check_slice(const Case& c, DType type, const std::byte* buffer, const Slice& s,
                 const cuda::Lowered& plan, const Grid& grid, size_t shift) {
  SCOPED_TRACE(::testing::Message()
               << c.name << " " << prunex::name_of(type) << " kept [" << s.kept_begin << ", "
               << s.kept_end << ") shift " << shift << " threads " << grid.threads);
  const size_t size = size_of(type);
  const size_t bytes = (s.kept_end - s.kept_begin) * size;
  const cuda::Range range{s.elem_begin, s.elem_end, s.kept_begin};
  std::vector<std::byte> want(bytes + 1);
  pack(c.layout, type, buffer, s, want.data());
  want.resize(bytes);

  Fenced packed(bytes + shift, Fenced::At::end);
  std::byte* const to = packed.data() + shift;
  emulate_pack(grid, plan, range, type, buffer, to, nullptr);
  ASSERT_TRUE(bytes == 0 || std::memcmp(to, want.data(), bytes) == 0) << "pack";
  std::memset(packed.data(), 0xa5, packed.size());
  cuda::AuditRecord got;
  emulate_pack(grid, plan, range, type, buffer, to, &got);
  ASSERT_TRUE(bytes == 0 || std::memcmp(to, want.data(), bytes) == 0) << "pack with audit";
  const cuda::AuditRecord sum = reference_audit(c, type, buffer, s);
  EXPECT_EQ(got.lossless, sum.lossless);
  EXPECT_EQ(got.projected, sum.projected);
  EXPECT_EQ(got.nonfinite, sum.nonfinite);
  EXPECT_EQ(got.first, sum.first);
  if (std::isfinite(sum.energy)) {  // another order of addition, all terms positive
    EXPECT_NEAR(got.energy, sum.energy, 1e-9 * sum.energy);
  }

  std::vector<std::byte> want_back(c.layout.count * size, kPoison);
  unpack(c.layout, type, want.data(), s, want_back.data());
  Fenced back(c.layout.count * size + shift, Fenced::At::end);
  std::memset(back.data(), 0xa5, back.size());
  emulate_unpack(grid, plan, range, type, to, back.data() + shift);
  ASSERT_TRUE(want_back.empty() ||
              std::memcmp(back.data() + shift, want_back.data(), want_back.size()) == 0)
      << "unpack";
  for (size_t b = 0; b < shift; ++b) {
    ASSERT_EQ(back.data()[b], kPoison) << "unpack wrote before the buffer";
  }
}

TEST_F(CudaMove, every_structure_and_type) {
  Rng rng(1);
  for (const Case& c : all_cases(21)) {
    for (const DType type : kAllTypes) {
      const size_t size = size_of(type);
      const uint32_t tile = kTiles[below(rng, 5)];
      const cuda::Lowered plan = cuda::lower(c.layout, tile);
      expect_tiles_cover(plan, tile);
      Fenced buffer(c.layout.count * size, Fenced::At::end);
      fill(c, type, rng, 5, buffer.data());
      const Grid grid{1 + static_cast<uint32_t>(below(rng, 4)), below(rng, 2) == 0 ? 32u : 256u};
      check_slice(c, type, buffer.data(), cut(c, 0, c.layout.kept), plan, grid, 0);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

// Element-aligned addresses, and such as are no multiple of the element's size.
TEST_F(CudaMove, every_alignment) {
  Rng rng(2);
  for (const Case& c : all_cases(22)) {
    const DType type = kAllTypes[below(rng, 10)];
    const size_t size = size_of(type);
    const cuda::Lowered plan = cuda::lower(c.layout, kTiles[below(rng, 5)]);
    for (size_t shift = 0; shift <= 16; ++shift) {
      Fenced buffer(c.layout.count * size + 16 - shift, Fenced::At::end);
      fill(c, type, rng, 9, buffer.data());
      check_slice(c, type, buffer.data(), cut(c, 0, c.layout.kept), plan, {2, 64},
                  below(rng, 2) == 0 ? below(rng, 17) : below(rng, 16 / size) * size);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

TEST_F(CudaMove, slices_cut_anywhere) {
  Rng rng(3);
  for (const Case& c : all_cases(23)) {
    for (int i = 0; i < 12; ++i) {
      const DType type = kAllTypes[below(rng, 10)];
      const cuda::Lowered plan = cuda::lower(c.layout, kTiles[below(rng, 5)]);
      std::vector<std::byte> buffer(c.layout.count * size_of(type) + 1);
      fill(c, type, rng, 7, buffer.data());
      const uint64_t begin = below(rng, c.layout.kept + 1);
      const uint64_t end = begin + below(rng, c.layout.kept - begin + 1);
      const double where = static_cast<double>(below(rng, 5)) / 4;
      check_slice(c, type, buffer.data(), cut(c, begin, end, where), plan, {2, 32}, 0);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

// Masks as the compiler makes them, several to a buffer, some under the contract `project`.
Case random_bucket(Rng& rng) {
  std::vector<std::shared_ptr<const CompiledMask>> masks;
  std::vector<uint64_t> counts;
  std::vector<uint8_t> projected;
  const uint64_t n = 1 + below(rng, 4);
  for (uint64_t s = 0; s < n; ++s) {
    const auto kind = static_cast<MaskKind>(below(rng, 5));
    testing::OwnedSpec owned =
        testing::random_spec(rng, kind, below(rng, 3) == 0 ? 120'000 : 9'000);
    const Result<CompiledMask> mask = compile(owned.get());
    EXPECT_TRUE(mask) << mask.error().text;
    masks.push_back(below(rng, 5) == 0 ? nullptr : std::make_shared<CompiledMask>(*mask));
    counts.push_back(mask->count);
    projected.push_back(below(rng, 3) == 0 ? 1 : 0);
  }
  Case c = make_case("random", masks, counts);
  for (size_t s = 0; s < c.layout.segments.size(); ++s) {
    c.layout.segments[s].projected = projected[s % projected.size()] != 0;
  }
  return c;
}

TEST_F(CudaMove, random_buckets_of_compiled_masks) {
  Rng rng(4);
  for (int round = 0; round < 150; ++round) {
    const Case c = random_bucket(rng);
    const DType type = kAllTypes[below(rng, 10)];
    const uint32_t tile = kTiles[below(rng, 5)];
    const cuda::Lowered plan = cuda::lower(c.layout, tile);
    expect_tiles_cover(plan, tile);
    std::vector<std::byte> buffer(c.layout.count * size_of(type) + 1);
    fill(c, type, rng, 50, buffer.data());
    check_slice(c, type, buffer.data(), cut(c, 0, c.layout.kept), plan, {5, 64},
                below(rng, 16 / size_of(type)) * size_of(type));
    if (HasFatalFailure()) {
      return;
    }
  }
}

// Bytes without a type, as messages are: the count of dropped elements with any bit set, -0.0's
// sign among them, is the host's exact kernel's.
TEST_F(CudaMove, exact_audit_counts_every_bit) {
  Rng rng(7);
  for (const Case& c : all_cases(24)) {
    if (c.layout.segments.size() != 1 || c.layout.segments[0].mask == nullptr) {
      continue;
    }
    const CompiledMask& mask = *c.layout.segments[0].mask;
    const cuda::Lowered plan = cuda::lower(c.layout, kTiles[below(rng, 5)]);
    for (const DType type : {DType::u8, DType::f16, DType::f32, DType::u32, DType::u64}) {
      const auto log2_size = static_cast<unsigned>(std::countr_zero(size_of(type)));
      std::vector<std::byte> buffer(c.layout.count * size_of(type));
      fill(c, type, rng, 1'000'000, buffer.data());
      for (int i = 0; i < 5; ++i) {  // the top byte alone: a sign, or a part of an integer
        buffer[(below(rng, c.layout.count) + 1) * size_of(type) - 1] = std::byte{0x80};
      }
      const uint64_t begin = below(rng, mask.count + 1),
                     end = begin + below(rng, mask.count - begin + 1);
      const size_t kept = kept_before(mask, end) - kept_before(mask, begin);
      std::vector<std::byte> want(kept * size_of(type) + 1), got(want.size());
      const ExactPack host =
          pack_exact(mask, log2_size, begin, end, buffer.data() + begin * size_of(type),
                     want.data(), want.data() + kept * size_of(type));
      cuda::AuditRecord record;
      emulate_pack({2, 64}, plan, {begin, end, kept_before(mask, begin)}, type, buffer.data(),
                   got.data(), &record, true);
      ASSERT_EQ(got, want) << c.name << " " << prunex::name_of(type);
      EXPECT_EQ(record.lossless, host.nonzero) << c.name << " " << prunex::name_of(type);
    }
  }
}

// Rows longer than a tile's row may be (tile.h, kMaxStride), with and without dropped ones between.
TEST_F(CudaMove, rows_of_more_than_a_million_columns) {
  Rng rng(5);
  constexpr uint64_t kColumns = cuda::kMaxStride + 4321;
  for (const uint64_t gap : {0, 77}) {
    MaskBuilder b(3 + 5 * (kColumns + gap));
    const int32_t p = b.pattern(random_bits(rng, kColumns, 0.4, 3));
    b.panel(3, 2, kColumns + gap, kColumns, p);
    b.panel(3 + 4 * (kColumns + gap), 1, kColumns + gap, kColumns, p);
    const Case c = make_case("long rows", {b.build()}, {3 + 5 * (kColumns + gap)});
    const cuda::Lowered plan = cuda::lower(c.layout, 16384);
    expect_tiles_cover(plan, 16384);
    std::vector<std::byte> buffer(c.layout.count * 2);
    fill(c, DType::bf16, rng, 1000, buffer.data());
    check_slice(c, DType::bf16, buffer.data(), cut(c, 0, c.layout.kept), plan, {7, 256}, 2);
    const Slice middle = cut(c, c.layout.kept / 5, c.layout.kept / 5 + 100'000);
    check_slice(c, DType::bf16, buffer.data(), middle, plan, {7, 256}, 0);
  }
}

// What the device reads besides the data: tiles and pattern words, for ResNet-50's largest layers
// with filters and channels at half density.
TEST_F(CudaMove, index_traffic_is_small) {
  Rng rng(6);
  const auto share = [&](int64_t filters, int64_t channels, int64_t window) {
    testing::OwnedSpec owned;
    owned.spec.ndim = 3;
    owned.spec.sizes = {filters, channels, window};
    owned.keep[0] = random_bits(rng, static_cast<size_t>(filters), 0.5);
    owned.keep[1] = random_bits(rng, static_cast<size_t>(channels), 0.5);
    const auto mask = std::make_shared<CompiledMask>(*compile(owned.get()));
    const Case c = make_case("conv", {mask}, {mask->count});
    const cuda::Lowered plan = cuda::lower(c.layout, 4096);
    const double index = static_cast<double>(plan.tiles.size() * sizeof(cuda::Tile) +
                                             plan.words.size() * sizeof(cuda::Word));
    return index / static_cast<double>(mask->count * sizeof(float));
  };
  EXPECT_LT(share(512, 512, 9), 0.01);
  EXPECT_LT(share(2048, 1024, 1), 0.01);
  EXPECT_LT(share(256, 64, 1), 0.08);
}

}  // namespace
}  // namespace prunex::test

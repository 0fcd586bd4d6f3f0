// SPDX-License-Identifier: Apache-2.0
// Masked pieces against an element-by-element reference, for every instruction set.
#include "plugin/nccl/codec/masked.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/exact.h"
#include "tests/nccl_codec/masks.h"

namespace prunex::nccl::codec {
namespace {

using test::below;
using test::Fenced;
using test::KnownMask;
using test::Rng;
using Bytes = std::vector<std::byte>;

constexpr size_t kSizes[] = {1, 2, 4, 8};
constexpr size_t kBudgets[] = {0,   1,    3,    63,     64,
                               100, 1000, 4097, 262144, std::numeric_limits<size_t>::max()};

struct Piece {
  size_t size;  // of an element
  uint64_t begin, end;
  [[nodiscard]] size_t bytes() const { return (end - begin) * size; }
  [[nodiscard]] uint64_t offset() const { return begin * size; }
};

// Kept elements: any bytes, often none, -0.0 or NaN of some type. Dropped ones: zero.
void fill(Rng& rng, const KnownMask& m, const Piece& p, std::byte* to) {
  std::fill_n(to, p.bytes(), std::byte{});
  for (uint64_t e = p.begin; e < p.end; ++e, to += p.size) {
    if (m.keep[e] == 0) {
      continue;
    }
    switch (below(rng, 8)) {
      case 0:
        break;
      case 1:
        to[p.size - 1] = std::byte{0x80};
        break;
      case 2:
        std::memset(to, 0xff, p.size);
        break;
      default:
        std::generate_n(to, p.size, [&] { return static_cast<std::byte>(rng()); });
    }
  }
}

Bytes reference_payload(const KnownMask& m, const Piece& p, const std::byte* src) {
  Bytes out;
  for (uint64_t e = p.begin; e < p.end; ++e, src += p.size) {
    if (m.keep[e] != 0) {
      out.insert(out.end(), src, src + p.size);
    }
  }
  return out;
}

Encoding encode(const KnownMask& m, const Piece& p, const std::byte* src, std::span<std::byte> out,
                size_t budget) {
  MaskedEncoder encoder;
  encoder.begin(*m.mask, p.size, p.offset(), src, p.bytes(), out);
  Encoding state = Encoding::more;
  size_t steps = 0;
  while (state == Encoding::more) {
    state = encoder.step(budget);
    EXPECT_LE(++steps, p.bytes() / std::max(p.size, budget / p.size * p.size) + 1);
  }
  EXPECT_EQ(encoder.step(budget), state) << "the answer stays";
  return state;
}

Decoding decode(const KnownMask& m, const Piece& p, std::span<const std::byte> in, std::byte* dst,
                size_t budget) {
  MaskedDecoder decoder;
  decoder.begin(*m.mask, p.size, p.offset(), in, dst, p.bytes());
  Decoding state = Decoding::more;
  while (state == Decoding::more) {
    state = decoder.step(budget);
  }
  EXPECT_EQ(decoder.step(budget), state);
  return state;
}

void check_piece(Rng& rng, const KnownMask& m, const Piece& p) {
  SCOPED_TRACE(::testing::Message() << m.name << ", elements of " << p.size << ", [" << p.begin
                                    << ", " << p.end << ") of " << m.mask->count);
  const auto at = below(rng, 2) == 0 ? Fenced::At::end : Fenced::At::begin;
  Fenced src(p.bytes(), at);
  fill(rng, m, p, src.data());
  const Bytes want = reference_payload(m, p, src.data());
  ASSERT_TRUE(masked_applies(*m.mask, p.size, p.offset(), p.bytes()));
  ASSERT_EQ(masked_size(*m.mask, p.size, p.offset(), p.bytes()), want.size());
  Fenced out(want.size(), at);
  std::memset(out.data(), 0xa5, want.size());
  ASSERT_EQ(
      encode(m, p, src.data(), {out.data(), out.size()}, kBudgets[below(rng, std::size(kBudgets))]),
      Encoding::done);
  ASSERT_TRUE(std::equal(want.begin(), want.end(), out.data()));
  Fenced dst(p.bytes(), at);
  std::memset(dst.data(), 0xa5, p.bytes());
  ASSERT_EQ(
      decode(m, p, {out.data(), out.size()}, dst.data(), kBudgets[below(rng, std::size(kBudgets))]),
      Decoding::done);
  ASSERT_EQ(std::memcmp(dst.data(), src.data(), p.bytes()), 0);
}

class Masked : public ::testing::TestWithParam<host::Version> {
 protected:
  void SetUp() override { host::use_version(GetParam()); }
  test::RestoreIsa restore_;
};

INSTANTIATE_TEST_SUITE_P(Isa, Masked, ::testing::ValuesIn(test::versions()),
                         [](const auto& p) { return std::string(test::name_of(p.param)); });

void check_mask(Rng& rng, const KnownMask& m, int pieces) {
  const uint64_t count = m.mask->count;
  for (const size_t size : kSizes) {
    check_piece(rng, m, {size, 0, count});
    for (int i = 0; i < pieces; ++i) {
      const uint64_t a = below(rng, count + 1), b = below(rng, count + 1);
      check_piece(rng, m, {size, std::min(a, b), std::max(a, b)});
    }
    if (::testing::Test::HasFatalFailure()) {
      return;
    }
  }
}

TEST_P(Masked, round_trips_of_every_structure) {
  Rng rng(21);
  for (const KnownMask& m : test::built_masks(22)) {
    check_mask(rng, m, 12);
  }
}

TEST_P(Masked, round_trips_of_every_kind) {
  Rng rng(23);
  for (const KnownMask& m : test::random_masks(24, 12, 5000)) {
    check_mask(rng, m, 6);
  }
}

TEST_P(Masked, consecutive_pieces_make_the_whole) {
  Rng rng(25);
  const KnownMask m = test::pruned_weight(26, 700, 1001, 0.5);
  for (const size_t size : kSizes) {
    for (uint64_t at = 0; at < m.mask->count;) {
      const uint64_t n = std::min(m.mask->count - at, 1 + below(rng, (size_t{1} << 20) / size));
      check_piece(rng, m, {size, at, at + n});
      at += n;
    }
  }
  check_piece(rng, m, {1, 12345, 12345 + (1 << 19)});
  const KnownMask big = test::pruned_weight(27, 1024, 1024, 0.5);
  check_piece(rng, big, {4, 262144, 262144 + 262144});
  check_piece(rng, big, {8, 917504, 1048576});
}

// Every dropped element of a piece, one bit at a time; and none outside of it.
TEST_P(Masked, one_dirty_bit_anywhere_is_found) {
  Rng rng(28);
  for (const KnownMask& m : test::built_masks(29)) {
    if (m.mask->count > 3000) {
      continue;
    }
    for (const size_t size : kSizes) {
      const uint64_t a = below(rng, m.mask->count + 1) / 3;
      const Piece p{size, a, m.mask->count - below(rng, m.mask->count - a + 1) / 4};
      Bytes src(p.bytes());
      fill(rng, m, p, src.data());
      Bytes out(p.bytes());
      for (uint64_t e = p.begin; e < p.end; ++e) {
        if (m.keep[e] != 0) {
          continue;
        }
        // The top bit alone is -0.0 of a float.
        const uint64_t bit = below(rng, 3) == 0 ? size * 8 - 1 : below(rng, size * 8);
        std::byte& dirty = src[(e - p.begin) * size + bit / 8];
        dirty = static_cast<std::byte>(1u << (bit % 8));
        ASSERT_EQ(encode(m, p, src.data(), out, kBudgets[1 + below(rng, std::size(kBudgets) - 1)]),
                  Encoding::violated)
            << m.name << " size " << size << " element " << e << " bit " << bit;
        dirty = {};
      }
      ASSERT_EQ(encode(m, p, src.data(), out, 1000), Encoding::done);
    }
  }
}

TEST_P(Masked, dirt_beside_the_piece_does_not_matter) {
  Rng rng(30);
  for (const KnownMask& m : test::random_masks(31, 4, 2000)) {
    for (const size_t size : kSizes) {
      const uint64_t a = below(rng, m.mask->count + 1), b = below(rng, m.mask->count + 1);
      const Piece p{size, std::min(a, b), std::max(a, b)};
      Bytes tensor(m.mask->count * size, std::byte{0xff});
      fill(rng, m, p, tensor.data() + p.offset());
      Bytes out(p.bytes() + 64, std::byte{0xa5});
      ASSERT_EQ(encode(m, p, tensor.data() + p.offset(), out, 999), Encoding::done);
      const size_t n = masked_size(*m.mask, size, p.offset(), p.bytes());
      Bytes back(m.mask->count * size, std::byte{0xff});
      ASSERT_EQ(decode(m, p, std::span(out).first(n), back.data() + p.offset(), 999),
                Decoding::done);
      ASSERT_TRUE(back == tensor);
      for (size_t i = n; i < out.size(); ++i) {
        ASSERT_EQ(out[i], std::byte{0xa5}) << "wrote past the payload";
      }
    }
  }
}

TEST_P(Masked, any_alignment) {
  Rng rng(32);
  const KnownMask m = test::pruned_weight(33, 20, 333, 0.4);
  for (size_t skew = 0; skew < 65; ++skew) {
    const Piece p{kSizes[skew % 4], skew * 3, m.mask->count - skew};
    Bytes src(p.bytes() + 65), out(p.bytes() + 65), dst(p.bytes() + 65, std::byte{0xa5});
    fill(rng, m, p, src.data() + skew);
    const auto into =
        std::span(out).subspan(64 - skew, masked_size(*m.mask, p.size, p.offset(), p.bytes()));
    ASSERT_EQ(encode(m, p, src.data() + skew, into, 1111), Encoding::done);
    ASSERT_EQ(decode(m, p, into, dst.data() + (skew * 7) % 65, 2222), Decoding::done);
    ASSERT_EQ(std::memcmp(dst.data() + (skew * 7) % 65, src.data() + skew, p.bytes()), 0);
  }
}

TEST_P(Masked, a_step_keeps_its_budget) {
  const KnownMask m = test::pruned_weight(34, 1000, 500, 0.5);
  const Piece p{2, 0, m.mask->count};
  Bytes src(p.bytes()), out(p.bytes()), dst(p.bytes(), std::byte{0xa5});
  MaskedEncoder encoder;
  encoder.begin(*m.mask, 2, 0, src.data(), src.size(), out);
  size_t steps = 1;
  while (encoder.step(100001) == Encoding::more) {
    ++steps;
  }
  EXPECT_EQ(steps, 10u) << "100000 bytes each: whole elements";
  MaskedDecoder decoder;
  decoder.begin(*m.mask, 2, 0, std::span(out).first(encoder.size()), dst.data(), dst.size());
  for (size_t at = 100000; at < 1000000; at += 100000) {
    ASSERT_EQ(decoder.step(100001), Decoding::more);
    ASSERT_EQ(dst[at - 1], std::byte{});
    ASSERT_EQ(dst[at], std::byte{0xa5});
  }
  ASSERT_EQ(decoder.step(100001), Decoding::done);
  EXPECT_TRUE(dst == src);
}

TEST(MaskedPiece, applies_only_to_whole_elements_inside) {
  const KnownMask m = test::pruned_weight(35, 10, 10, 0.5);
  const CompiledMask& mask = *m.mask;
  for (const size_t size : {1u, 2u, 4u, 8u}) {
    EXPECT_TRUE(masked_applies(mask, size, 0, 100 * size));
    EXPECT_TRUE(masked_applies(mask, size, 100 * size, 0));
    EXPECT_FALSE(masked_applies(mask, size, 0, 101 * size));
    EXPECT_FALSE(masked_applies(mask, size, 101 * size, 0));
    EXPECT_FALSE(masked_applies(mask, size, ~uint64_t{0} / size * size, 2 * size));
    EXPECT_FALSE(masked_applies(mask, size, 0, ~size_t{0} / size * size));
    EXPECT_EQ(masked_applies(mask, size, 1, size), size == 1);
    EXPECT_EQ(masked_applies(mask, size, 0, size + 1), size == 1);
  }
  for (const size_t size : {0u, 3u, 16u}) {
    EXPECT_FALSE(masked_applies(mask, size, 0, 0));
  }
}

TEST(MaskedPiece, what_does_not_fit_is_refused_before_anything_is_written) {
  const KnownMask m = test::pruned_weight(36, 10, 50, 0.5);
  const Piece p{4, 7, 490};
  Bytes src(p.bytes()), out(p.bytes(), std::byte{0xa5}), dst(p.bytes(), std::byte{0xa5});
  const size_t n = masked_size(*m.mask, 4, p.offset(), p.bytes());
  EXPECT_EQ(encode(m, p, src.data(), std::span(out).first(n - 1), 64), Encoding::does_not_pay);
  EXPECT_TRUE(out == Bytes(out.size(), std::byte{0xa5}));
  for (const size_t wrong : {size_t{0}, n - 1, n + 1, n - 4, n + 4, out.size()}) {
    EXPECT_EQ(decode(m, p, std::span(out).first(wrong), dst.data(), 64), Decoding::corrupt);
  }
  MaskedDecoder decoder;
  decoder.begin(*m.mask, 4, 4 * 400, std::span(out).first(n), dst.data(), 4 * 101);
  EXPECT_EQ(decoder.step(64), Decoding::corrupt);
  decoder.begin(*m.mask, 4, 2, std::span(out).first(n), dst.data(), p.bytes());
  EXPECT_EQ(decoder.step(64), Decoding::corrupt);
  EXPECT_TRUE(dst == Bytes(dst.size(), std::byte{0xa5}));
  MaskedEncoder encoder;
  encoder.begin(*m.mask, 4, 4 * 400, src.data(), 4 * 101, out);
  EXPECT_EQ(encoder.step(64), Encoding::does_not_pay);
  EXPECT_EQ(MaskedEncoder().step(1), Encoding::does_not_pay);
  EXPECT_EQ(MaskedDecoder().step(1), Decoding::corrupt);
}

TEST(MaskedPiece, kept_before_counts) {
  for (const KnownMask& m : test::built_masks(37)) {
    uint64_t kept = 0;
    for (uint64_t e = 0; e <= m.mask->count; ++e) {
      ASSERT_EQ(kept_before(*m.mask, e), kept) << m.name << " " << e;
      kept += e < m.mask->count ? m.keep[e] : 0;
    }
  }
}

}  // namespace
}  // namespace prunex::nccl::codec

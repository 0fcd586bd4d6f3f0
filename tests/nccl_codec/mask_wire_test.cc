// SPDX-License-Identifier: Apache-2.0
// Masks on the wire: what compile() makes comes back equal, and nothing that arrives is trusted.
#include "plugin/nccl/codec/mask_wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "plugin/nccl/codec/frame.h"
#include "plugin/nccl/codec/masked.h"
#include "tests/allocated/allocated.h"
#include "tests/nccl_codec/masks.h"

namespace prunex::nccl::codec {
namespace {

using test::KnownMask;
using test::Rng;
using Bytes = std::vector<std::byte>;

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

struct Decoded {
  Decoding state = Decoding::more;
  CompiledMask mask;
  std::string fault;
  uint64_t found = 0;
  size_t steps = 0;
};

Decoded decode(std::span<const std::byte> in, uint64_t digest, size_t budget = kMost) {
  MaskDefinitionDecoder decoder;
  decoder.begin(in, digest);
  Decoded d;
  while (d.state == Decoding::more) {
    d.state = decoder.step(budget);
    ++d.steps;
  }
  EXPECT_EQ(decoder.step(budget), d.state);
  d.found = decoder.found_digest();
  if (d.state == Decoding::done) {
    d.mask = decoder.take();
  } else {
    d.fault = decoder.fault() != nullptr ? decoder.fault() : "";
    EXPECT_GT(d.fault.size(), 5u);
  }
  return d;
}

void expect_equal(const CompiledMask& a, const CompiledMask& b) {
  EXPECT_EQ(a.count, b.count);
  EXPECT_EQ(a.kept, b.kept);
  EXPECT_EQ(a.digest, b.digest);
  ASSERT_EQ(a.panels.size(), b.panels.size());
  for (size_t i = 0; i < a.panels.size(); ++i) {
    const Panel &p = a.panels[i], &q = b.panels[i];
    EXPECT_EQ(p.offset, q.offset);
    EXPECT_EQ(p.rows, q.rows);
    EXPECT_EQ(p.row_stride, q.row_stride);
    EXPECT_EQ(p.columns, q.columns);
    EXPECT_EQ(p.pattern, q.pattern);
    EXPECT_EQ(p.kept_before, q.kept_before);
  }
  ASSERT_EQ(a.patterns.size(), b.patterns.size());
  for (size_t i = 0; i < a.patterns.size(); ++i) {
    const Pattern &p = a.patterns[i], &q = b.patterns[i];
    EXPECT_EQ(p.columns, q.columns);
    EXPECT_EQ(p.kept, q.kept);
    EXPECT_TRUE(p.bits == q.bits);
    EXPECT_TRUE(p.rank == q.rank);
    EXPECT_EQ(p.wide, q.wide);
    EXPECT_EQ(p.runs.size(), q.runs.size());
  }
}

TEST(MaskWire, every_kind_comes_back_equal) {
  const size_t budgets[] = {0, 1, 5000, kMost};
  size_t i = 0;
  for (const KnownMask& m : test::random_masks(41, 40, 20000)) {
    SCOPED_TRACE(m.name);
    const auto bytes = encode_mask(*m.mask);
    ASSERT_TRUE(bytes.has_value());
    const Decoded d = decode(*bytes, m.mask->digest, budgets[i++ % 4]);
    ASSERT_EQ(d.state, Decoding::done) << d.fault;
    expect_equal(d.mask, *m.mask);
    testing::expect_invariants(d.mask);
  }
}

// Forms that compile() does not make keep the same elements, and the digest is the one of those.
TEST(MaskWire, every_structure_keeps_the_same) {
  size_t done = 0;
  for (const KnownMask& m : test::built_masks(42)) {
    const bool proper = std::ranges::all_of(m.mask->patterns, [](auto& p) { return p.kept > 0; });
    testing::OwnedSpec same;
    same.spec.kind = MaskKind::bytes;
    same.spec.ndim = 1;
    same.spec.sizes = {static_cast<int64_t>(m.keep.size())};
    same.cells = m.keep;
    const uint64_t digest = compile(same.get())->digest;
    const auto bytes = encode_mask(*m.mask);
    ASSERT_TRUE(bytes.has_value());
    const Decoded d = decode(*bytes, digest);
    ASSERT_EQ(d.state, proper ? Decoding::done : Decoding::corrupt) << m.name << ": " << d.fault;
    if (proper) {
      EXPECT_TRUE(test::expand_mask(d.mask) == m.keep) << m.name;
      EXPECT_EQ(d.mask.kept, m.mask->kept);
      ++done;
    }
  }
  EXPECT_GT(done, 20u);
}

TEST(MaskWire, structured_masks_are_compact) {
  const KnownMask m = test::pruned_weight(43, 4096, 4096, 0.4);
  const auto bytes = encode_mask(*m.mask);
  ASSERT_TRUE(bytes.has_value());
  EXPECT_LE(bytes->size(), 512u + 4096 * 5) << "one bitmap and a panel for each run of rows";
}

KnownMask random_bytes(size_t count) {
  Rng rng(44);
  testing::OwnedSpec owned;
  owned.spec.kind = MaskKind::bytes;
  owned.spec.ndim = 1;
  owned.spec.sizes = {static_cast<int64_t>(count)};
  owned.cells = test::random_bits(rng, count, 0.5);
  return test::compiled("bytes", owned);
}

TEST(MaskWire, size_is_bounded) {
  const auto fits = encode_mask(*random_bytes((kMaxMaskDefinition - 64) * 8).mask);
  ASSERT_TRUE(fits.has_value());
  EXPECT_LE(fits->size(), kMaxMaskDefinition);
  const KnownMask more = random_bytes(kMaxMaskDefinition * 8 + 64);
  (void)test::take_allocated();
  EXPECT_FALSE(encode_mask(*more.mask).has_value());
  EXPECT_LE(test::take_allocated(), 8 * kMaxMaskDefinition);
  // Many panels.
  testing::OwnedSpec owned;
  owned.spec.kind = MaskKind::ranges;
  owned.spec.ndim = 1;
  owned.spec.sizes = {int64_t{1} << 40};
  for (uint64_t at = 0; at < 1000000; ++at) {
    owned.ranges.push_back({at << 20, 1000});
  }
  const KnownMask ranges =
      test::KnownMask{"ranges", std::make_shared<const CompiledMask>(*compile(owned.get())), {}};
  (void)test::take_allocated();
  EXPECT_FALSE(encode_mask(*ranges.mask).has_value());
  EXPECT_LE(test::take_allocated(), 8 * kMaxMaskDefinition);
  owned.ranges.resize(40000);
  const auto mask = compile(owned.get());
  const auto bytes = encode_mask(*mask);
  ASSERT_TRUE(bytes.has_value());
  const Decoded d = decode(*bytes, mask->digest, size_t{256} << 10);
  ASSERT_EQ(d.state, Decoding::done) << d.fault;
  EXPECT_GE(d.steps, 40000u / 256) << "in small steps";
  CompiledMask huge;
  huge.count = kMaxMaskElements + 1;
  EXPECT_FALSE(encode_mask(huge).has_value());
}

TEST(MaskWire, nothing_and_everything) {
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{77}, kMaxMaskElements}) {
    for (const bool all : {false, true}) {
      testing::OwnedSpec owned;
      owned.spec.kind = MaskKind::ranges;
      owned.spec.ndim = 1;
      owned.spec.sizes = {static_cast<int64_t>(count)};
      if (all && count > 0) {
        owned.ranges = {{0, count}};
      }
      const auto mask = compile(owned.get());
      ASSERT_TRUE(mask.has_value());
      const auto bytes = encode_mask(*mask);
      ASSERT_TRUE(bytes.has_value());
      const Decoded d = decode(*bytes, mask->digest);
      ASSERT_EQ(d.state, Decoding::done) << d.fault;
      expect_equal(d.mask, *mask);
    }
  }
}

TEST(MaskWire, another_digest_is_corrupt) {
  const KnownMask m = test::pruned_weight(45, 30, 70, 0.5);
  const auto bytes = encode_mask(*m.mask);
  const Decoded d = decode(*bytes, m.mask->digest ^ 1);
  EXPECT_EQ(d.state, Decoding::corrupt);
  EXPECT_NE(d.fault.find("digest"), std::string::npos);
  EXPECT_EQ(d.found, m.mask->digest) << "for the message";
}

TEST(MaskWire, no_truncation_and_no_flipped_bit_changes_a_mask) {
  std::vector<KnownMask> masks = test::random_masks(46, 4, 700);
  masks.push_back(test::pruned_weight(47, 30, 70, 0.5));
  for (const KnownMask& m : masks) {
    const Bytes good = *encode_mask(*m.mask);
    for (size_t n = 0; n < good.size(); ++n) {
      const Bytes part(good.begin(), good.begin() + static_cast<long>(n));
      EXPECT_EQ(decode(part, m.mask->digest).state, Decoding::corrupt) << m.name << " " << n;
    }
    Bytes more = good;
    more.push_back({});
    EXPECT_EQ(decode(more, m.mask->digest).state, Decoding::corrupt);
    for (size_t bit = 0; bit < good.size() * 8; ++bit) {
      Bytes flipped = good;
      flipped[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      // The stride of a single row means nothing; any other flip is found.
      const Decoded d = decode(flipped, m.mask->digest);
      EXPECT_TRUE(d.state == Decoding::corrupt || test::expand_mask(d.mask) == m.keep)
          << m.name << " " << bit;
    }
  }
}

Bytes numbers(std::initializer_list<uint64_t> values) {
  Bytes out;
  for (uint64_t v : values) {
    for (; v >= 0x80; v >>= 7) {
      out.push_back(static_cast<std::byte>(v | 0x80));
    }
    out.push_back(static_cast<std::byte>(v));
  }
  return out;
}
Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
Bytes word(uint64_t v) {
  Bytes out(sizeof v);
  std::memcpy(out.data(), &v, sizeof v);
  return out;
}

// What only a hostile or broken peer sends. All have some digest, so only the fault may stop them.
TEST(MaskWire, hostile_definitions_are_refused) {
  constexpr uint64_t kE = kMaxMaskElements;
  const Bytes pattern4 = numbers({4}) + word(0b0101);
  const struct {
    const char* what;
    Bytes bytes;
    const char* fault;
  } cases[] = {
      {"nothing", {}, "counts"},
      {"count alone", numbers({5}), "counts"},
      {"too many elements", numbers({kE + 1, 0, 0}), "more elements"},
      {"number of 65 bits", Bytes(9, std::byte{0xff}) + numbers({2, 0, 0}), "counts"},
      {"number without end", Bytes(100, std::byte{0x80}), "counts"},
      {"patterns without bytes", numbers({kE, uint64_t{1} << 60, 0}), "bytes for them"},
      {"panels without bytes", numbers({kE, 0, kMost}), "bytes for them"},
      {"one panel too many", numbers({10, 0, 2, 0, 0, 5}), "bytes for them"},
      {"no columns", numbers({10, 1, 0, 0}) + word(0), "columns"},
      {"pattern longer than the tensor", numbers({3, 1, 0}) + pattern4, "columns"},
      {"bitmap cut off", numbers({kE, 1, 0, kE}) + word(1), "cut off"},
      {"bits past the end", numbers({10, 1, 0, 4}) + word(0b10101), "past its last"},
      {"empty pattern", numbers({10, 1, 0, 4}) + word(0), "keeps nothing"},
      {"no such pattern", numbers({10, 1, 1}) + pattern4 + numbers({3, 0, 1, 0}), "not there"},
      {"no pattern at all", numbers({10, 0, 1, 2, 0, 1, 0}), "not there"},
      {"form of 2^64", numbers({10, 0, 1, kMost, 0, 1, 0}), "not there"},
      {"begins past the end", numbers({10, 0, 1, 0, 11, 1}), "begins past"},
      {"ends past the end", numbers({10, 0, 1, 0, 9, 2}), "past the end"},
      {"at the end", numbers({10, 0, 1, 0, 10, 1}), "past the end"},
      {"row of 2^64", numbers({10, 0, 1, 0, 0, kMost}), "longer than"},
      {"no column", numbers({10, 0, 1, 0, 0, 0}), "without rows"},
      {"no column, no stride", numbers({10, 0, 1, 1, 0, 0, 5, 0}), "without rows"},
      {"no row", numbers({10, 0, 1, 1, 0, 5, 0, 0}), "without rows"},
      {"2^60 rows", numbers({10, 1, 1}) + pattern4 + numbers({2, 0, uint64_t{1} << 60, 0}),
       "past the end"},
      {"rows * stride = 2^64", numbers({kE, 0, 1, 1, 0, 1, (uint64_t{1} << 32) + 1, ~uint32_t{0}}),
       "past the end"},
      {"one row too many", numbers({11, 1, 1}) + pattern4 + numbers({2, 0, 3, 0}), "past the end"},
      {"stride of 2^64", numbers({10, 0, 1, 1, 0, 5, 2, kMost - 4}), "longer than"},
      {"second overlaps", numbers({10, 0, 2, 0, 4, 6, 0, 1, 1}), "begins past"},
      {"bytes behind", numbers({10, 0, 1, 0, 0, 5, 7}), "behind"},
  };
  for (const auto& c : cases) {
    (void)test::take_allocated();
    const Decoded d = decode(c.bytes, 0);
    EXPECT_EQ(d.state, Decoding::corrupt) << c.what;
    EXPECT_NE(d.fault.find(c.fault), std::string::npos) << c.what << ": " << d.fault;
    EXPECT_LE(test::take_allocated(), 4096u + 64 * c.bytes.size()) << c.what;
  }
  const Decoded d = decode(Bytes(kMaxMaskDefinition + 1), 0);
  EXPECT_EQ(d.state, Decoding::corrupt);
  EXPECT_NE(d.fault.find("more bytes"), std::string::npos);
}

// 2^60 elements in rows that no memory could list, yet a good mask: small and quick.
TEST(MaskWire, gigantic_tensors_take_no_memory) {
  const uint64_t rows = uint64_t{1} << 56;
  const Bytes bytes =
      numbers({kMaxMaskElements, 1, 1}) + numbers({16}) + word(0x8001) + numbers({2, 0, rows, 0});
  (void)test::take_allocated();
  EXPECT_NE(decode(bytes, 0).fault.find("digest"), std::string::npos);
  EXPECT_LE(test::take_allocated(), 4096u);
}

TEST(MaskWire, memory_is_bounded_by_the_input) {
  // As many panels as fit, as many patterns as fit, and one pattern of as many runs as fit.
  Bytes panels = numbers({kMaxMaskElements, 0, 87000});
  for (int i = 0; i < 87000; ++i) {
    panels.insert(panels.end(), {std::byte{0}, std::byte{1}, std::byte{1}});
  }
  Bytes patterns = numbers({kMaxMaskElements, 29000, 0});
  for (int i = 0; i < 29000; ++i) {
    patterns.push_back(std::byte{64});
    const Bytes bits = word(0xffff7fffbfffdfff);
    patterns.insert(patterns.end(), bits.begin(), bits.end());
  }
  Bytes runs = numbers({kMaxMaskElements, 1, 0, 32000 * 64});
  for (int i = 0; i < 32000; ++i) {
    const Bytes bits = word(0xffff7fffbfffdfff);
    runs.insert(runs.end(), bits.begin(), bits.end());
  }
  for (const Bytes* in : {&panels, &patterns, &runs}) {
    ASSERT_LE(in->size(), kMaxMaskDefinition);
    MaskDefinitionDecoder decoder;
    (void)test::take_allocated();
    decoder.begin(*in, 0);
    while (decoder.step(size_t{256} << 10) == Decoding::more) {
    }
    EXPECT_LE(test::take_allocated(), MaskDefinitionDecoder::kDecodedPerByte * in->size());
    EXPECT_NE(std::string(decoder.fault()).find("digest"), std::string::npos);
  }
}

// What the receiver does with it: a decoded mask decodes pieces that the original one encoded.
TEST(MaskWire, a_decoded_mask_serves) {
  Rng rng(48);
  for (const KnownMask& m : test::random_masks(49, 6, 3000)) {
    const Decoded d = decode(*encode_mask(*m.mask), m.mask->digest);
    ASSERT_EQ(d.state, Decoding::done);
    const uint64_t begin = test::below(rng, m.mask->count + 1) / 2;
    std::vector<uint32_t> src, dst(m.mask->count - begin, 0xa5a5a5a5);
    for (uint64_t e = begin; e < m.mask->count; ++e) {
      src.push_back(m.keep[e] != 0 ? static_cast<uint32_t>(rng()) : 0);
    }
    const size_t bytes = src.size() * 4;
    Bytes out(bytes);
    MaskedEncoder encoder;
    encoder.begin(*m.mask, 4, begin * 4, src.data(), bytes, out);
    ASSERT_EQ(encoder.step(kMost), Encoding::done);
    MaskedDecoder decoder;
    decoder.begin(d.mask, 4, begin * 4, std::span(out).first(encoder.size()), dst.data(), bytes);
    ASSERT_EQ(decoder.step(kMost), Decoding::done);
    EXPECT_TRUE(src == dst);
  }
}

}  // namespace
}  // namespace prunex::nccl::codec

// SPDX-License-Identifier: Apache-2.0
// Compiled masks against what the spec says element by element.
#include <gtest/gtest.h>

#include "kernels/pattern.h"
#include "tests/kernels/mask_reference.h"

namespace prunex::testing {
namespace {

// The same kept elements as a vector of bytes in memory order.
OwnedSpec as_bytes(const std::vector<uint8_t>& kept) {
  OwnedSpec owned;
  owned.spec.kind = MaskKind::bytes;
  owned.spec.ndim = 1;
  owned.spec.sizes[0] = static_cast<int64_t>(kept.size());
  owned.cells = kept;
  return owned;
}

OwnedSpec as_ranges(const std::vector<uint8_t>& kept) {
  OwnedSpec owned = as_bytes(kept);
  owned.spec.kind = MaskKind::ranges;
  for (uint64_t i = 0; i < kept.size(); ++i) {
    if (kept[i] != 0) {
      owned.ranges.push_back({i, 1});  // touching ranges are one run to the digest
    }
  }
  return owned;
}

// `kept` in an arbitrary shape and dimension order.
OwnedSpec as_shape(Random& random, const std::vector<uint8_t>& kept) {
  OwnedSpec owned;
  MaskSpec& spec = owned.spec;
  spec.kind = MaskKind::bytes;
  spec.ndim = 4;
  auto rest = static_cast<int64_t>(kept.size());
  std::vector<size_t> order{0, 1, 2, 3};
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t d : order) {
    int64_t size = static_cast<int64_t>(1 + below(random, 8));
    size = rest % size == 0 ? size : 1;
    spec.sizes[d] = d == order.back() ? rest : size;
    rest /= size;
  }
  std::shuffle(order.begin(), order.end(), random);
  set_strides(spec, order);
  owned.cells.resize(kept.size());
  std::array<int64_t, 4> index{};
  for (uint8_t& cell : owned.cells) {
    int64_t at = 0;
    for (size_t d = 0; d < 4; ++d) {
      at += index[d] * spec.strides[d];
    }
    cell = kept[static_cast<size_t>(at)];
    for (size_t d = 4; d-- > 0 && ++index[d] == spec.sizes[d];) {
      index[d] = 0;
    }
  }
  return owned;
}

void expect_matches(const CompiledMask& mask, const std::vector<uint8_t>& kept) {
  ASSERT_EQ(mask.count, kept.size());
  uint64_t number = 0;
  for (uint64_t i = 0; i < kept.size(); ++i) {
    ASSERT_EQ(keeps(mask, i), kept[i] != 0) << "element " << i;
    if (kept[i] != 0) {
      ASSERT_EQ(select_kept(mask, number), i);
      ++number;
    }
  }
  EXPECT_EQ(mask.kept, number);
  EXPECT_FALSE(keeps(mask, mask.count));
  EXPECT_FALSE(keeps(mask, ~uint64_t{0}));
}

struct Case {
  MaskKind kind;
  uint64_t limit;  // elements
  int rounds;
};

class MaskProperty : public ::testing::TestWithParam<Case> {};

TEST_P(MaskProperty, matches_the_reference) {
  const Case& param = GetParam();
  for (int round = 0; round < param.rounds; ++round) {
    SCOPED_TRACE(round);
    Random random(static_cast<uint64_t>(round) * 8 + static_cast<uint64_t>(param.kind));
    OwnedSpec owned = random_spec(random, param.kind, param.limit);
    const std::vector<uint8_t> kept = reference_keeps(owned.get());
    const auto total = std::ranges::count_if(kept, [](uint8_t k) { return k != 0; });
    owned.spec.declared_kept = below(random, 2) == 0 ? total : -1;

    const Result<CompiledMask> mask = compile(owned.get());
    ASSERT_TRUE(mask) << mask.error().text;
    expect_invariants(*mask);
    expect_matches(*mask, kept);

    for (OwnedSpec other : {as_bytes(kept), as_ranges(kept), as_shape(random, kept)}) {
      const Result<CompiledMask> same = compile(other.get());
      ASSERT_TRUE(same) << same.error().text;
      expect_invariants(*same);
      expect_matches(*same, kept);
      EXPECT_EQ(same->digest, mask->digest);
    }
    if (!kept.empty()) {
      std::vector<uint8_t> changed = kept;
      uint8_t& one = changed[below(random, kept.size())];
      one = one == 0 ? 1 : 0;
      OwnedSpec other = as_bytes(changed);
      EXPECT_NE(compile(other.get())->digest, mask->digest);
    }
    if (HasFailure()) {
      return;
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const MaskKind kind :
       {MaskKind::dims, MaskKind::blocks, MaskKind::nm, MaskKind::ranges, MaskKind::bytes}) {
    out.push_back({kind, 12, 300});
    out.push_back({kind, 700, 400});
    out.push_back({kind, 20'000, 40});
    out.push_back({kind, 200'000, 16});
  }
  return out;
}

std::string case_name(const ::testing::TestParamInfo<Case>& test) {
  constexpr const char* kNames[] = {"dims", "blocks", "nm", "ranges", "bytes"};
  return strf("%s_%d", kNames[static_cast<size_t>(test.param.kind)],
              static_cast<int>(test.param.limit));
}

INSTANTIATE_TEST_SUITE_P(Kinds, MaskProperty, ::testing::ValuesIn(cases()), case_name);

// All masks of a few elements: as many digests.
TEST(MaskDigest, tells_all_small_masks_apart) {
  std::vector<uint64_t> digests;
  for (uint64_t count = 0; count <= 11; ++count) {
    for (uint64_t bits = 0; bits < uint64_t{1} << count; ++bits) {
      std::vector<uint8_t> kept;
      for (uint64_t i = 0; i < count; ++i) {
        kept.push_back(static_cast<uint8_t>(bits >> i & 1));
      }
      digests.push_back(compile(as_bytes(kept).get())->digest);
    }
  }
  std::ranges::sort(digests);
  EXPECT_EQ(std::ranges::adjacent_find(digests), digests.end());
}

TEST(MaskDigest, tells_places_apart_however_far) {
  std::vector<uint64_t> digests;
  for (int bit = 0; bit < 60; ++bit) {
    OwnedSpec owned;
    owned.spec.kind = MaskKind::ranges;
    owned.spec.ndim = 1;
    owned.spec.sizes[0] = INT64_MAX;
    owned.ranges = {{uint64_t{1} << bit, 3}};
    digests.push_back(compile(owned.get())->digest);
  }
  std::ranges::sort(digests);
  EXPECT_EQ(std::ranges::adjacent_find(digests), digests.end());
}

// A fixed value: a digest crosses the wire between builds and machines.
TEST(MaskDigest, is_the_same_everywhere) {
  OwnedSpec owned;
  owned.spec.ndim = 2;
  owned.spec.sizes = {6, 5};
  owned.keep[0] = {1, 0, 1, 1, 0, 1};
  owned.keep[1] = {0, 1, 1, 0, 1};
  EXPECT_EQ(compile(owned.get())->digest, 11755894821358238162u);
}

}  // namespace
}  // namespace prunex::testing

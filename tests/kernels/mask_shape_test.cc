// SPDX-License-Identifier: Apache-2.0
// Named shapes of real models, and what they compile to.
#include <gtest/gtest.h>

#include "tests/kernels/mask_reference.h"

namespace prunex::testing {
namespace {

OwnedSpec make_spec(std::vector<int64_t> sizes, MaskKind kind = MaskKind::dims) {
  OwnedSpec owned;
  owned.spec.kind = kind;
  owned.spec.ndim = static_cast<int>(sizes.size());
  std::ranges::copy(sizes, owned.spec.sizes.begin());
  return owned;
}

// n bytes, of which those are set whose index divided by `period` leaves less than `kept`.
std::vector<uint8_t> every(uint64_t n, uint64_t period, uint64_t kept) {
  std::vector<uint8_t> keep(n);
  for (uint64_t i = 0; i < n; ++i) {
    keep[i] = i % period < kept ? 1 : 0;
  }
  return keep;
}

CompiledMask compiled(OwnedSpec& owned) {
  Result<CompiledMask> mask = compile(owned.get());
  EXPECT_TRUE(mask) << (mask ? "" : mask.error().text);
  if (!mask) {
    return {};
  }
  expect_invariants(*mask);
  return *std::move(mask);
}

size_t bytes_of(const CompiledMask& mask) {
  size_t bytes = mask.panels.size() * sizeof(Panel);
  for (const Pattern& pattern : mask.patterns) {
    bytes += sizeof(Pattern) + 16 * pattern.bits.size() + sizeof(KeptRange) * pattern.runs.size();
  }
  return bytes;
}

TEST(MaskShape, filters_and_channels_share_one_pattern) {
  OwnedSpec conv = make_spec({64, 128, 3, 3});
  conv.keep[0] = every(64, 4, 2);
  conv.keep[1] = every(128, 2, 1);
  const CompiledMask mask = compiled(conv);
  EXPECT_EQ(mask.kept, 32u * 64 * 9);
  ASSERT_EQ(mask.patterns.size(), 1u);
  EXPECT_EQ(mask.patterns[0].columns, 128u * 9);
  EXPECT_FALSE(mask.patterns[0].wide);  // runs of 9
  ASSERT_EQ(mask.panels.size(), 16u);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(mask.panels[i].offset, i * 4 * 128 * 9);
    EXPECT_EQ(mask.panels[i].rows, 2u);
    EXPECT_EQ(mask.panels[i].row_stride, 128u * 9);
  }
}

TEST(MaskShape, channels_last_lays_channels_innermost) {
  OwnedSpec conv = make_spec({64, 128, 3, 3});
  set_strides(conv.spec, {0, 2, 3, 1});
  conv.keep[1] = every(128, 128, 32);
  const CompiledMask mask = compiled(conv);
  ASSERT_EQ(mask.panels.size(), 1u);
  EXPECT_EQ(mask.panels[0].rows, 64u);
  ASSERT_EQ(mask.patterns.size(), 1u);
  ASSERT_TRUE(mask.patterns[0].wide);
  ASSERT_EQ(mask.patterns[0].runs.size(), 9u);
  EXPECT_EQ(mask.patterns[0].runs[1].begin, 128u);
  EXPECT_EQ(mask.patterns[0].runs[1].count, 32u);
}

TEST(MaskShape, transposed_convolution_has_filters_on_dimension_1) {
  OwnedSpec conv = make_spec({96, 48, 4, 4});
  conv.keep[1] = every(48, 3, 1);
  const CompiledMask mask = compiled(conv);
  EXPECT_EQ(mask.kept, 96u * 16 * 16);
  ASSERT_EQ(mask.patterns.size(), 1u);
  EXPECT_TRUE(mask.patterns[0].wide);  // runs of 16
  EXPECT_EQ(mask.panels.size(), 1u);
}

TEST(MaskShape, full_rows_become_long_runs) {
  OwnedSpec linear = make_spec({1000, 2048});
  linear.keep[0] = every(1000, 10, 4);
  const CompiledMask mask = compiled(linear);
  EXPECT_TRUE(mask.patterns.empty());
  ASSERT_EQ(mask.panels.size(), 100u);
  EXPECT_EQ(mask.panels[1].offset, 10u * 2048);
  EXPECT_EQ(mask.panels[1].columns, 4u * 2048);

  OwnedSpec all = make_spec({1000, 2048});
  const CompiledMask one = compiled(all);
  EXPECT_EQ(one.kept, one.count);
  EXPECT_EQ(one.panels.size(), 1u);
}

TEST(MaskShape, a_vector_is_one_row) {
  Random random(1);
  OwnedSpec bias = make_spec({1000});
  bias.keep[0] = every(1000, 3, 2);
  const CompiledMask mask = compiled(bias);
  ASSERT_EQ(mask.panels.size(), 1u);
  EXPECT_EQ(mask.panels[0].rows, 1u);
  EXPECT_EQ(mask.panels[0].columns, 1000u);
}

TEST(MaskShape, scalars_and_nothing) {
  OwnedSpec scalar = make_spec({});
  EXPECT_EQ(compiled(scalar).kept, 1u);
  OwnedSpec byte = make_spec({}, MaskKind::bytes);
  byte.cells = {0};
  EXPECT_EQ(compiled(byte).kept, 0u);
  OwnedSpec block = make_spec({}, MaskKind::blocks);
  block.cells = {1};
  EXPECT_EQ(compiled(block).kept, 1u);
  OwnedSpec empty = make_spec({3, 0, INT64_MAX});
  EXPECT_EQ(compiled(empty).count, 0u);
  EXPECT_TRUE(compiled(empty).panels.empty());
  OwnedSpec no_bytes = make_spec({0}, MaskKind::bytes);
  EXPECT_EQ(compiled(no_bytes).digest, compiled(empty).digest);
}

TEST(MaskShape, a_dropped_index_of_a_dimension_of_one_drops_all) {
  OwnedSpec owned = make_spec({4, 1, 8});
  owned.keep[1] = {0};
  EXPECT_EQ(compiled(owned).kept, 0u);
  EXPECT_TRUE(compiled(owned).panels.empty());
  owned.keep[1] = {1};
  EXPECT_EQ(compiled(owned).kept, 32u);
}

TEST(MaskShape, nothing_kept_leaves_no_panels) {
  OwnedSpec owned = make_spec({40, 30});
  owned.keep[1] = std::vector<uint8_t>(30, 0);
  EXPECT_TRUE(compiled(owned).panels.empty());
  EXPECT_TRUE(compiled(owned).patterns.empty());
}

TEST(MaskShape, equal_rows_of_bytes_share_a_pattern) {
  OwnedSpec owned = make_spec({300, 1000}, MaskKind::bytes);
  owned.cells.resize(300 * 1000);
  for (size_t i = 0; i < owned.cells.size(); ++i) {
    const size_t row = i / 1000;
    owned.cells[i] = row % 3 == 0 ? 1 : (i % 1000) % (row % 3 + 1) == 0;
  }
  const CompiledMask mask = compiled(owned);
  EXPECT_EQ(mask.patterns.size(), 2u);
  EXPECT_EQ(mask.panels.size(), 300u);
}

TEST(MaskShape, narrow_rows_do_not_cost_a_panel_each) {
  OwnedSpec narrow = make_spec({100'000, 3});
  narrow.keep[0] = every(100'000, 2, 1);
  narrow.keep[1] = {1, 0, 1};
  EXPECT_LT(bytes_of(compiled(narrow)), 100'000u);

  OwnedSpec adapter = make_spec({4096, 8});  // every row the same
  adapter.keep[1] = {1, 1, 0, 1, 0, 0, 1, 0};
  const CompiledMask mask = compiled(adapter);
  ASSERT_EQ(mask.panels.size(), 1u);
  EXPECT_GE(mask.panels[0].columns, 512u);
  EXPECT_LT(bytes_of(mask), 1000u);
}

TEST(MaskShape, few_kept_bytes_of_many_need_no_bitmap) {
  OwnedSpec owned = make_spec({1'000'000}, MaskKind::bytes);
  owned.cells.resize(1'000'000);
  owned.cells[0] = owned.cells[1] = owned.cells[999'999] = 1;
  const CompiledMask mask = compiled(owned);
  EXPECT_EQ(mask.panels.size(), 2u);
  EXPECT_LT(bytes_of(mask), 1000u);
}

// Tensors so large that work per element would never end.
TEST(MaskShape, structured_masks_cost_rows_and_columns_only) {
  OwnedSpec linear = make_spec({1 << 20, 1 << 20});
  linear.keep[0] = every(1 << 20, 1 << 10, 500);
  linear.keep[1] = every(1 << 20, 3, 1);
  const CompiledMask mask = compiled(linear);
  EXPECT_EQ(mask.kept, (uint64_t{500} << 10) * (((1 << 20) + 2) / 3));
  EXPECT_TRUE(keeps(mask, (uint64_t{1} << 30) + 3));
  EXPECT_FALSE(keeps(mask, (uint64_t{1} << 30) + 4));
  EXPECT_LT(bytes_of(mask), size_t{1} << 20);

  OwnedSpec experts = make_spec({64, 1 << 14, 1 << 14});
  experts.keep[2] = every(1 << 14, 2, 1);
  EXPECT_LT(bytes_of(compiled(experts)), size_t{1} << 14);
  experts.keep[1] = every(1 << 14, 2, 1);
  EXPECT_LT(bytes_of(compiled(experts)), size_t{1} << 26);
  experts.keep[0] = every(64, 2, 1);
  EXPECT_EQ(compiled(experts).kept, uint64_t{1} << 31);

  OwnedSpec blocks = make_spec({64, 1 << 14, 1 << 14}, MaskKind::blocks);
  blocks.spec.block = {0, 1 << 10, 1 << 8};
  blocks.cells = every(16 * 64, 3, 1);
  EXPECT_LT(bytes_of(compiled(blocks)), size_t{1} << 20);
}

TEST(MaskShape, outer_rows_that_touch_across_repetitions_are_one_panel) {
  OwnedSpec experts = make_spec({8, 64, 20'000});
  experts.keep[1] = every(64, 63, 2);  // 0, 1 and 63
  experts.keep[2] = every(20'000, 2, 1);
  const CompiledMask mask = compiled(experts);
  ASSERT_EQ(mask.panels.size(), 9u);
  EXPECT_EQ(mask.panels[0].rows, 2u);
  EXPECT_EQ(mask.panels[1].rows, 3u);
  EXPECT_EQ(mask.panels[8].rows, 1u);

  OwnedSpec flat = make_spec({8 * 64, 20'000});
  for (int expert = 0; expert < 8; ++expert) {
    flat.keep[0].insert(flat.keep[0].end(), experts.keep[1].begin(), experts.keep[1].end());
  }
  flat.keep[1] = experts.keep[2];
  EXPECT_EQ(compiled(flat).digest, mask.digest);
}

TEST(Reports, E20_counts_above_32_bits) {
  constexpr int64_t kCount = (int64_t{1} << 31) + 5;
  OwnedSpec owned = make_spec({kCount}, MaskKind::ranges);
  owned.ranges = {{0, 3}, {kCount - 7, 7}};
  owned.spec.declared_kept = 10;
  const CompiledMask mask = compiled(owned);
  EXPECT_EQ(mask.count, static_cast<uint64_t>(kCount));
  EXPECT_EQ(mask.kept, 10u);
  ASSERT_EQ(mask.panels.size(), 2u);
  EXPECT_EQ(mask.panels[0].pattern, -1);
  EXPECT_EQ(mask.panels[1].pattern, -1);
  EXPECT_EQ(mask.panels[1].offset, static_cast<uint64_t>(kCount - 7));
  EXPECT_TRUE(keeps(mask, static_cast<uint64_t>(kCount - 7)));
  EXPECT_FALSE(keeps(mask, static_cast<uint64_t>(kCount - 8)));
}

TEST(MaskShape, the_largest_tensor_there_can_be) {
  OwnedSpec owned = make_spec({INT64_MAX}, MaskKind::ranges);
  owned.ranges = {{0, INT64_MAX}};
  EXPECT_EQ(compiled(owned).kept, static_cast<uint64_t>(INT64_MAX));
  owned.ranges = {{INT64_MAX - 1, 1}};
  EXPECT_TRUE(keeps(compiled(owned), INT64_MAX - 1));
}

}  // namespace
}  // namespace prunex::testing

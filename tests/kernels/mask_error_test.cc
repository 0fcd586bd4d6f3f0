// SPDX-License-Identifier: Apache-2.0
// Every mistake in a mask is refused with the numbers that do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kernels/mask_reference.h"

namespace prunex::testing {
namespace {

using ::testing::HasSubstr;

OwnedSpec make_spec(std::vector<int64_t> sizes, MaskKind kind) {
  OwnedSpec owned;
  owned.spec.kind = kind;
  owned.spec.ndim = static_cast<int>(sizes.size());
  std::ranges::copy(sizes, owned.spec.sizes.begin());
  return owned;
}

void expect_error(OwnedSpec& owned, std::vector<const char*> parts) {
  const Result<CompiledMask> mask = compile(owned.get());
  ASSERT_FALSE(mask);
  EXPECT_EQ(mask.error().code, Code::invalid_argument);
  for (const char* part : parts) {
    EXPECT_THAT(mask.error().text, HasSubstr(part));
  }
}

TEST(Reports, E2_mask_of_1000_for_1001_elements) {
  OwnedSpec bytes = make_spec({1001}, MaskKind::bytes);
  bytes.cells.resize(1000, 1);
  expect_error(bytes, {"1000", "1001"});
  OwnedSpec dims = make_spec({1001}, MaskKind::dims);
  dims.keep[0].resize(1000, 1);
  expect_error(dims, {"1000", "1001"});
  OwnedSpec blocks = make_spec({1001}, MaskKind::blocks);
  blocks.spec.block[0] = 1;
  blocks.cells.resize(1000, 1);
  expect_error(blocks, {"1000", "1001"});
  OwnedSpec ranges = make_spec({1001}, MaskKind::ranges);
  ranges.ranges = {{0, 1002}};
  expect_error(ranges, {"1002", "1001"});
}

TEST(Reports, E2_declared_against_counted) {
  OwnedSpec owned = make_spec({10, 10}, MaskKind::dims);
  owned.keep[0] = {1, 1, 1, 0, 0, 0, 0, 0, 0, 0};
  owned.spec.declared_kept = 31;
  expect_error(owned, {"31", "30", "100"});
  owned.spec.declared_kept = 0;
  expect_error(owned, {"0 kept", "30"});
  owned.spec.declared_kept = -2;
  expect_error(owned, {"-2", "30"});
  owned.spec.declared_kept = 30;
  EXPECT_TRUE(compile(owned.get()));
}

TEST(MaskError, shapes) {
  OwnedSpec owned = make_spec({2, 2}, MaskKind::dims);
  owned.spec.ndim = 9;
  expect_error(owned, {"9", "8"});
  owned.spec.ndim = -1;
  expect_error(owned, {"-1"});
  OwnedSpec negative = make_spec({2, -3}, MaskKind::dims);
  expect_error(negative, {"[2, -3]"});
  OwnedSpec negative_of_empty = make_spec({0, -3}, MaskKind::dims);
  expect_error(negative_of_empty, {"[0, -3]"});
  OwnedSpec huge = make_spec({int64_t{1} << 32, int64_t{1} << 31}, MaskKind::dims);
  expect_error(huge, {"[4294967296, 2147483648]"});
  OwnedSpec unknown = make_spec({2}, static_cast<MaskKind>(9));
  expect_error(unknown, {"9"});
}

TEST(MaskError, strides_must_be_a_dense_permutation) {
  const std::vector<std::array<int64_t, 3>> wrong = {{12, 4, 2},  {24, 4, 1}, {4, 4, 1}, {12, 4, 0},
                                                     {-12, 4, 1}, {0, 0, 1},  {1, 2, 3}};
  for (const auto& strides : wrong) {
    OwnedSpec owned = make_spec({2, 3, 4}, MaskKind::dims);
    std::ranges::copy(strides, owned.spec.strides.begin());
    const std::string text = strf("[%ld, %ld, %ld]", static_cast<long>(strides[0]),
                                  static_cast<long>(strides[1]), static_cast<long>(strides[2]));
    expect_error(owned, {text.c_str(), "[2, 3, 4]"});
  }
  const std::vector<std::array<int64_t, 3>> right = {
      {12, 4, 1}, {1, 2, 6}, {4, 8, 1}, {3, 1, 6}, {0, 0, 0}};
  for (const auto& strides : right) {
    OwnedSpec owned = make_spec({2, 3, 4}, MaskKind::dims);
    std::ranges::copy(strides, owned.spec.strides.begin());
    EXPECT_TRUE(compile(owned.get()));
  }
  OwnedSpec single = make_spec({1, 5, 1}, MaskKind::dims);
  single.spec.strides = {-7, 1, 99};
  EXPECT_TRUE(compile(single.get())) << "the stride of a dimension of one means nothing";
}

TEST(MaskError, keep_vectors) {
  OwnedSpec owned = make_spec({4, 6}, MaskKind::dims);
  owned.keep[1].resize(5, 1);
  expect_error(owned, {"keep[1]", "5", "6", "[4, 6]"});
  owned = make_spec({4, 6}, MaskKind::dims);
  owned.keep[2].resize(3, 1);
  expect_error(owned, {"keep[2]", "3", "2 dimensions"});
  // A vector of no entries that is there is not an absent one.
  MaskSpec spec = owned.spec;
  spec.keep = {};
  const uint8_t none = 0;
  spec.keep[0] = std::span(&none, 0);
  EXPECT_FALSE(compile(spec));
}

TEST(MaskError, blocks) {
  OwnedSpec owned = make_spec({10, 7}, MaskKind::blocks);
  owned.spec.block = {4, 7};
  owned.cells.resize(2, 1);
  expect_error(owned, {"2 cells", "3 x 1", "= 3"});
  owned.cells.resize(3, 1);
  EXPECT_TRUE(compile(owned.get()));
  owned.spec.block[1] = -1;
  expect_error(owned, {"block[1]", "-1"});
}

TEST(MaskError, n_of_m_names_the_group) {
  OwnedSpec owned = make_spec({3, 8, 5}, MaskKind::nm);
  owned.spec.nm_dim = 1;
  owned.spec.n = 2;
  owned.spec.m = 4;
  owned.cells.resize(3 * 8 * 5);
  for (size_t i = 0; i < owned.cells.size(); ++i) {
    owned.cells[i] = i / 5 % 4 < 2 ? 1 : 0;
  }
  EXPECT_TRUE(compile(owned.get()));
  owned.cells[2 * 40 + 7 * 5 + 3] = 1;
  expect_error(owned, {"[2, 4:8, 3]", "2:4", "keeps 3", "expected 2"});
  owned.cells[2 * 40 + 7 * 5 + 3] = 0;
  owned.cells[0] = 0;
  expect_error(owned, {"[0, 0:4, 0]", "keeps 1", "expected 2"});
}

TEST(MaskError, n_of_m_arguments) {
  OwnedSpec owned = make_spec({3, 8}, MaskKind::nm);
  owned.cells.resize(24, 1);
  owned.spec.nm_dim = 2;
  owned.spec.n = owned.spec.m = 4;
  expect_error(owned, {"dimension 2", "2 dimensions"});
  owned.spec.nm_dim = -1;
  expect_error(owned, {"dimension -1"});
  owned.spec.nm_dim = 1;
  owned.spec.n = 5;
  expect_error(owned, {"5:4"});
  owned.spec.n = -1;
  expect_error(owned, {"-1:4"});
  owned.spec.n = owned.spec.m = 0;
  expect_error(owned, {"0:0"});
  owned.spec.n = owned.spec.m = 3;
  expect_error(owned, {"dimension 1", "8", "M = 3"});
  owned.spec.n = owned.spec.m = 4;
  owned.cells.pop_back();
  expect_error(owned, {"23", "24"});
}

TEST(MaskError, ranges) {
  OwnedSpec owned = make_spec({100}, MaskKind::ranges);
  owned.ranges = {{0, 10}, {9, 5}};
  expect_error(owned, {"range 1", "element 9", "ends at 10"});
  owned.ranges = {{50, 10}, {0, 5}};
  expect_error(owned, {"range 1", "element 0", "ends at 60"});
  owned.ranges = {{90, 11}};
  expect_error(owned, {"range 0", "11", "90", "100"});
  owned.ranges = {{~uint64_t{0}, 2}};
  expect_error(owned, {"range 0", "18446744073709551615", "100"});
  owned.ranges = {{1, ~uint64_t{0}}};
  expect_error(owned, {"range 0", "18446744073709551615", "100"});
  owned.ranges = {{0, 0}, {0, 10}, {10, 0}, {10, 90}, {100, 0}};
  EXPECT_TRUE(compile(owned.get()));
}

}  // namespace
}  // namespace prunex::testing

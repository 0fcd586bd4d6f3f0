// SPDX-License-Identifier: Apache-2.0
// The data of --check: sums must be exact in every type and number of ranks, and errors must show.
#include "tools/check_data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "tools/bench.h"

namespace prunex::tools {
namespace {

constexpr size_t kCount = 500;

std::vector<int> first_ranks(int n) {
  std::vector<int> ranks(static_cast<size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Reduces in double what the ranks would send, element by element.
std::vector<double> reduced(DType type, Op op, const std::vector<int>& ranks) {
  std::vector<double> result(kCount, 0);
  std::vector<std::byte> data(kCount * size_of(type));
  for (size_t k = 0; k < ranks.size(); ++k) {
    const CheckData mine(type, op, ranks, ranks[k]);
    mine.fill(data.data(), 0, kCount);
    for (size_t i = 0; i < kCount; ++i) {
      const double v = mine.value_at(data.data(), i);
      EXPECT_EQ(v, std::floor(v)) << "integer-valued";
      result[i] = k == 0           ? v
                  : op == Op::max  ? std::max(result[i], v)
                  : op == Op::min  ? std::min(result[i], v)
                  : op == Op::prod ? result[i] * v
                                   : result[i] + v;
    }
  }
  return result;
}

TEST(CheckData, expects_what_ranks_send_in_every_type_and_operation) {
  for (int t = 0; t < kNumDTypes; ++t) {
    for (int o = 0; o < kNumOps; ++o) {
      for (const int ranks : {1, 2, 3, 9, 40, 300}) {
        const auto type = static_cast<DType>(t);
        const auto op = static_cast<Op>(o);
        const CheckData data(type, op, first_ranks(ranks), 0);
        const std::vector<double> sums = reduced(type, op, first_ranks(ranks));
        for (size_t i = 0; i < kCount; ++i) {
          const double exact = op == Op::avg ? sums[i] / ranks : sums[i];
          // Only a quotient may be rounded, once, as the type rounds it.
          const double ulp = !is_float(type) ? 1 : std::abs(exact) * 0.004;
          ASSERT_NEAR(data.expected(i), exact, op == Op::avg ? ulp : 0)
              << name_of(type) << ' ' << name_of(op) << ' ' << ranks << " ranks, element " << i;
        }
      }
    }
  }
}

TEST(CheckData, sums_are_not_all_the_same) {
  const CheckData data(DType::bf16, Op::sum, first_ranks(4), 2);
  double least = 1e9, most = -1e9;
  for (uint64_t i = 0; i < kCount; ++i) {
    least = std::min(least, data.expected(i));
    most = std::max(most, data.expected(i));
  }
  EXPECT_GT(most - least, 10);
}

TEST(CheckData, finds_one_wrong_element) {
  for (int t = 0; t < kNumDTypes; ++t) {
    const auto type = static_cast<DType>(t);
    const CheckData alone(type, Op::sum, first_ranks(1), 0);  // a sum of one: result equals input
    std::vector<std::byte> data(kCount * size_of(type));
    alone.fill(data.data(), 1000, kCount);
    uint64_t bad = 0;
    EXPECT_EQ(alone.wrong_results(data.data(), 1000, kCount, &bad), 0u);
    EXPECT_EQ(alone.wrong_inputs(data.data(), 1000, kCount), 0u);
    EXPECT_GT(alone.wrong_results(data.data(), 1001, kCount, &bad), kCount / 2) << "shifted by one";
    data[77 * size_of(type)] ^= std::byte{1};
    EXPECT_EQ(alone.wrong_results(data.data(), 1000, kCount, &bad), 1u);
    EXPECT_EQ(bad, 1077u);
  }
}

TEST(CheckData, zero_must_be_plus_zero) {
  std::vector<float> data(10, 0.0f);
  uint64_t bad = 0;
  EXPECT_EQ(wrong_zeros(data.data(), 4, 0, 10, &bad), 0u);
  data[3] = -0.0f;
  EXPECT_EQ(wrong_zeros(data.data(), 4, 0, 10, &bad), 1u);
  EXPECT_EQ(bad, 3u);
  std::vector<std::byte> garbage(20);
  CheckData(DType::bf16, Op::sum, first_ranks(2), 1).fill_garbage(garbage.data(), 10);
  EXPECT_EQ(wrong_zeros(garbage.data(), 2, 0, 10, &bad), 10u);
}

TEST(CheckData, a_rank_that_does_not_contribute_sends_what_would_show) {
  const CheckData bystander(DType::f32, Op::sum, std::vector<int>{0, 2}, 1);
  std::vector<float> data(kCount);
  bystander.fill(data.data(), 0, kCount);
  for (const float v : data) {
    EXPECT_EQ(v, 99);
  }
}

TEST(Times, percentiles_are_times_that_were_measured) {
  std::vector<double> times(100);
  std::iota(times.rbegin(), times.rend(), 1);
  const Times t = summarize(times);
  EXPECT_EQ(t.min, 1);
  EXPECT_EQ(t.p50, 50);
  EXPECT_EQ(t.p90, 90);
  EXPECT_EQ(t.p99, 99);
  EXPECT_EQ(t.max, 100);
  EXPECT_EQ(t.total, 5050);
  const Times one = summarize({3});
  EXPECT_EQ(one.p50, 3);
  EXPECT_EQ(one.p99, 3);
}

}  // namespace
}  // namespace prunex::tools

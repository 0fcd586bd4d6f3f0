// SPDX-License-Identifier: Apache-2.0
// The all-reduce against a plain reference, with ranks as threads.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/half.h"
#include "plugin/collective/agree.h"
#include "tests/collective/cluster.h"

namespace prunex::test {
namespace {

using collective::CallSpec;
using collective::Comm;
using collective::Contract;
using collective::MaskedLayout;
using collective::Scope;

// Integer-valued, so that sums are exact in every order: what rank r holds at element i.
float value(int rank, size_t i) {
  return static_cast<float>(
      static_cast<int>((i * 2654435761u + static_cast<size_t>(rank) * 40503u) >> 7) % 17 - 8);
}

std::shared_ptr<const MaskedLayout> random_masked(uint64_t count, double keep, unsigned seed,
                                                  Contract contract = Contract::lossless) {
  std::mt19937 random(seed);
  std::vector<uint8_t> cells(count);
  for (auto& c : cells) {
    c = std::generate_canonical<double, 32>(random) < keep ? 1 : 0;
  }
  MaskSpec spec;
  spec.kind = MaskKind::bytes;
  spec.ndim = 1;
  spec.sizes[0] = static_cast<int64_t>(count);
  spec.cells = cells;
  auto compiled = compile(spec);
  EXPECT_TRUE(compiled) << compiled.error().text;
  auto mask = std::make_shared<const CompiledMask>(std::move(*compiled));
  auto layout = make_layout({Segment{0, count, mask, "weight"}}, count);
  EXPECT_TRUE(layout) << layout.error().text;
  return std::make_shared<const MaskedLayout>(
      collective::make_masked_layout(std::move(*layout), {contract}));
}

struct Shape {
  const char* name;
  std::vector<int> node_of;
};

class AllReduce : public ::testing::TestWithParam<Shape> {};

TEST_P(AllReduce, DenseSumIsExact) {
  const auto& node_of = GetParam().node_of;
  const int n = static_cast<int>(node_of.size());
  run_ranks(node_of, [&](Comm& comm, int rank) {
    for (const size_t count :
         {size_t{0}, size_t{1}, size_t{1000}, size_t{70'001}, size_t{700'003}}) {
      std::vector<float> in(count), out(count, -1);
      for (size_t i = 0; i < count; ++i) {
        in[i] = value(rank, i);
      }
      const std::vector<float> before = in;
      CallSpec spec{in.data(), out.data(), count, DType::f32, Op::sum, Scope::world, nullptr, 0};
      auto result = comm.all_reduce(spec);
      ASSERT_TRUE(result) << result.error().text;
      EXPECT_EQ(in, before);
      for (size_t i = 0; i < count; ++i) {
        float want = 0;
        for (int r = 0; r < n; ++r) {
          want += value(r, i);
        }
        ASSERT_EQ(out[i], want) << "count " << count << " element " << i;
      }
      spec.recv = in.data();  // in place
      ASSERT_TRUE(comm.all_reduce(spec));
      ASSERT_EQ(in, out);
    }
  });
}

TEST_P(AllReduce, MaskedSumIsExactAndDropsAreZero) {
  const auto& node_of = GetParam().node_of;
  const int n = static_cast<int>(node_of.size());
  const uint64_t count = 300'007;
  for (const Contract contract : {Contract::lossless, Contract::project, Contract::sampled}) {
    const auto masked = random_masked(count, 0.4, 7, contract);
    // Looked up once: for every rank and round it is most of the test's time under a sanitizer.
    std::vector<uint8_t> kept(count);
    std::array<std::vector<float>, 3> sums;
    for (size_t i = 0; i < count; ++i) {
      kept[i] = keeps(*masked->layout.segments[0].mask, i) ? 1 : 0;
    }
    for (size_t round = 0; round < sums.size(); ++round) {
      sums[round].resize(count);
      for (size_t i = 0; i < count; ++i) {
        for (int r = 0; r < n && kept[i] != 0; ++r) {
          sums[round][i] += value(r, i + round);
        }
      }
    }
    run_ranks(node_of, [&](Comm& comm, int rank) {
      for (size_t round = 0; round < sums.size(); ++round) {
        std::vector<float> data(count);
        for (size_t i = 0; i < count; ++i) {
          data[i] = kept[i] != 0 ? value(rank, i + round) : -0.0f;
        }
        CallSpec spec{data.data(), data.data(),  count,  DType::f32,
                      Op::sum,     Scope::world, masked, 0};
        auto result = comm.all_reduce(spec);
        ASSERT_TRUE(result) << result.error().text;
        size_t wrong = 0, negative = 0;  // an assertion for each element would take longer
        for (size_t i = 0; i < count; ++i) {
          wrong += data[i] == sums[round][i] ? 0 : 1;
          negative += kept[i] == 0 && std::signbit(data[i]) ? 1 : 0;
        }
        ASSERT_EQ(wrong, 0u);
        ASSERT_EQ(negative, 0u) << "dropped places of -0";
      }
      EXPECT_EQ(comm.stats().calls_compact, 3u);
      EXPECT_EQ(comm.stats().violations, 0u);
    });
  }
}

TEST_P(AllReduce, LosslessViolationGivesTheDenseSumAndStaysDense) {
  const auto& node_of = GetParam().node_of;
  const int n = static_cast<int>(node_of.size());
  const uint64_t count = 300'007;
  const auto masked = random_masked(count, 0.4, 9);
  uint64_t dropped = count - 5;
  while (keeps(*masked->layout.segments[0].mask, dropped)) {
    --dropped;
  }
  run_ranks(node_of, [&](Comm& comm, int rank) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> data(count);
      for (size_t i = 0; i < count; ++i) {
        data[i] = keeps(*masked->layout.segments[0].mask, i) ? value(rank, i) : 0;
      }
      if (rank == n - 1) {
        data[dropped] = 5;
      }
      CallSpec spec{data.data(), data.data(), count, DType::f32, Op::sum, Scope::world, masked, 0};
      auto result = comm.all_reduce(spec);
      ASSERT_TRUE(result) << result.error().text;
      EXPECT_EQ(data[dropped], 5.0f);
      for (size_t i = 0; i < count; ++i) {
        float want = i == dropped ? 5 : 0;
        for (int r = 0; r < n && keeps(*masked->layout.segments[0].mask, i); ++r) {
          want += value(r, i);
        }
        ASSERT_EQ(data[i], want) << i;
      }
    }
    EXPECT_EQ(comm.stats().violations, 1u);  // dense after the first
  });
}

TEST_P(AllReduce, DifferentMasksGoDenseTogether) {
  const auto& node_of = GetParam().node_of;
  const int n = static_cast<int>(node_of.size());
  if (n == 1) {
    GTEST_SKIP() << "one rank cannot disagree";
  }
  const uint64_t count = 100'000;
  run_ranks(node_of, [&](Comm& comm, int rank) {
    const auto masked = random_masked(count, 0.4, rank == n - 1 ? 2 : 1);
    for (int round = 0; round < 2; ++round) {
      std::vector<float> data(count);
      for (size_t i = 0; i < count; ++i) {
        data[i] = value(rank, i);
      }
      CallSpec spec{data.data(), data.data(), count, DType::f32, Op::sum, Scope::world, masked, 0};
      auto result = comm.all_reduce(spec);
      ASSERT_TRUE(result) << result.error().text;
      for (size_t i = 0; i < count; ++i) {
        float want = 0;
        for (int r = 0; r < n; ++r) {
          want += value(r, i);
        }
        ASSERT_EQ(data[i], want);
      }
    }
    EXPECT_EQ(comm.stats().mismatches, 2u);
  });
}

TEST_P(AllReduce, UnequalCountsAreAnErrorOnAllRanksAndLeaveTheBuffers) {
  const auto& node_of = GetParam().node_of;
  const int n = static_cast<int>(node_of.size());
  if (n == 1) {
    GTEST_SKIP() << "one rank cannot disagree";
  }
  for (const size_t base : {size_t{100}, size_t{409'600}}) {
    run_ranks(node_of, [&](Comm& comm, int rank) {
      const size_t count = rank == n - 1 ? base - 2 : base;
      std::vector<float> data(count, 3);
      CallSpec spec{data.data(), data.data(), count, DType::f32, Op::sum, Scope::world, nullptr, 0};
      auto result = comm.all_reduce(spec);
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().code, Code::mismatch);
      EXPECT_NE(result.error().text.find(std::to_string(base)), std::string::npos)
          << result.error().text;
      EXPECT_NE(result.error().text.find(std::to_string(base - 2)), std::string::npos);
      EXPECT_EQ(data, std::vector<float>(count, 3));
      // The communicator goes on.
      std::vector<float> again(1000, 1);
      spec = {again.data(), again.data(), again.size(), DType::f32,
              Op::sum,      Scope::world, nullptr,      0};
      ASSERT_TRUE(comm.all_reduce(spec));
      EXPECT_EQ(again, std::vector<float>(1000, static_cast<float>(n)));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, AllReduce,
                         ::testing::Values(Shape{"one", {0}}, Shape{"node_of_3", {0, 0, 0}},
                                           Shape{"two_nodes", {0, 1}}, Shape{"2x2", {0, 0, 1, 1}},
                                           Shape{"1_2_3", {0, 1, 1, 2, 2, 2}},
                                           Shape{"interleaved", {0, 1, 2, 0, 1, 2}},
                                           Shape{"4_nodes", {0, 1, 2, 3}}),
                         [](const auto& shape) { return std::string(shape.param.name); });

}  // namespace
}  // namespace prunex::test

// SPDX-License-Identifier: Apache-2.0
// What masks promise, on device memory: rule 1 and rule 4 of the design, plans and graphs.
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <limits>

#include "tests/device/two_nodes.h"

namespace prunex::test {
namespace {

using collective::Contract;

TEST(DeviceContracts, OnlyKeptValuesCrossBetweenLeaders) {
  const MaskedPtr masked = striped(kCount, 1, 4, Contract::lossless);
  const auto in = inputs(1, 4);
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    DeviceBuffer buffer(in[at(r)]);
    std::vector<std::string> log;
    standin_log(&log);
    ASSERT_TRUE(r.sum(buffer, masked, kCount));
    standin_log(nullptr);
    EXPECT_EQ(buffer.floats(), sum_of(in));
    EXPECT_EQ(r.stats().calls_compact, 1u);
    std::vector<std::string> want = {"Reduce 1000", "Reduce 3", "Broadcast 1000", "Broadcast 3"};
    if (r.rank == 0 || r.rank == 2) {
      want.insert(want.begin() + 2, {"AllReduce 1000", "AllReduce 3"});
    }
    EXPECT_EQ(log, want) << "rank " << r.rank;
  });
}

TEST(DeviceContracts, EachRailCarriesItsShare) {
  const MaskedPtr masked = striped(kCount, 1, 4, Contract::project);
  const auto in = inputs(1, 4);
  run_device_ranks({0, 0, 1, 1},
                   [&](const DeviceRank& r) {
                     DeviceBuffer buffer(in[at(r)]);
                     std::vector<std::string> log;
                     standin_log(&log);
                     ASSERT_TRUE(r.sum(buffer, masked, kCount));
                     standin_log(nullptr);
                     EXPECT_EQ(buffer.floats(), sum_of({in[0], in[1], in[2], in[3]}));
                     EXPECT_EQ(log, (std::vector<std::string>{"ReduceScatter 500", "AllReduce 500",
                                                              "AllGather 500"}));
                   },
                   {2});
}

TEST(DeviceContracts, ABrokenPromiseIsTheDenseSumAndNamesTheParameter) {
  const MaskedPtr masked = layout_of(
      {{1000, nullptr, Contract::lossless, "bias"},
       {2000, mask_of(2000, [](uint64_t i) { return i % 2 == 0; }), Contract::lossless, "good"},
       {1000, mask_of(1000, [](uint64_t i) { return i % 5 == 0; }), Contract::lossless, "bad"}});
  auto in = inputs(1, 10);
  in[3][3007] = 7;  // in "bad", dropped
  LogCapture log;
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    for (int call = 0; call < 3; ++call) {
      DeviceBuffer buffer(in[at(r)]);
      const auto result = r.sum(buffer, masked, kCount);
      ASSERT_TRUE(result) << result.error().text;
      EXPECT_EQ(buffer.floats(), sum_of(in)) << "call " << call;
    }
    EXPECT_EQ(r.stats().violations, 1u);
    EXPECT_EQ(r.stats().calls, 3u);
    EXPECT_EQ(r.stats().calls_compact, 2u);  // "good" still is
    // A new mask is trusted again.
    const MaskedPtr changed = layout_of(
        {{1000, nullptr, Contract::lossless, "bias"},
         {2000, mask_of(2000, [](uint64_t i) { return i % 2 == 0; }), Contract::lossless, "good"},
         {1000, mask_of(1000, [](uint64_t i) { return i % 5 == 0 || i == 7; }), Contract::lossless,
          "bad"}});
    DeviceBuffer buffer(in[at(r)]);
    ASSERT_TRUE(r.sum(buffer, changed, kCount));
    EXPECT_EQ(buffer.floats(), sum_of(in));
    EXPECT_EQ(r.stats().violations, 1u);
  });
  ASSERT_EQ(log.warnings().size(), 1u);
  EXPECT_NE(log.warnings()[0].find("'bad'"), std::string::npos) << log.warnings()[0];
  EXPECT_NE(log.warnings()[0].find("rank 3"), std::string::npos) << log.warnings()[0];
  EXPECT_NE(log.warnings()[0].find("element 3007"), std::string::npos) << log.warnings()[0];
}

TEST(DeviceContracts, OffendersThatCancelAreStillOffenders) {
  const MaskedPtr masked = striped(kCount, 1, 2, Contract::lossless);
  auto in = inputs(1, 2);
  in[0][11] = 5;
  in[4][11] = -5;
  LogCapture log;
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    DeviceBuffer buffer(in[at(r)]);
    ASSERT_TRUE(r.sum(buffer, masked, kCount));
    EXPECT_EQ(r.stats().violations, 1u);
  });
}

TEST(DeviceContracts, NanInADroppedPlaceReachesEverybodyUnderLossless) {
  const MaskedPtr masked = striped(kCount, 1, 2, Contract::lossless);
  auto in = inputs(1, 2);
  in[2][1] = std::numeric_limits<float>::quiet_NaN();
  LogCapture log;
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    DeviceBuffer buffer(in[at(r)]);
    ASSERT_TRUE(r.sum(buffer, masked, kCount));
    EXPECT_TRUE(std::isnan(buffer.floats()[1]));
  });
}

TEST(DeviceContracts, ProjectCutsOffWhateverIsThere) {
  const MaskedPtr masked = striped(kCount, 1, 2, Contract::project);
  auto in = inputs(1, 2);
  in[1][1] = std::numeric_limits<float>::infinity();
  in[2][3] = -0.0f;
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    DeviceBuffer buffer(in[at(r)]);
    ASSERT_TRUE(r.sum(buffer, masked, kCount));
    const auto got = buffer.floats();
    EXPECT_EQ(bits_of(got[1]), 0u);
    EXPECT_EQ(bits_of(got[3]), 0u);
    EXPECT_EQ(got[2], sum_of(in)[2]);
  });
}

// A violation beside a projected parameter: dense for the one, cut off for the other.
TEST(DeviceContracts, MixedContractsKeepEachItsOwn) {
  const MaskedPtr masked = layout_of(
      {{2000, mask_of(2000, [](uint64_t i) { return i % 2 == 0; }), Contract::lossless, "first"},
       {2000, mask_of(2000, [](uint64_t i) { return i % 2 == 0; }), Contract::project, "second"}});
  auto in = inputs(1, 2);
  in[1][101] = 3;
  in[1][3001] = 4;
  LogCapture log;
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    DeviceBuffer buffer(in[at(r)]);
    ASSERT_TRUE(r.sum(buffer, masked, kCount));
    EXPECT_EQ(buffer.floats()[101], 3.0f);
    EXPECT_EQ(bits_of(buffer.floats()[3001]), 0u);
  });
}

TEST(DeviceContracts, SampledChecksTheFirstTenAndThenOneIn64) {
  const MaskedPtr masked = striped(64, 1, 2, Contract::sampled);
  const MaskedPtr large = striped(kCount, 1, 2, Contract::sampled);
  const auto clean = inputs(1, 2);
  auto dirty = clean;
  dirty[4][5] = 9;
  LogCapture log;
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    for (int call = 0; call < 65; ++call) {
      const bool lost = call == 10;  // not looked at
      const auto& in = lost || call == 64 ? dirty : clean;
      DeviceBuffer buffer(in[at(r)]);
      ASSERT_TRUE(r.sum(buffer, large, kCount));
      EXPECT_EQ(buffer.floats()[5], call == 64 ? 9.0f : 0.0f) << "call " << call;
    }
    EXPECT_EQ(r.stats().violations, 1u);
  });
}

TEST(DeviceContracts, UnequalMasksGoDenseAndSaySo) {
  const auto in = inputs(1, 4);
  LogCapture log;
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    const size_t of = r.rank == 3 ? 4 : 2;
    for (int call = 0; call < 2; ++call) {
      DeviceBuffer buffer(in[at(r)]);
      const auto result = r.sum(buffer, striped(kCount, 1, of, Contract::lossless), kCount);
      ASSERT_TRUE(result) << result.error().text;
      EXPECT_EQ(buffer.floats(), sum_of(in));
    }
    EXPECT_EQ(r.stats().calls_compact, 0u);
    DeviceBuffer buffer(in[at(r)]);
    ASSERT_TRUE(r.sum(buffer, striped(kCount, 1, 4, Contract::lossless), kCount));
    EXPECT_EQ(buffer.floats(), sum_of(in));
    EXPECT_EQ(r.stats().calls_compact, 1u);
  });
  ASSERT_EQ(log.warnings().size(), 1u);
  EXPECT_NE(log.warnings()[0].find("'weight'"), std::string::npos) << log.warnings()[0];
}

TEST(DeviceContracts, UnequalProjectionsAreAnErrorThatTouchesNothing) {
  const auto in = inputs(1, 4);
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    DeviceBuffer buffer(in[at(r)]);
    const size_t of = r.rank == 3 ? 4 : 2;
    const auto result = r.sum(buffer, striped(kCount, 1, of, Contract::project), kCount);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::mismatch);
    EXPECT_NE(result.error().text.find("rank 3"), std::string::npos) << result.error().text;
    EXPECT_EQ(buffer.floats(), in[at(r)]);
    const auto again = r.sum(buffer, striped(kCount, 1, 4, Contract::project), kCount);
    ASSERT_TRUE(again) << again.error().text;
    EXPECT_EQ(buffer.floats(), sum_of(in));
  });
}

// The others have enqueued their part by the time they are told: an end for all, but no hang.
TEST(DeviceContracts, AMaskThatChangesOnOneRankOnlyEndsTheCommunicator) {
  const auto in = inputs(1, 4);
  std::barrier together(static_cast<std::ptrdiff_t>(kRanks));
  run_device_ranks(kTwoNodes, [&](const DeviceRank& r) {
    const MaskedPtr before = striped(kCount, 1, 2, Contract::project);
    DeviceBuffer buffer(in[at(r)]);
    ASSERT_TRUE(r.sum(buffer, before, kCount));
    const MaskedPtr after = r.rank == 1 ? striped(kCount, 1, 4, Contract::project) : before;
    const auto result = r.sum(buffer, after, kCount);
    EXPECT_FALSE(result && r.rank == 1);  // the others may be told in this call, or in the next
    Result<> next;
    for (int call = 0; next && call < 1000; ++call) {  // enqueued, before the news came
      next = r.sum(buffer, after, kCount);
    }
    together.arrive_and_wait();  // who leaves early is lost, which is another story
    ASSERT_FALSE(next);
    EXPECT_EQ(next.error().code, Code::mismatch) << next.error().text;
  });
}

TEST(DeviceContracts, DifferentCountsAreAMismatch) {
  run_device_ranks({0, 1}, [&](const DeviceRank& r) {
    DeviceBuffer buffer(values_of(r.rank, 100));
    const auto result = r.sum(buffer, nullptr, r.rank == 0 ? 100 : 99);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::mismatch) << result.error().text;
    EXPECT_EQ(buffer.floats(), values_of(r.rank, 100));
  });
}

}  // namespace
}  // namespace prunex::test

// SPDX-License-Identifier: Apache-2.0
// Random calls of every kind on worlds of every shape against an element-by-element reference.
#include <gtest/gtest.h>

#include "tests/collective/cluster.h"
#include "tests/collective/random_call.h"

namespace prunex::test {
namespace {

using collective::Comm;
using collective::Contract;
using collective::Scope;

struct World {
  const char* name;
  std::vector<int> node_of;
};

struct Setting {
  const char* name;
  const char* algorithm;
  int64_t chunk_bytes;
  int streams;
};

const World kWorlds[] = {
    {"1", {0}},
    {"3", {0, 0, 0}},
    {"1_1", {0, 1}},
    {"2_2", {0, 0, 1, 1}},
    {"1_2_3", {0, 1, 1, 2, 2, 2}},
    {"3_1_backwards", {1, 0, 0, 0}},
    {"7_2", {0, 0, 0, 0, 0, 0, 0, 1, 1}},
    {"interleaved", {0, 1, 2, 0, 1, 2}},
    {"shuffled", {3, 1, 0, 1, 2, 1, 0}},
    {"1_1_1_1", {0, 1, 2, 3}},
};

const Setting kSettings[] = {
    {"by_table", "", 0, 0},
    {"exchange_small_chunks", "exchange", 4096, 1},
    {"scatter_small_chunks", "scatter", 4096 + 72, 2},
    {"scatter", "scatter", 64 << 10, 0},
};

constexpr uint64_t kLimits[] = {0, 1, 40, 3000, 3000, 3000, 20'000, 20'000, 20'000, 60'000, 60'000};

RandomCall random_call(Random& random, size_t ranks, uint64_t limit) {
  RandomCall call;
  const uint64_t bits = random();
  call.type = static_cast<DType>(bits % kNumDTypes);
  call.op = static_cast<Op>((bits >> 8) % 8 < 4 ? (bits >> 8) % 2 : (bits >> 8) % kNumOps);
  call.scope = static_cast<Scope>((bits >> 16) % 5 < 3 ? 0 : (bits >> 16) % 5 - 2);
  call.in_place = (bits >> 24) % 2 == 0;
  call.request = (bits >> 32) % 3 == 0;
  call.shift = (bits >> 40) % 7;
  call.count = (bits >> 48) % (limit + 1);
  if (limit <= 1) {
    call.count = limit;
  } else if (bits >> 60 != 0) {
    call.layout = random_layout(random, limit);
    call.count = call.layout.masked->layout.count;
  }
  fill_inputs(call, random, ranks);
  return call;
}

// Ranks that share a result have the same bits.
void expect_one_digest(const RandomCall& call, const std::vector<int>& node_of,
                       const std::vector<uint64_t>& digests) {
  for (size_t a = 0; a < node_of.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (call.scope != Scope::node || node_of[a] == node_of[b]) {
        EXPECT_EQ(digests[a], digests[b]) << "ranks " << a << " and " << b << ", " << call.text();
      }
    }
  }
}

void run_calls(const std::vector<int>& node_of, const Setting& setting,
               const std::vector<RandomCall>& calls) {
  std::vector<std::vector<uint64_t>> digests(calls.size(), std::vector<uint64_t>(node_of.size()));
  ClusterOptions options;
  options.adjust = [&](int, collective::CommOptions& o) {
    o.config.algorithm = setting.algorithm;
    o.config.chunk_bytes = setting.chunk_bytes;
    o.config.streams = setting.streams;
  };
  run_ranks(
      node_of,
      [&](Comm& comm, int rank) {
        for (size_t c = 0; c < calls.size(); ++c) {
          const std::string wrong = perform(comm, calls[c], &digests[c][static_cast<size_t>(rank)]);
          ASSERT_EQ(wrong, "") << "rank " << rank << ", call " << c << ": " << calls[c].text();
        }
        EXPECT_EQ(comm.stats().violations, 0u);
        EXPECT_EQ(comm.stats().mismatches, 0u);
      },
      options);
  for (size_t c = 0; c < calls.size(); ++c) {
    expect_one_digest(calls[c], node_of, digests[c]);
  }
}

// Fixed, unless the run asks for others: --gtest_shuffle --gtest_repeat=N takes N further ones.
Random seeded(uint64_t number) {
  return Random(number +
                10'000 * static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed()));
}

class Property : public ::testing::TestWithParam<std::tuple<size_t, size_t>> {};

TEST_P(Property, RandomCallsEqualTheReference) {
  const World& world = kWorlds[std::get<0>(GetParam())];
  const Setting& setting = kSettings[std::get<1>(GetParam())];
  Random random = seeded(100 * std::get<0>(GetParam()) + std::get<1>(GetParam()));
  std::vector<RandomCall> calls;
  for (const uint64_t limit : kLimits) {
    calls.push_back(random_call(random, world.node_of.size(), limit));
  }
  run_calls(world.node_of, setting, calls);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Property,
                         ::testing::Combine(::testing::Range<size_t>(0, std::size(kWorlds)),
                                            ::testing::Range<size_t>(0, std::size(kSettings))),
                         [](const auto& p) {
                           return std::string("ranks_") + kWorlds[std::get<0>(p.param)].name + "_" +
                                  kSettings[std::get<1>(p.param)].name;
                         });

// Every type with every operation, compact and by every contract, over two uneven nodes.
TEST(Matrix, EveryTypeAndOperation) {
  Random random = seeded(9007);
  std::vector<RandomCall> calls;
  for (int type = 0; type < kNumDTypes; ++type) {
    for (int op = 0; op < kNumOps; ++op) {
      for (const Scope scope : {Scope::world, Scope::node, Scope::leaders}) {
        RandomCall call;
        call.type = static_cast<DType>(type);
        call.op = static_cast<Op>(op);
        call.scope = scope;
        call.in_place = op % 2 == 0;
        call.layout = random_layout(random, 5000, op % 3);
        call.count = call.layout.masked->layout.count;
        fill_inputs(call, random, 3);
        calls.push_back(std::move(call));
      }
    }
  }
  run_calls({0, 1, 1}, kSettings[0], calls);
}

TEST(Size, AHundredThousandElementsInManyChunks) {
  Random random = seeded(9008);
  for (const Setting& setting : kSettings) {
    std::vector<RandomCall> calls;
    for (const Op op : {Op::sum, Op::avg}) {
      RandomCall call;
      call.op = op;
      call.type = op == Op::sum ? DType::bf16 : DType::i32;
      call.layout = random_layout(random, 120'000);
      call.count = call.layout.masked->layout.count;
      fill_inputs(call, random, 5);
      calls.push_back(std::move(call));
    }
    run_calls({0, 1, 1, 2, 2}, setting, calls);
  }
}

TEST(Size, ThreeMillionElements) {
  Random random = seeded(9009);
  RandomCall call;
  call.layout = random_mask(random, 3'000'001, 0.4, Contract::lossless);
  call.count = 3'000'001;
  call.shift = 1;
  call.in_place = true;
  fill_inputs(call, random, 3);
  run_calls({0, 1, 1}, kSettings[0], {call});
}

}  // namespace
}  // namespace prunex::test

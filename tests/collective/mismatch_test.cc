// SPDX-License-Identifier: Apache-2.0
// Rule 4: ranks that do not mean the same call. Never a hang, never a wrong sum.
#include <gtest/gtest.h>

#include "plugin/collective/agree.h"
#include "tests/collective/cluster.h"
#include "tests/collective/float_call.h"

namespace prunex::test {
namespace {

using collective::AgreeSpec;
using collective::CallSpec;
using collective::Comm;
using collective::Contract;
using collective::Scope;

constexpr uint64_t kCount = 20'000;

void expect_usable(Comm& comm, float ranks) {
  std::vector<float> data(5000, 1);
  must(comm, float_call(data, data));
  EXPECT_EQ(data, std::vector<float>(5000, ranks));
}

struct Odd {  // what one rank does differently
  const char* name;
  std::function<void(CallSpec&)> change;
  std::vector<std::string> words;  // all of them are in every rank's error
};

class OneRankDiffers : public ::testing::TestWithParam<std::tuple<size_t, size_t>> {};

const Odd kOdd[] = {
    {"count", [](CallSpec& s) { s.count -= 3; }, {"passes 20000", "passes 19997"}},
    {"count_zero", [](CallSpec& s) { s.count = 0; }, {"passes 20000", "passes 0"}},
    {"small_count", [](CallSpec& s) { s.count = 10; }, {"passes 20000", "passes 10"}},
    {"dtype", [](CallSpec& s) { s.type = DType::i32; }, {"f32", "i32"}},
    {"narrow_dtype", [](CallSpec& s) { s.type = DType::bf16; }, {"f32", "bf16"}},
    {"op", [](CallSpec& s) { s.op = Op::max; }, {"sum", "max"}},
    {"avg", [](CallSpec& s) { s.op = Op::avg; }, {"sum", "avg"}},
    {"leaders", [](CallSpec& s) { s.scope = Scope::leaders; }, {"world", "leaders"}},
    {"node", [](CallSpec& s) { s.scope = Scope::node; }, {"world", "node"}},
};

const std::vector<int> kNodes[] = {{0, 0, 0}, {0, 0, 1, 1}, {0, 1, 1, 2}};

// The same error on all ranks, buffers untouched, the communicator as good as before. The odd one
// is not alone on its node: a node of its own that stays among itself is nobody's business.
TEST_P(OneRankDiffers, SameErrorEverywhere) {
  const Odd& odd = kOdd[std::get<0>(GetParam())];
  const std::vector<int>& node_of = kNodes[std::get<1>(GetParam())];
  for (const int who : {0, 1, 2}) {
    if (node_of.size() == 4 && node_of[3] == 2 && odd.name == std::string("node") && who == 0) {
      continue;
    }
    std::vector<std::string> texts(node_of.size());
    ClusterOptions options;
    options.timeout_s = 20;
    run_ranks(
        node_of,
        [&](Comm& comm, int rank) {
          for (int round = 0; round < 2; ++round) {
            std::vector<float> in(kCount, 3), out(kCount, 7);
            CallSpec spec = float_call(in, out);
            if (rank == who) {
              odd.change(spec);
            }
            const auto result = comm.all_reduce(spec);
            ASSERT_FALSE(result) << "rank " << rank;
            ASSERT_EQ(result.error().code, Code::mismatch) << result.error().text;
            texts[static_cast<size_t>(rank)] = result.error().text;
            EXPECT_EQ(in, std::vector<float>(kCount, 3));
            EXPECT_EQ(out, std::vector<float>(kCount, 7));
            expect_usable(comm, static_cast<float>(node_of.size()));
          }
        },
        options);
    for (const std::string& text : texts) {
      EXPECT_EQ(text, texts[0]);
      for (const std::string& word : odd.words) {
        EXPECT_NE(text.find(word), std::string::npos) << text;
      }
      EXPECT_NE(text.find("rank " + std::to_string(who)), std::string::npos) << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, OneRankDiffers,
                         ::testing::Combine(::testing::Range<size_t>(0, std::size(kOdd)),
                                            ::testing::Range<size_t>(0, std::size(kNodes))),
                         [](const auto& p) {
                           return std::string(kOdd[std::get<0>(p.param)].name) + "_" +
                                  std::to_string(std::get<1>(p.param));
                         });

MaskedPtr mine_or_theirs(bool odd, Contract contract) {
  return striped(kCount, odd ? 2 : 1, 4, contract, "layer3.weight");
}

TEST(Masks, LosslessGoesDenseTogetherAndSaysWho) {
  const LogCapture log;
  run_ranks({0, 0, 1, 1}, [](Comm& comm, int rank) {
    for (int round = 0; round < 3; ++round) {
      const std::vector<float> in(kCount, 1);  // also where either mask drops
      std::vector<float> out(kCount);
      must(comm, float_call(in, out, mine_or_theirs(rank == 2, Contract::lossless)));
      EXPECT_EQ(out, std::vector<float>(kCount, 4));
    }
    EXPECT_EQ(comm.stats().mismatches, 3u);
    EXPECT_EQ(comm.stats().calls_dense, 3u);
    EXPECT_EQ(comm.stats().violations, 0u);
    std::vector<float> data(kCount, 0);
    must(comm, float_call(data, data, mine_or_theirs(false, Contract::lossless)));
    EXPECT_EQ(comm.stats().calls_compact, 1u);
  });
  const auto warnings = log.warnings();
  ASSERT_EQ(warnings.size(), 1u);  // the same story is told once
  EXPECT_NE(warnings[0].find("layer3.weight"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("rank 2"), std::string::npos) << warnings[0];
}

// A rank without any mask differs as well; nobody may wait for the bytes that it does not send.
TEST(Masks, ARankWithoutAMask) {
  const LogCapture log;
  run_ranks({0, 1, 1}, [](Comm& comm, int rank) {
    const std::vector<float> in(kCount, 1);
    std::vector<float> out(kCount);
    must(comm,
         float_call(in, out, rank == 0 ? nullptr : mine_or_theirs(false, Contract::lossless)));
    EXPECT_EQ(out, std::vector<float>(kCount, 3));
  });
  ASSERT_EQ(log.warnings().size(), 1u);
  EXPECT_NE(log.warnings()[0].find("layer3.weight"), std::string::npos) << log.warnings()[0];
}

TEST(Masks, TheSameMaskUnderAnotherContractDiffers) {
  run_ranks({0, 1}, [](Comm& comm, int rank) {
    std::vector<float> in(kCount, 0), out(kCount, 7);
    const auto result = comm.all_reduce(float_call(
        in, out, mine_or_theirs(false, rank == 0 ? Contract::lossless : Contract::project)));
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::mismatch);
    EXPECT_EQ(out, std::vector<float>(kCount, 7));
    expect_usable(comm, 2);
  });
}

void expect_mask_error(Contract contract, OnMismatch on_rank_1) {
  const LogCapture log;
  std::vector<std::string> texts(4);
  ClusterOptions options;
  options.adjust = [&](int rank, collective::CommOptions& o) {
    o.config.on_mismatch = rank == 1 ? on_rank_1 : OnMismatch::dense;
  };
  run_ranks(
      {0, 0, 1, 1},
      [&](Comm& comm, int rank) {
        for (int round = 0; round < 2; ++round) {
          const std::vector<float> in(kCount, 1);
          std::vector<float> out(kCount, 7);
          const auto result =
              comm.all_reduce(float_call(in, out, mine_or_theirs(rank == 3, contract)));
          ASSERT_FALSE(result);
          EXPECT_EQ(result.error().code, Code::mismatch);
          texts[static_cast<size_t>(rank)] = result.error().text;
          EXPECT_EQ(out, std::vector<float>(kCount, 7));
          expect_usable(comm, 4);
        }
        std::vector<float> data(kCount, 0);
        must(comm, float_call(data, data, mine_or_theirs(false, contract)));
        EXPECT_EQ(comm.stats().calls_compact, 1u);
      },
      options);
  for (const std::string& text : texts) {
    EXPECT_EQ(text, texts[0]);
    EXPECT_NE(text.find("rank 3"), std::string::npos) << text;
    EXPECT_NE(text.find("layer3.weight"), std::string::npos) << text;
  }
  EXPECT_TRUE(log.warnings().empty());
}

TEST(Masks, ProjectIsAlwaysAnError) { expect_mask_error(Contract::project, OnMismatch::dense); }

TEST(Masks, OneRankMayAskForErrors) { expect_mask_error(Contract::lossless, OnMismatch::error); }

// A rank that is alone on its node may settle calls of scope node with itself.
TEST(Calls, ANodeOfOneByItself) {
  run_ranks({0, 1, 1}, [](Comm& comm, int rank) {
    std::vector<float> data(kCount, 1);
    for (int call = 0; rank == 0 && call < 3; ++call) {
      must(comm, float_call(data, data, nullptr, Op::avg, Scope::node));
    }
    expect_usable(comm, 3);
    EXPECT_EQ(comm.stats().mismatches, 0u);
  });
}

TEST(Masks, InsideOneNodeOnly) {
  run_ranks({0, 0, 1, 1}, [](Comm& comm, int rank) {
    const std::vector<float> in(kCount, 1);
    std::vector<float> out(kCount);
    must(comm,
         float_call(in, out, mine_or_theirs(rank == 1, Contract::lossless), Op::sum, Scope::node));
    EXPECT_EQ(out, std::vector<float>(kCount, 2));
    EXPECT_EQ(comm.stats().mismatches, rank < 2 ? 1u : 0u);
    for (int round = 0; round < 2; ++round) {
      expect_usable(comm, 4);
    }
    EXPECT_EQ(comm.stats().mismatches, rank < 2 ? 1u : 0u);
  });
}

// Which calls of a sampled mask are checked is counted by every rank: once ranks were of different
// minds about the mask, they must still count alike.
TEST(Masks, SampledCallsAreCountedAlikeAfterADifference) {
  run_ranks({0, 1}, [](Comm& comm, int rank) {
    std::vector<float> data(kCount, 0);
    must(comm, float_call(data, data, mine_or_theirs(rank == 1, Contract::sampled)));
    EXPECT_EQ(comm.stats().mismatches, 1u);
    for (int call = 0; call < 70; ++call) {
      must(comm, float_call(data, data, mine_or_theirs(false, Contract::sampled)));
    }
    EXPECT_EQ(comm.stats().mismatches, 1u);
  });
}

// So must what is known about broken promises.
TEST(Masks, BrokenPromisesAreKnownAlikeAfterADifference) {
  run_ranks({0, 1}, [](Comm& comm, int rank) {
    std::vector<float> bad(kCount, 1), zeros(kCount, 0);
    must(comm, float_call(bad, bad, mine_or_theirs(false, Contract::lossless)));
    EXPECT_EQ(comm.stats().violations, 1u);
    must(comm, float_call(zeros, zeros, mine_or_theirs(rank == 1, Contract::lossless)));
    EXPECT_EQ(comm.stats().mismatches, 1u);
    for (int call = 0; call < 3; ++call) {
      must(comm, float_call(zeros, zeros, mine_or_theirs(false, Contract::lossless)));
    }
    EXPECT_EQ(comm.stats().mismatches, 1u);
  });
}

TEST(Calls, AllReduceAgainstAgreeMask) {
  for (const Scope scope : {Scope::world, Scope::leaders}) {
    run_ranks({0, 0, 1}, [&](Comm& comm, int rank) {
      const std::vector<float> scores(64, 1);
      const size_t groups = 64, keep = 10;
      AgreeSpec agree;
      agree.scope = scope;
      agree.scores = scores;
      agree.layer_groups = std::span(&groups, 1);
      agree.layer_keep = std::span(&keep, 1);
      std::vector<uint8_t> out(64, 9);
      std::vector<double> data(64, 3);
      CallSpec spec;
      spec.send = spec.recv = data.data();
      spec.count = 64;
      spec.type = DType::f64;
      spec.scope = scope;
      const auto result = rank == 1 ? comm.all_reduce(spec) : agree_mask(comm, agree, out);
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().code, Code::mismatch) << result.error().text;
      EXPECT_EQ(data, std::vector<double>(64, 3));
      EXPECT_EQ(out, std::vector<uint8_t>(64, 9));
      expect_usable(comm, 3);
    });
  }
}

// Records of many named segments are longer than a node's slots.
TEST(Calls, LongRecordsInsideANode) {
  const LogCapture log;
  ClusterOptions options;
  options.timeout_s = 20;
  options.adjust = [](int, collective::CommOptions& o) { o.config.chunk_bytes = 4096; };
  run_ranks(
      {0, 0, 0},
      [](Comm& comm, int rank) {
        const auto mask = mask_of(8, [](uint64_t i) { return i % 2 == 0; });
        std::vector<Piece> pieces;
        for (size_t i = 0; i < 9000; ++i) {
          pieces.push_back({8, mask, Contract::lossless,
                            "a.rather.long.name.of.a.parameter." + std::to_string(i)});
        }
        std::vector<float> data(72'000, 1);
        must(comm,
             float_call(data, data, rank == 1 ? nullptr : layout_of(pieces), Op::sum, Scope::node));
        EXPECT_EQ(data, std::vector<float>(72'000, 3));
        expect_usable(comm, 3);
      },
      options);
  EXPECT_EQ(log.warnings().size(), 1u);
}

}  // namespace
}  // namespace prunex::test

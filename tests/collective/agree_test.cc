// SPDX-License-Identifier: Apache-2.0
// Mask agreement: one mask for all from everybody's scores.
#include <gtest/gtest.h>

#include "plugin/collective/agree.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>

#include "tests/collective/cluster.h"
#include "tests/collective/float_call.h"
#include "tests/collective/random_call.h"

namespace prunex::test {
namespace {

using collective::AgreeMode;
using collective::AgreeSpec;
using collective::Comm;
using collective::Scope;

using Bytes = std::vector<uint8_t>;

struct Ask {  // owns what an AgreeSpec names
  AgreeMode mode = AgreeMode::top_k;
  Scope scope = Scope::leaders;
  double weight = 1, hysteresis = 0;
  std::vector<float> scores;
  std::vector<size_t> groups, keep;
  Bytes incumbents;

  [[nodiscard]] AgreeSpec spec() const {
    AgreeSpec s;
    s.mode = mode;
    s.scope = scope;
    s.weight = weight;
    s.hysteresis = hysteresis;
    s.scores = scores;
    s.layer_groups = groups;
    s.layer_keep = keep;
    s.incumbents = incumbents;
    return s;
  }
};

Ask top(std::vector<float> scores, size_t keep) {
  Ask ask;
  ask.groups = {scores.size()};
  ask.keep = {keep};
  ask.scores = std::move(scores);
  return ask;
}

// Asks on all ranks; all must come to the same answer.
Bytes agreed(const std::vector<int>& node_of, const std::function<Ask(int rank)>& ask) {
  std::mutex mutex;
  std::set<Bytes> answers;
  run_ranks(node_of, [&](Comm& comm, int rank) {
    const Ask mine = ask(rank);
    Bytes keep(mine.scores.size(), 9);
    const auto result = agree_mask(comm, mine.spec(), keep);
    ASSERT_TRUE(result) << result.error().text;
    const std::lock_guard lock(mutex);
    answers.insert(keep);
  });
  EXPECT_EQ(answers.size(), 1u);
  return answers.empty() ? Bytes() : *answers.begin();
}

const std::vector<int> kTwoByTwo = {0, 0, 1, 1};

TEST(TopK, SumsOneContributionPerNode) {
  // Leaders 0 and 2: {5,1,1,0} + {0,1,3,5}. What the others say does not count.
  EXPECT_EQ(agreed(kTwoByTwo,
                   [](int rank) {
                     return top(rank == 0   ? std::vector<float>{5, 1, 1, 0}
                                : rank == 2 ? std::vector<float>{0, 1, 3, 5}
                                            : std::vector<float>{0, 100, 0, 0},
                                2);
                   }),
            (Bytes{1, 0, 0, 1}));
}

TEST(TopK, ScopeWorldTakesEveryRank) {
  EXPECT_EQ(agreed(kTwoByTwo,
                   [](int rank) {
                     Ask a = top(rank == 0   ? std::vector<float>{5, 1, 1, 0}
                                 : rank == 2 ? std::vector<float>{0, 1, 3, 4}
                                             : std::vector<float>{0, 100, 0, 0},
                                 1);
                     a.scope = Scope::world;
                     return a;
                   }),
            (Bytes{0, 1, 0, 0}));
}

TEST(TopK, ScopeNodeStaysInTheNode) {
  run_ranks(kTwoByTwo, [](Comm& comm, int rank) {
    Ask a = top(rank < 2 ? std::vector<float>{1, 2} : std::vector<float>{2, 1}, 1);
    a.scope = Scope::node;
    Bytes keep(2);
    ASSERT_TRUE(agree_mask(comm, a.spec(), keep));
    EXPECT_EQ(keep, rank < 2 ? (Bytes{0, 1}) : (Bytes{1, 0}));
  });
}

TEST(TopK, WeightsCount) {
  // Node 0 weighs 1, node 1 weighs 3.
  EXPECT_EQ(
      agreed(
          {0, 1, 1},
          [](int rank) {
            Ask a = top(rank == 0 ? std::vector<float>{5, 0, 1} : std::vector<float>{0, 2, 1}, 1);
            a.weight = rank == 0 ? 1 : 3;
            return a;
          }),
      (Bytes{0, 1, 0}));
}

TEST(TopK, TiesGoToTheLowerIndex) {
  EXPECT_EQ(agreed({0, 1}, [](int) { return top({1, 1, 1, 1, 1}, 3); }), (Bytes{1, 1, 1, 0, 0}));
  EXPECT_EQ(agreed({0, 1}, [](int) { return top({0, 0, 0}, 2); }), (Bytes{1, 1, 0}));
  EXPECT_EQ(agreed({0, 1}, [](int) { return top({1, 2, 2, 2, 1}, 2); }), (Bytes{0, 1, 1, 0, 0}));
}

TEST(TopK, IncumbentsStayUnlessClearlyBeaten) {
  const auto ask = [](double hysteresis) {
    return [hysteresis](int) {
      Ask a = top({1.0f, 1.2f, 1.3f, 0.5f}, 2);
      a.incumbents = {1, 0, 0, 1};
      a.hysteresis = hysteresis;
      return a;
    };
  };
  EXPECT_EQ(agreed({0, 1}, ask(0)), (Bytes{0, 1, 1, 0}));
  EXPECT_EQ(agreed({0, 1}, ask(0.25)), (Bytes{1, 0, 1, 0}));  // 1.25 beats 1.2, not 1.3
  EXPECT_EQ(agreed({0, 1}, ask(9)), (Bytes{1, 0, 0, 1}));
}

TEST(TopK, EveryLayerKeepsItsBudgetExactly) {
  Random random(5);
  std::vector<Ask> asks(3);
  for (int round = 0; round < 10; ++round) {
    std::vector<size_t> groups, keep;
    for (int l = 0; l < 12; ++l) {
      groups.push_back(random() % 70);
      keep.push_back(random() % (groups.back() + 1));
    }
    const size_t all = std::accumulate(groups.begin(), groups.end(), size_t{0});
    for (Ask& a : asks) {
      a.groups = groups;
      a.keep = keep;
      a.scores.resize(all);
      for (float& s : a.scores) {
        s = static_cast<float>(random() % 8);  // many ties
      }
    }
    const Bytes got = agreed({0, 1, 2}, [&](int rank) { return asks[static_cast<size_t>(rank)]; });
    size_t at = 0;
    for (size_t l = 0; l < groups.size(); ++l) {
      std::vector<std::pair<float, size_t>> order;  // best first, then lowest index
      for (size_t g = at; g < at + groups[l]; ++g) {
        order.emplace_back(-(asks[0].scores[g] + asks[1].scores[g] + asks[2].scores[g]), g);
      }
      std::sort(order.begin(), order.end());
      for (size_t k = 0; k < order.size(); ++k) {
        ASSERT_EQ(got[order[k].second], k < keep[l] ? 1 : 0) << "layer " << l;
      }
      at += groups[l];
    }
  }
}

TEST(TopK, SumsAreWiderThanScores) {
  // In fp32 the small difference would drown.
  EXPECT_EQ(agreed({0, 1},
                   [](int rank) {
                     return top(rank == 0 ? std::vector<float>{16777216.0f, 16777216.0f}
                                          : std::vector<float>{0, 1},
                                1);
                   }),
            (Bytes{0, 1}));
}

TEST(TopK, NoGroups) {
  EXPECT_EQ(agreed({0, 1}, [](int) { return top({}, 0); }), Bytes());
}

TEST(TopK, ManyGroups) {
  const Bytes got = agreed({0, 0, 1}, [](int) {
    std::vector<float> scores(200'000);
    for (size_t g = 0; g < scores.size(); ++g) {
      scores[g] = static_cast<float>(g % 1000);
    }
    return top(std::move(scores), 400);
  });
  for (size_t g = 0; g < got.size(); ++g) {
    ASSERT_EQ(got[g], g % 1000 >= 998 ? 1 : 0) << g;
  }
}

TEST(Modes, UnionAndIntersection) {
  const auto ask = [](AgreeMode mode, Scope scope) {
    return [mode, scope](int rank) {
      Ask a = top(rank == 0   ? std::vector<float>{1, 0, 3, 0}
                  : rank == 2 ? std::vector<float>{0.5f, 0.25f, 0, 0}
                              : std::vector<float>{1, 0, 0, 9},
                  0);
      a.mode = mode;
      a.scope = scope;
      return a;
    };
  };
  EXPECT_EQ(agreed(kTwoByTwo, ask(AgreeMode::unite, Scope::leaders)), (Bytes{1, 1, 1, 0}));
  EXPECT_EQ(agreed(kTwoByTwo, ask(AgreeMode::intersect, Scope::leaders)), (Bytes{1, 0, 0, 0}));
  EXPECT_EQ(agreed(kTwoByTwo, ask(AgreeMode::unite, Scope::world)), (Bytes{1, 1, 1, 1}));
  EXPECT_EQ(agreed(kTwoByTwo, ask(AgreeMode::intersect, Scope::world)), (Bytes{1, 0, 0, 0}));
}

// Every rank gets an error, keep_out is untouched, and the communicator goes on.
void expect_refused(const std::function<void(Ask&)>& spoil, int who, const char* word) {
  run_ranks(kTwoByTwo, [&](Comm& comm, int rank) {
    Ask a = top({3, 2, 1, 0}, 2);
    a.scope = Scope::world;
    if (rank == who || who < 0) {
      spoil(a);
    }
    Bytes keep(a.scores.size(), 9);
    const auto result = agree_mask(comm, a.spec(), keep);
    ASSERT_FALSE(result) << "rank " << rank;
    EXPECT_EQ(keep, Bytes(a.scores.size(), 9));
    if (rank == who || who < 0) {
      EXPECT_NE(result.error().text.find(word), std::string::npos) << result.error().text;
    } else {
      EXPECT_EQ(result.error().code, Code::mismatch) << result.error().text;
      EXPECT_NE(result.error().text.find("rank " + std::to_string(who)), std::string::npos)
          << result.error().text;
    }
    const Ask good = top({3, 2, 1, 0}, 2);
    Bytes again(4);
    ASSERT_TRUE(agree_mask(comm, good.spec(), again));
    EXPECT_EQ(again, (Bytes{1, 1, 0, 0}));
  });
}

TEST(Refused, BadScores) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const int who : {1, 2, -1}) {
    expect_refused([](Ask& a) { a.scores[2] = kNan; }, who, "group 2");
    expect_refused([](Ask& a) { a.scores[1] = kInf; }, who, "group 1");
    expect_refused([](Ask& a) { a.scores[3] = -1; }, who, "group 3");
  }
}

TEST(Refused, BadNumbers) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  expect_refused([](Ask& a) { a.weight = kNan; }, 3, "weight");
  expect_refused([](Ask& a) { a.weight = -1; }, 3, "weight");
  expect_refused([](Ask& a) { a.hysteresis = kNan; }, 1, "hysteresis");
  expect_refused([](Ask& a) { a.hysteresis = -0.5; }, 1, "hysteresis");
  expect_refused([](Ask& a) { a.keep = {5}; }, 1, "layer 0 keeps 5 of its 4");
  expect_refused([](Ask& a) { a.groups = {3}; }, 1, "3 groups");
  expect_refused(
      [](Ask& a) {
        a.groups = {SIZE_MAX, 5};  // 4, if sums may wrap
        a.keep = {1, 1};
      },
      1, "groups");
}

TEST(Refused, UnequalArguments) {
  const auto differs = [](const std::function<void(Ask&)>& change) {
    expect_refused(change, 2, "rank");
  };
  differs([](Ask& a) { a.keep = {1}; });
  differs([](Ask& a) { a.hysteresis = 0.25; });
  differs([](Ask& a) { a.incumbents = {1, 0, 0, 0}; });
  differs([](Ask& a) { a.mode = AgreeMode::unite; });
  differs([](Ask& a) { a.scope = Scope::leaders; });
  differs([](Ask& a) {
    a.groups = {2, 2};
    a.keep = {1, 1};
  });
  differs([](Ask& a) {
    a.scores.push_back(0);
    a.groups = {5};
  });
}

// Nodes that agree among themselves need not ask the same.
TEST(Scopes, NodesAskDifferentThings) {
  run_ranks({0, 0, 1}, [](Comm& comm, int rank) {
    Ask a = top({1, 2, 3}, rank < 2 ? 1 : 2);
    a.scope = Scope::node;
    Bytes keep(3);
    ASSERT_TRUE(agree_mask(comm, a.spec(), keep));
    EXPECT_EQ(keep, rank < 2 ? (Bytes{0, 0, 1}) : (Bytes{0, 1, 1}));
    std::vector<float> data(100, 1);
    must(comm, float_call(data, data));
    EXPECT_EQ(data[0], 3);
  });
}

}  // namespace
}  // namespace prunex::test

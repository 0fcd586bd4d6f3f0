// SPDX-License-Identifier: Apache-2.0
// Thousands of random rank maps against a second, slower reading of the rules.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "tests/topology/support.h"

namespace prunex::topo {
namespace {

using test::nic;
using test::rank;

class RandomMaps {
 public:
  explicit RandomMaps(uint32_t seed) : random_(seed) {}
  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  // Ranks in any order on any nodes; all ranks of a node see the same NICs unless `holes`.
  std::vector<RankFacts> next(bool holes) {
    const int nodes = 1 + below(6);
    const int ranks = nodes + below(30);
    static constexpr int kSpeeds[] = {0, 1000, 10000, 25000, 100000, 200000};
    std::vector<std::vector<NicFacts>> nics(static_cast<size_t>(nodes));
    for (size_t n = 0; n < nics.size(); ++n) {
      for (int i = below(6); i > 0; --i) {
        NicFacts one = nic("dev" + std::to_string(i), kSpeeds[below(6)]);
        one.rdma = below(2) == 0;
        if (below(2) == 0) {
          one.address = "10." + std::to_string(below(3)) + ".0." + std::to_string(n + 1);
          one.prefix = 24;
        }
        nics[n].push_back(one);
      }
    }
    std::vector<int> node_of;
    for (int r = 0; r < ranks; ++r) {
      node_of.push_back(r < nodes ? r : below(nodes));  // no node is empty
    }
    std::shuffle(node_of.begin(), node_of.end(), random_);
    std::vector<RankFacts> facts;
    for (int r = 0; r < ranks; ++r) {
      const auto n = static_cast<size_t>(node_of[static_cast<size_t>(r)]);
      RankFacts f = rank(r, "node" + std::to_string(n), nics[n]);
      for (NicFacts& one : f.nics) {
        one.distance = static_cast<Distance>(below(5));
      }
      if (holes) {
        std::erase_if(f.nics, [&](const NicFacts&) { return below(3) == 0; });
      }
      facts.push_back(std::move(f));
    }
    std::shuffle(facts.begin(), facts.end(), random_);
    return facts;
  }

  std::vector<RankFacts> shuffled(std::vector<RankFacts> facts) {
    std::shuffle(facts.begin(), facts.end(), random_);
    return facts;
  }

 private:
  std::mt19937 random_;
};

std::map<int, const RankFacts*> index(const std::vector<RankFacts>& facts) {
  std::map<int, const RankFacts*> out;
  for (const RankFacts& f : facts) {
    out[f.rank] = &f;
  }
  return out;
}

// NICs that may be rails: at least half as fast as the fastest.
std::vector<NicFacts> usable(const RankFacts& facts) {
  int fastest = 0;
  for (const NicFacts& n : facts.nics) {
    fastest = std::max(fastest, n.speed_mbps);
  }
  std::vector<NicFacts> out;
  for (const NicFacts& n : facts.nics) {
    if (n.speed_mbps * 2 >= fastest) {
      out.push_back(n);
    }
  }
  return out;
}

void check_leaders(const World& w, const std::vector<RankFacts>& facts) {
  const auto by_rank = index(facts);
  for (const Node& node : w.nodes) {
    if (by_rank.at(node.ranks.front())->nics.empty()) {
      EXPECT_EQ(node.leaders[0].rank, node.ranks.front());
      continue;
    }
    std::set<int> busy;
    std::pair<int, int> previous = {INT32_MAX, 1};  // speed and RDMA of the rail before
    for (const Leader& leader : node.leaders) {
      const NicFacts& used = by_rank.at(leader.rank)->nics.at(static_cast<size_t>(leader.nic));
      const std::pair now = {used.speed_mbps, used.rdma ? 1 : 0};
      EXPECT_LE(now, previous) << "a faster NIC, or an RDMA one, comes after another";
      previous = now;
      if (w.rails > static_cast<int>(node.ranks.size())) {
        continue;
      }
      for (const int other : node.ranks) {
        if (busy.count(other) != 0) {
          continue;
        }
        const Distance d = by_rank.at(other)->nics.at(static_cast<size_t>(leader.nic)).distance;
        EXPECT_GE(std::pair(d, other), std::pair(used.distance, leader.rank));
      }
      EXPECT_TRUE(busy.insert(leader.rank).second);
    }
  }
}

TEST(WorldRandom, leaders_and_rails_follow_the_rules) {
  RandomMaps maps(20240601);
  for (int round = 0; round < 4000; ++round) {
    const auto facts = maps.next(false);
    const int cap = maps.below(4);
    const World w = test::world_of(facts, cap);
    const auto by_rank = index(facts);
    size_t rails = cap > 0 ? static_cast<size_t>(cap) : SIZE_MAX;
    std::set<std::string> ids;
    for (const auto& [number, f] : by_rank) {
      rails = std::min(rails, usable(*f).size());
      ids.insert(f->node_id);
      EXPECT_EQ(w.nodes[static_cast<size_t>(w.node_of[static_cast<size_t>(number)])].id,
                f->node_id);
    }
    EXPECT_EQ(w.nodes.size(), ids.size());
    EXPECT_EQ(static_cast<size_t>(w.rails), std::max<size_t>(rails, 1));
    check_leaders(w, facts);
    EXPECT_EQ(test::world_of(maps.shuffled(facts), cap).digest, w.digest);
    if (HasFailure()) {
      FAIL() << "round " << round;
    }
  }
}

TEST(WorldRandom, containers_that_see_different_devices_still_make_a_valid_world) {
  RandomMaps maps(99);
  for (int round = 0; round < 4000; ++round) {
    const auto facts = maps.next(true);
    const World w = test::world_of(facts, maps.below(4));
    const auto by_rank = index(facts);
    for (const Node& node : w.nodes) {
      for (const Leader& leader : node.leaders) {
        EXPECT_LT(leader.nic, static_cast<int>(by_rank.at(leader.rank)->nics.size()));
        EXPECT_FALSE(leader.why.empty());
      }
    }
    if (HasFailure()) {
      FAIL() << "round " << round;
    }
  }
}

TEST(WorldRandom, ten_thousand_ranks) {
  std::vector<RankFacts> facts;
  for (int r = 0; r < 10000; ++r) {
    facts.push_back(
        rank(r, "node" + std::to_string(r % 1250),
             {nic("a", 400000, r % 2 == 0 ? Distance::same_switch : Distance::same_machine),
              nic("b", 400000, r % 2 != 0 ? Distance::same_switch : Distance::same_machine)}));
  }
  const World w = test::world_of(facts);
  EXPECT_EQ(w.nodes.size(), 1250U);
  EXPECT_EQ(w.rails, 2);
}

}  // namespace
}  // namespace prunex::topo

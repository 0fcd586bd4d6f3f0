// SPDX-License-Identifier: Apache-2.0
#include "topology/world.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>

#include "tests/topology/support.h"

namespace prunex::topo {
namespace {

using test::leaders;
using test::nic;
using test::rank;
using test::world_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(World, nodes_are_ordered_by_their_lowest_rank) {
  const World w = world_of({rank(3, "b"), rank(0, "z"), rank(2, "a"), rank(1, "b"), rank(4, "z")});
  ASSERT_EQ(w.nodes.size(), 3U);
  EXPECT_EQ(w.nodes[0].id, "z");
  EXPECT_EQ(w.nodes[1].id, "b");
  EXPECT_EQ(w.nodes[2].id, "a");
  EXPECT_THAT(w.nodes[0].ranks, ElementsAre(0, 4));
  EXPECT_THAT(w.nodes[1].ranks, ElementsAre(1, 3));
  EXPECT_THAT(w.node_of, ElementsAre(0, 1, 2, 1, 0));
  EXPECT_THAT(w.local_of, ElementsAre(0, 0, 0, 1, 1));
}

TEST(World, identities_are_compared_in_full) {
  const std::string base(900, 'x');
  const World w = world_of({rank(0, base + "1"), rank(1, base + "2"), rank(2, base + "1")});
  EXPECT_EQ(w.nodes.size(), 2U);
}

TEST(World, without_nic_facts_the_lowest_rank_leads) {
  const World w = world_of({rank(0, "a"), rank(1, "b"), rank(2, "a"), rank(3, "b")});
  EXPECT_EQ(w.rails, 1);
  EXPECT_THAT(leaders(w, 0), ElementsAre(0));
  EXPECT_THAT(leaders(w, 1), ElementsAre(1));
  EXPECT_EQ(w.nodes[0].leaders[0].nic, -1);
  EXPECT_THAT(w.nodes[0].leaders[0].why, HasSubstr("no NIC"));
}

TEST(World, the_leader_is_nearest_to_the_fastest_nic) {
  // Rank 0 is near the slow NIC, rank 2 near the fast one; the slow one is too slow for a rail.
  const auto at = [](Distance slow, Distance fast) {
    return std::vector{nic("slow", 10000, slow), nic("fast", 100000, fast)};
  };
  const World w = world_of({rank(0, "a", at(Distance::same_switch, Distance::same_machine)),
                            rank(1, "a", at(Distance::same_numa, Distance::same_machine)),
                            rank(2, "a", at(Distance::same_machine, Distance::same_root))});
  EXPECT_EQ(w.rails, 1);
  EXPECT_THAT(leaders(w, 0), ElementsAre(2));
  EXPECT_EQ(w.nodes[0].leaders[0].nic, 1);
  EXPECT_THAT(w.nodes[0].leaders[0].why, HasSubstr("nearest to fast (100 Gb/s, same PCI root)"));
}

TEST(World, ties_go_to_the_lowest_rank) {
  const std::vector near = {nic("eth0", 10000, Distance::same_numa)};
  const std::vector far = {nic("eth0", 10000, Distance::same_machine)};
  const World w = world_of({rank(0, "a", far), rank(1, "a", near), rank(2, "a", near)});
  EXPECT_THAT(leaders(w, 0), ElementsAre(1));
}

TEST(World, one_leader_per_nic_each_near_its_own) {
  std::vector<RankFacts> facts;
  for (int r = 0; r < 8; ++r) {
    std::vector<NicFacts> nics;
    for (int n = 0; n < 4; ++n) {
      nics.push_back(nic("mlx5_" + std::to_string(n), 200000,
                         r / 2 == n ? Distance::same_switch : Distance::same_machine));
    }
    facts.push_back(rank(r, "a", nics));
  }
  EXPECT_THAT(leaders(world_of(facts), 0), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(leaders(world_of(facts, 2), 0), ElementsAre(0, 2));
  EXPECT_EQ(world_of(facts, 2).rails, 2);
}

TEST(World, rails_are_the_fewest_of_any_node) {
  const std::vector two = {nic("eth0", 1000), nic("eth1", 1000)};
  const std::vector one = {nic("eth0", 1000)};
  EXPECT_EQ(world_of({rank(0, "a", two), rank(1, "a", two), rank(2, "b", one)}).rails, 1);
  EXPECT_EQ(world_of({rank(0, "a", two), rank(1, "a", two), rank(2, "b", two)}).rails, 2);
  EXPECT_EQ(world_of({rank(0, "a", two), rank(1, "b")}).rails, 1);
}

TEST(World, a_rank_leads_twice_only_when_ranks_are_fewer_than_rails) {
  std::vector<NicFacts> all_near;
  for (int n = 0; n < 5; ++n) {
    all_near.push_back(nic("n" + std::to_string(n), 1000, Distance::same_switch));
  }
  std::vector<NicFacts> all_far = all_near;
  for (NicFacts& n : all_far) {
    n.distance = Distance::same_machine;
  }
  // Rank 0 is nearest to everything, but the work is shared: 5 rails over 2 ranks are 3 and 2.
  const World w = world_of({rank(0, "a", all_near), rank(1, "a", all_far)});
  EXPECT_EQ(w.rails, 5);
  const auto led = leaders(w, 0);
  EXPECT_EQ(std::count(led.begin(), led.end(), 0), 3);
  EXPECT_THAT(w.nodes[0].leaders[1].why, HasSubstr("leads 2 rails, the node has 2 ranks"));
  EXPECT_THAT(leaders(world_of({rank(0, "a", all_near)}), 0), ElementsAre(0, 0, 0, 0, 0));
  const World capped = world_of({rank(0, "a", all_near), rank(1, "a", all_far)}, 2);
  EXPECT_THAT(leaders(capped, 0), ElementsAre(0, 1));
  EXPECT_THAT(capped.nodes[0].leaders[1].why, HasSubstr("rank 0 is nearer but leads already"));
}

TEST(World, nics_are_taken_fastest_first_then_rdma_then_device_order) {
  std::vector<NicFacts> nics = {nic("plain", 100000), nic("fastest", 200000), nic("rdma", 100000),
                                nic("last", 100000)};
  nics[2].rdma = true;
  const World w = world_of({rank(0, "a", nics)});
  std::vector<int> order;
  for (const Leader& leader : w.nodes[0].leaders) {
    order.push_back(leader.nic);
  }
  EXPECT_THAT(order, ElementsAre(1, 2, 0, 3));
}

TEST(World, a_slow_or_unmeasured_nic_beside_a_fast_one_is_no_rail) {
  const auto rails = [](std::vector<NicFacts> nics) {
    return world_of({rank(0, "a", std::move(nics))}).rails;
  };
  EXPECT_EQ(rails({nic("ib0", 200000), nic("eno1", 1000)}), 1);
  EXPECT_EQ(rails({nic("ib0", 200000), nic("ib1", 100000)}), 2);
  EXPECT_EQ(rails({nic("ib0", 200000), nic("ib1", 99999)}), 1);
  EXPECT_EQ(rails({nic("a", 3), nic("b", 1)}), 1);
  EXPECT_EQ(rails({nic("ib0", 200000), nic("tap0", 0)}), 1);
  EXPECT_EQ(rails({nic("virtio0", 0), nic("virtio1", 0)}), 2);
}

TEST(World, common_transports_are_those_of_every_rank) {
  auto a = rank(0, "a"), b = rank(1, "b");
  a.transports = kTransportSocket | kTransportShm | kTransportVerbs;
  b.transports = kTransportSocket | kTransportVerbs;
  EXPECT_EQ(world_of({a, b}).transports, uint32_t{kTransportSocket | kTransportVerbs});
}

NicFacts in_network(std::string name, std::string address, int prefix = 24) {
  NicFacts n = nic(std::move(name), 100000, Distance::unknown, std::move(address));
  n.prefix = prefix;
  return n;
}

std::string rail_addresses(const std::vector<RankFacts>& facts, size_t rail) {
  const World w = world_of(facts);
  std::string out;
  for (const Node& node : w.nodes) {
    const Leader& leader = node.leaders[rail];
    const auto it = std::find_if(facts.begin(), facts.end(),
                                 [&](const RankFacts& f) { return f.rank == leader.rank; });
    out += it->nics[static_cast<size_t>(leader.nic)].address + " ";
  }
  return out;
}

TEST(Reports, B17_rails_pair_nics_of_one_network) {
  // Names swapped on the second node.
  const std::vector<RankFacts> swapped = {
      rank(0, "a", {in_network("eth0", "10.0.0.1"), in_network("eth1", "10.100.0.1")}),
      rank(1, "b", {in_network("eth0", "10.100.0.2"), in_network("eth1", "10.0.0.2")})};
  EXPECT_EQ(rail_addresses(swapped, 0), "10.0.0.1 10.0.0.2 ");
  EXPECT_EQ(rail_addresses(swapped, 1), "10.100.0.1 10.100.0.2 ");
  // Only one network is shared.
  const std::vector<RankFacts> partly = {
      rank(0, "a", {in_network("eth0", "10.0.0.1"), in_network("eth1", "10.100.0.1")}),
      rank(1, "b", {in_network("eth0", "10.100.0.2")})};
  EXPECT_EQ(rail_addresses(partly, 0), "10.100.0.1 10.100.0.2 ");
  // IPv6, and prefixes that end inside a byte.
  const std::vector<RankFacts> v6 = {
      rank(0, "a",
           {in_network("e0", "fd00:0:0:10::1", 60), in_network("e1", "fd00:0:0:20::1", 60)}),
      rank(1, "b",
           {in_network("e0", "fd00:0:0:2f::2", 60), in_network("e1", "fd00:0:0:1f::2", 60)})};
  EXPECT_EQ(rail_addresses(v6, 0), "fd00:0:0:10::1 fd00:0:0:1f::2 ");
  // One network for all, or none known: device order.
  const std::vector<RankFacts> flat = {
      rank(0, "a", {in_network("e0", "10.0.0.1"), in_network("e1", "10.0.0.9")}),
      rank(1, "b", {in_network("e0", "10.0.0.3"), in_network("e1", "10.0.0.2")})};
  EXPECT_EQ(rail_addresses(flat, 0), "10.0.0.1 10.0.0.3 ");
}

TEST(World, errors_name_the_ranks) {
  const auto text = [](std::vector<RankFacts> facts) {
    const auto world = make_world(facts);
    EXPECT_FALSE(world.has_value());
    return world ? std::string() : world.error().text;
  };
  EXPECT_THAT(text({}), HasSubstr("no rank"));
  EXPECT_THAT(text({rank(0, "a"), rank(2, "a"), rank(2, "b"), rank(7, "a")}),
              ::testing::AllOf(HasSubstr("out of range: 7"), HasSubstr("more than once: 2"),
                               HasSubstr("missing: 1, 3")));
  EXPECT_THAT(text({rank(-1, "a")}), HasSubstr("out of range: -1"));
  std::vector<RankFacts> all_zero(20, rank(0, "a"));
  EXPECT_THAT(text(all_zero), HasSubstr("and 11 more"));
  EXPECT_EQ(make_world(all_zero).error().rank, 1);
  EXPECT_FALSE(make_world(std::vector{rank(0, "a")}, {-1}).has_value());
}

TEST(World, the_digest_covers_what_decides_and_nothing_else) {
  const std::vector<NicFacts> nics = {nic("eth0", 1000, Distance::same_numa, "10.0.0.1"),
                                      nic("eth1", 1000, Distance::same_machine, "10.0.1.1")};
  const std::vector<RankFacts> base = {rank(0, "a", nics), rank(1, "a", nics), rank(2, "b", nics),
                                       rank(3, "b", nics)};
  const uint64_t digest = world_of(base).digest;
  std::vector<RankFacts> shuffled = {base[2], base[0], base[3], base[1]};
  shuffled[0].host = "another name";
  shuffled[1].note = "some note";
  EXPECT_EQ(world_of(shuffled).digest, digest);

  const std::function<void(std::vector<RankFacts>&)> changes[] = {
      [](auto& f) { f.pop_back(); },
      [](auto& f) { f[3].node_id = "c"; },
      [](auto& f) { f[2].node_id = f[3].node_id = "c"; },
      [](auto& f) { std::swap(f[1].node_id, f[2].node_id); },
      [](auto& f) {
        f[1].transports |= kTransportVerbs,
            f[0].transports = f[2].transports = f[3].transports = f[1].transports;
      },
      [](auto& f) { f[0].nics[0].distance = Distance::unknown; },
      [](auto& f) { f[0].nics[0].address = f[1].nics[0].address = "10.0.0.9"; },
      [](auto& f) {
        for (auto& r : f) {
          r.nics.pop_back();
        }
      },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    auto changed = base;
    changes[i](changed);
    EXPECT_NE(world_of(changed).digest, digest) << "change " << i;
  }
  EXPECT_NE(world_of(base, 1).digest, digest);
}

TEST(World, validate_notices_every_broken_invariant) {
  std::vector<NicFacts> nics = {nic("eth0"), nic("eth1")};
  const World good =
      world_of({rank(0, "a", nics), rank(1, "b", nics), rank(2, "a", nics), rank(3, "b", nics)});
  ASSERT_EQ(good.rails, 2);
  const std::function<void(World&)> breakages[] = {
      [](World& w) { w.size = 5; },
      [](World& w) { w.size = 0; },
      [](World& w) { w.node_of.pop_back(); },
      [](World& w) { w.node_of[2] = 1; },
      [](World& w) { w.local_of[2] = 0; },
      [](World& w) { std::swap(w.nodes[0], w.nodes[1]); },
      [](World& w) { w.nodes[1].id = w.nodes[0].id; },
      [](World& w) { std::swap(w.nodes[0].ranks[0], w.nodes[0].ranks[1]); },
      [](World& w) { w.nodes[0].ranks.pop_back(); },
      [](World& w) { w.nodes.pop_back(); },
      [](World& w) { w.nodes[1].ranks.clear(); },
      [](World& w) { w.rails = 1; },
      [](World& w) { w.rails = 0; },
      [](World& w) { w.nodes[0].leaders.pop_back(); },
      [](World& w) { w.nodes[0].leaders[0].rank = 1; },
      [](World& w) { w.nodes[0].leaders[1].rank = 0; },
      [](World& w) { w.nodes[0].leaders[1] = w.nodes[0].leaders[0]; },
      [](World& w) { w.nodes[0].leaders[1].nic = -1; },
      [](World& w) { w.nodes[0].leaders[1].nic = -2; },
  };
  for (size_t i = 0; i < std::size(breakages); ++i) {
    World broken = good;
    breakages[i](broken);
    EXPECT_FALSE(validate(broken).has_value()) << "breakage " << i;
  }
}

}  // namespace
}  // namespace prunex::topo

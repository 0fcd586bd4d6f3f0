// SPDX-License-Identifier: Apache-2.0
#include "topology/world.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "plugin/base/digest.h"
#include "topology/rails.h"

namespace prunex::topo {
namespace {

std::string list_text(const std::vector<int>& ranks) {
  constexpr size_t kShown = 8;
  std::string out;
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    out += strf("%s%d", i == 0 ? "" : ", ", ranks[i]);
  }
  if (ranks.size() > kShown) {
    out += strf(" and %zu more", ranks.size() - kShown);
  }
  return out;
}

// The facts by rank, or an error that names every rank that is wrong.
Result<std::vector<const RankFacts*>> by_rank(std::span<const RankFacts> facts) {
  if (facts.empty()) {
    return fail(Code::invalid_argument,
                "no rank has published its facts: a world needs at least one");
  }
  std::vector<const RankFacts*> found(facts.size(), nullptr);
  std::vector<int> outside, twice, missing;
  for (const RankFacts& f : facts) {
    if (f.rank < 0 || static_cast<size_t>(f.rank) >= facts.size()) {
      outside.push_back(f.rank);
    } else if (found[static_cast<size_t>(f.rank)] != nullptr) {
      twice.push_back(f.rank);
    } else {
      found[static_cast<size_t>(f.rank)] = &f;
    }
  }
  for (size_t r = 0; r < found.size(); ++r) {
    if (found[r] == nullptr) {
      missing.push_back(static_cast<int>(r));
    }
  }
  if (missing.empty()) {
    return found;
  }
  std::string text =
      strf("%zu records must be of ranks 0 to %zu, one each:", facts.size(), facts.size() - 1);
  const char* separator = " ";
  for (const auto& [what, ranks] :
       {std::pair{"out of range: ", &outside}, std::pair{"given more than once: ", &twice},
        std::pair{"missing: ", &missing}}) {
    if (!ranks->empty()) {
      text += separator + (what + list_text(*ranks));
      separator = "; ";
    }
  }
  return fail(Code::mismatch, text + "; give every process its own rank and the same world size", 0,
              missing.front());
}

World group_nodes(const std::vector<const RankFacts*>& facts) {
  World world;
  world.size = static_cast<int>(facts.size());
  world.transports = ~uint32_t{0};
  std::unordered_map<std::string_view, size_t> index;
  for (const RankFacts* f : facts) {
    const auto [it, fresh] = index.try_emplace(f->node_id, world.nodes.size());
    if (fresh) {
      world.nodes.push_back(Node{f->node_id, f->host, {}, {}});
    }
    Node& node = world.nodes[it->second];
    world.node_of.push_back(static_cast<int>(it->second));
    world.local_of.push_back(static_cast<int>(node.ranks.size()));
    node.ranks.push_back(f->rank);
    world.transports &= f->transports;
  }
  return world;
}

uint64_t digest_of(const World& world, const std::vector<const RankFacts*>& facts) {
  Digest digest;
  digest.add(world.size).add(world.rails).add(world.transports).add(world.nodes.size());
  for (const Node& node : world.nodes) {
    digest.add(std::string_view(node.id)).add(node.ranks.size());
    for (const int rank : node.ranks) {
      digest.add(rank);
    }
    for (const Leader& leader : node.leaders) {
      digest.add(leader.rank).add(leader.nic);
      if (leader.nic >= 0) {
        const NicFacts& nic =
            facts[static_cast<size_t>(leader.rank)]->nics[static_cast<size_t>(leader.nic)];
        digest.add(std::string_view(nic.name)).add(std::string_view(nic.address));
      }
    }
  }
  return digest.value();
}

tl::unexpected<Error> broken(const std::string& what) {
  return fail(Code::internal, "world: " + what);
}

Result<> validate_membership(const World& world) {
  const auto size = static_cast<size_t>(world.size);
  if (world.size < 1 || world.node_of.size() != size || world.local_of.size() != size) {
    return broken(strf("%d ranks, but %zu node and %zu local indices", world.size,
                       world.node_of.size(), world.local_of.size()));
  }
  size_t total = 0;
  int previous_lowest = -1;
  std::map<std::string_view, size_t> ids;
  for (size_t n = 0; n < world.nodes.size(); ++n) {
    const Node& node = world.nodes[n];
    if (node.ranks.empty() || node.ranks.front() <= previous_lowest) {
      return broken(strf("node %zu has no rank, or its lowest is not above node %zu's", n, n - 1));
    }
    previous_lowest = node.ranks.front();
    if (!ids.try_emplace(node.id, n).second) {
      return broken(strf("nodes %zu and %zu are both '%s'", ids[node.id], n, node.id.c_str()));
    }
    for (size_t l = 0; l < node.ranks.size(); ++l, ++total) {
      const int rank = node.ranks[l];
      if (rank < 0 || rank >= world.size || (l > 0 && rank <= node.ranks[l - 1])) {
        return broken(strf("node %zu: rank %d is out of range or order", n, rank));
      }
      if (world.node_of[static_cast<size_t>(rank)] != static_cast<int>(n) ||
          world.local_of[static_cast<size_t>(rank)] != static_cast<int>(l)) {
        return broken(
            strf("rank %d is local %zu of node %zu, but its indices say otherwise", rank, l, n));
      }
    }
  }
  return total == size ? Result<>{} : broken(strf("nodes hold %zu of %zu ranks", total, size));
}

Result<> validate_leaders(const World& world) {
  if (world.rails < 1) {
    return broken(strf("%d rails", world.rails));
  }
  const auto rails = static_cast<size_t>(world.rails);
  for (size_t n = 0; n < world.nodes.size(); ++n) {
    const Node& node = world.nodes[n];
    if (node.leaders.size() != rails) {
      return broken(strf("node %zu has %zu leaders for %zu rails", n, node.leaders.size(), rails));
    }
    std::map<int, size_t> leads;
    std::map<std::pair<int, int>, size_t> devices;
    for (const Leader& leader : node.leaders) {
      if (!std::binary_search(node.ranks.begin(), node.ranks.end(), leader.rank)) {
        return broken(strf("node %zu is led by rank %d of another node", n, leader.rank));
      }
      if (leader.nic < -1 || (leader.nic == -1 && rails > 1)) {
        return broken(strf("node %zu: rank %d leads one of %zu rails with NIC %d", n, leader.rank,
                           rails, leader.nic));
      }
      if (++devices[{leader.rank, leader.nic}] > 1) {
        return broken(
            strf("node %zu: rank %d uses NIC %d for two rails", n, leader.rank, leader.nic));
      }
      if (++leads[leader.rank] > (rails + node.ranks.size() - 1) / node.ranks.size()) {
        return broken(strf("node %zu: rank %d leads %zu of %zu rails with %zu ranks there", n,
                           leader.rank, leads[leader.rank], rails, node.ranks.size()));
      }
    }
  }
  return {};
}

}  // namespace

Result<World> make_world(std::span<const RankFacts> facts, const WorldOptions& options) {
  if (options.max_rails < 0) {
    return fail(Code::invalid_argument,
                strf("max_rails is %d, expected 0 (no limit) or more", options.max_rails));
  }
  const auto sorted = by_rank(facts);
  if (!sorted) {
    return tl::unexpected(sorted.error());
  }
  World world = group_nodes(*sorted);
  choose_leaders(world, *sorted, options.max_rails);
  world.digest = digest_of(world, *sorted);
  return world;
}

Result<> validate(const World& world) {
  if (auto ok = validate_membership(world); !ok) {
    return ok;
  }
  return validate_leaders(world);
}

}  // namespace prunex::topo

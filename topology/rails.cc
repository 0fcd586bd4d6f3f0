// SPDX-License-Identifier: Apache-2.0
#include "topology/rails.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace prunex::topo {
namespace {

struct Sighting {
  int rank;
  int index;  // into that rank's nics
  Distance distance;
};

// One NIC of a node, and who sees it: containers of one node may show their ranks different
// devices.
struct NodeNic {
  const NicFacts* facts;
  std::string network;  // empty: not known
  std::vector<Sighting> seen;
  bool shared = false;  // every node has a NIC in this network
  size_t place = 0;     // of its network in the first node's order
};

using Facts = std::vector<const RankFacts*>;

std::string network_of(const NicFacts& nic) {
  std::array<unsigned char, 16> bytes{};
  const bool v6 = nic.address.find(':') != std::string::npos;
  const int bits = v6 ? 128 : 32;
  const std::string plain = nic.address.substr(0, nic.address.find('%'));
  if (nic.prefix <= 0 || nic.prefix > bits ||
      inet_pton(v6 ? AF_INET6 : AF_INET, plain.c_str(), bytes.data()) != 1) {
    return {};
  }
  std::string out(v6 ? "6/" : "4/");
  out += std::to_string(nic.prefix);
  for (int i = 0; i < bits / 8; ++i) {
    const int kept = std::clamp(nic.prefix - 8 * i, 0, 8);
    out.push_back(static_cast<char>(bytes[static_cast<size_t>(i)] & (0xff00 >> kept) & 0xff));
  }
  return out;
}

std::vector<NodeNic> list_nics(const Node& node, const Facts& facts) {
  std::vector<NodeNic> nics;
  std::map<std::pair<std::string_view, std::string_view>, size_t> index;
  for (const int rank : node.ranks) {
    const auto& own = facts[static_cast<size_t>(rank)]->nics;
    for (size_t i = 0; i < own.size(); ++i) {
      const auto [it, fresh] = index.try_emplace({own[i].name, own[i].address}, nics.size());
      if (fresh) {
        nics.push_back(NodeNic{&own[i], network_of(own[i]), {}});
      }
      auto& seen = nics[it->second].seen;
      if (seen.empty() || seen.back().rank != rank) {  // a device listed twice counts once
        seen.push_back({rank, static_cast<int>(i), own[i].distance});
      }
    }
  }
  int fastest = 0;
  for (const NodeNic& nic : nics) {
    fastest = std::max(fastest, nic.facts->speed_mbps);
  }
  const int half = fastest - fastest / 2;
  std::erase_if(nics, [&](const NodeNic& nic) { return nic.facts->speed_mbps < half; });
  return nics;
}

void order(std::vector<NodeNic>& nics) {
  std::stable_sort(nics.begin(), nics.end(), [](const NodeNic& a, const NodeNic& b) {
    return std::tuple(-a.facts->speed_mbps, !a.facts->rdma, !a.shared, a.place) <
           std::tuple(-b.facts->speed_mbps, !b.facts->rdma, !b.shared, b.place);
  });
}

// Rail k of every node should lie in the same network where there are several.
void order_by_network(std::vector<std::vector<NodeNic>>& nodes) {
  std::map<std::string_view, size_t> nodes_with;
  for (const auto& nics : nodes) {
    std::set<std::string_view> networks;
    for (const NodeNic& nic : nics) {
      networks.insert(nic.network);
    }
    for (const std::string_view network : networks) {
      ++nodes_with[network];
    }
  }
  std::map<std::string_view, size_t> place;
  for (auto& nics : nodes) {
    for (NodeNic& nic : nics) {
      nic.shared = !nic.network.empty() && nodes_with[nic.network] == nodes.size();
    }
  }
  order(nodes.front());
  for (const NodeNic& nic : nodes.front()) {
    place.try_emplace(nic.network, place.size());
  }
  for (auto& nics : nodes) {
    for (NodeNic& nic : nics) {
      const auto it = place.find(nic.network);
      nic.place = it == place.end() ? place.size() : it->second;
    }
    order(nics);
  }
}

std::string reason(const NodeNic& nic, const Sighting& chosen, size_t ranks, size_t equal,
                   int nearer, size_t already) {
  const std::string speed = speed_text(nic.facts->speed_mbps);
  const char* name = nic.facts->name.c_str();
  std::string out;
  if (ranks == 1) {
    out = strf("the node's only rank; %s (%s)", name, speed.c_str());
  } else if (nic.seen.size() == 1) {
    out = strf("the only rank that sees %s (%s)", name, speed.c_str());
  } else if (chosen.distance == Distance::unknown) {
    out = strf("lowest rank; %s (%s, locality unknown)", name, speed.c_str());
  } else {
    out = strf("%s to %s (%s, %s)", equal > 1 ? "lowest rank of those nearest" : "nearest", name,
               speed.c_str(), name_of(chosen.distance));
  }
  if (nearer >= 0) {
    out += strf("; rank %d is nearer but leads already", nearer);
  }
  if (already > 0) {
    out += strf("; leads %zu rails, the node has %zu rank%s", already + 1, ranks,
                ranks == 1 ? "" : "s");
  }
  return out;
}

// Picks a leader for each of the first NICs that somebody free sees; fewer than `rails` where
// nobody is.
std::vector<Leader> assign(const Node& node, const std::vector<NodeNic>& nics, size_t rails) {
  const size_t fair = rails / node.ranks.size();
  size_t extra = rails % node.ranks.size();  // so many ranks may lead one more than the fair share
  std::map<int, size_t> leads;
  std::vector<Leader> leaders;
  for (const NodeNic& nic : nics) {
    if (leaders.size() == rails) {
      break;
    }
    const Sighting* best = nullptr;
    const Sighting* nearest = nullptr;  // also among the busy
    size_t equal = 0;
    for (const Sighting& s : nic.seen) {
      if (nearest == nullptr || s.distance < nearest->distance) {
        nearest = &s;
      }
      const size_t load = leads[s.rank];
      if (load >= fair + (extra > 0 ? 1 : 0)) {
        continue;
      }
      if (best == nullptr || s.distance < best->distance) {
        best = &s;
        equal = 0;
      }
      equal += s.distance == best->distance ? 1 : 0;
    }
    if (best == nullptr) {
      continue;
    }
    const int nearer = nearest->distance < best->distance ? nearest->rank : -1;
    size_t& load = leads[best->rank];
    leaders.push_back(
        {best->rank, best->index, reason(nic, *best, node.ranks.size(), equal, nearer, load)});
    extra -= load == fair ? 1 : 0;
    ++load;
  }
  return leaders;
}

}  // namespace

void choose_leaders(World& world, const Facts& facts, int max_rails) {
  std::vector<std::vector<NodeNic>> nics;
  size_t rails = max_rails > 0 ? static_cast<size_t>(max_rails) : SIZE_MAX;
  for (const Node& node : world.nodes) {
    nics.push_back(list_nics(node, facts));
    rails = std::min(rails, nics.back().size());
  }
  order_by_network(nics);
  rails = std::max<size_t>(rails, 1);
  // A node whose ranks see too few of its NICs lowers the count for all; then everybody picks
  // again.
  for (size_t asked = 0; asked != rails;) {
    asked = rails;
    for (size_t n = 0; n < world.nodes.size(); ++n) {
      world.nodes[n].leaders = assign(world.nodes[n], nics[n], asked);
      rails = std::min(rails, std::max<size_t>(1, world.nodes[n].leaders.size()));
    }
  }
  world.rails = static_cast<int>(rails);
  for (Node& node : world.nodes) {
    if (node.leaders.empty()) {
      node.leaders.push_back({node.ranks.front(), -1, "lowest rank; no NIC is known"});
    }
  }
}

}  // namespace prunex::topo

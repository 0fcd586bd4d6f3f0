// SPDX-License-Identifier: Apache-2.0
// One pure function turns all ranks' facts into nodes, leaders, rails and the common transport.
// Every rank computes it from the same facts and compares the digest.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/result.h"
#include "topology/facts.h"

namespace prunex::topo {

struct Leader {
  int rank = -1;
  int nic = -1;     // index into that rank's nics; -1: it has none
  std::string why;  // for people: "nearest to mlx5_0 (200 Gb/s, same switch)"
};

struct Node {
  std::string id;
  std::string host;
  std::vector<int> ranks;       // ascending
  std::vector<Leader> leaders;  // one per rail; leaders[0] is the node leader
};

struct World {
  int size = 0;
  int rails = 1;              // leaders per node: the smallest number of usable NICs of any node
  std::vector<Node> nodes;    // ordered by their lowest rank
  std::vector<int> node_of;   // rank -> node index
  std::vector<int> local_of;  // rank -> position in its node's ranks
  uint32_t transports = 0;    // what every rank has
  uint64_t digest = 0;        // of everything above that decides anything
};

struct WorldOptions {
  int max_rails = 0;  // 0: no limit but the NICs'
};

// Facts must be one per rank, 0..n-1, in any order; anything else is an error naming the ranks.
//
// A node's NICs are those its ranks list, taken fastest first, then RDMA first, then those in a
// network that all nodes share, in the order in which the first node has its networks (so that rail
// k joins NICs that reach each other), then in device order. A NIC less than half as fast as the
// node's fastest is no rail: it would hold all others up; neither is one of unknown speed beside
// NICs of known speed.
//
// Leader of a rail = the rank nearest to that rail's NIC among those that see it; ties go to the
// lowest rank. No rank leads two rails more than another does, so one leads a second rail only when
// there are fewer ranks than rails. A node without NICs still has one leader, its lowest rank.
[[nodiscard]] Result<World> make_world(std::span<const RankFacts> facts,
                                       const WorldOptions& options = {});

// Checks every invariant that users of a World rely on; the error names the one that is broken.
[[nodiscard]] Result<> validate(const World& world);

}  // namespace prunex::topo

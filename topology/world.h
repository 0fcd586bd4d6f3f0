// SPDX-License-Identifier: Apache-2.0
// One pure function turns all ranks' facts into nodes, leaders, rails and the common transport. Every
// rank computes it from the same facts and compares the digest.
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
  int nic = -1;          // index into that rank's nics; -1: it has none
  std::string why;       // for people: "nearest to mlx5_0 (200 Gb/s, same switch)"
};

struct Node {
  std::string id;
  std::string host;
  std::vector<int> ranks;       // ascending
  std::vector<Leader> leaders;  // one per rail; leaders[0] is the node leader
};

struct World {
  int size = 0;
  int rails = 1;                 // leaders per node: the smallest number of usable NICs of any node
  std::vector<Node> nodes;       // ordered by their lowest rank
  std::vector<int> node_of;      // rank -> node index
  std::vector<int> local_of;     // rank -> position in its node's ranks
  uint32_t transports = 0;       // what every rank has
  uint64_t digest = 0;           // of everything above that decides anything
};

struct WorldOptions {
  int max_rails = 0;  // 0: no limit but the NICs'
};

// Facts must be one per rank, 0..n-1, in any order; anything else is an error naming the ranks.
// Leader of a rail = the rank nearest to that rail's NIC (fastest usable NICs first); ties go to the
// lowest rank, and one rank leads a second rail only when there are fewer ranks than rails.
[[nodiscard]] Result<World> make_world(std::span<const RankFacts> facts,
                                       const WorldOptions& options = {});

}  // namespace prunex::topo

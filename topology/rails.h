// SPDX-License-Identifier: Apache-2.0
// The part of make_world that orders NICs, counts rails and picks their leaders. Pure.
#pragma once
#include <vector>

#include "topology/world.h"

namespace prunex::topo {

// Fills `rails` and every node's `leaders` of a world whose nodes and ranks are known.
void choose_leaders(World& world, const std::vector<const RankFacts*>& facts, int max_rails);

}  // namespace prunex::topo

// SPDX-License-Identifier: Apache-2.0
// What `prunex topo` shows: the machines, who runs where, who leads and why. Pure: text in, text
// out. Names that came over the network are made harmless for terminals and XML.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "topology/machine.h"
#include "topology/world.h"

namespace prunex::topo {

struct Picture {
  const World& world;
  std::span<const RankFacts> facts;  // one per rank, in any order, as given to make_world
  // By node index; a null or missing one is drawn from what its ranks say.
  std::vector<const Machine*> machines;
};

[[nodiscard]] std::string render_text(const Picture& picture);
// One self-contained document, readable on a light or dark page. At most `max_nodes` nodes are
// drawn, the others are counted.
[[nodiscard]] std::string render_svg(const Picture& picture, size_t max_nodes = 8);

}  // namespace prunex::topo

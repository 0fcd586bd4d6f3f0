// SPDX-License-Identifier: Apache-2.0
// The text form: an indented tree that survives logs, e-mail and any locale.
#include "topology/render.h"

#include <algorithm>

#include "topology/render_model.h"

namespace prunex::topo {
namespace {

constexpr size_t kTailColumn = 62;  // where ranks and rails stand, behind the devices

std::string line(size_t depth, std::string text, const std::string& tail = {}) {
  text.insert(0, 2 * depth, ' ');
  if (!tail.empty()) {
    text.resize(std::max(text.size() + 2, kTailColumn), ' ');
    text += tail;
  }
  return text + "\n";
}

std::string ranks_tail(const std::vector<int>& ranks) {
  std::string out;
  for (const int rank : ranks) {
    out += (out.empty() ? "rank " : ", ") + std::to_string(rank);
  }
  return out;
}

std::string device(std::string kind, const std::string& a, const std::string& b,
                   const std::string& c = {}) {
  for (const std::string& part : {a, b, c}) {
    kind += part.empty() ? "" : "  " + part;
  }
  return kind;
}

std::string rails_tail(const NicItem& nic, const NodeItem& node) {
  std::string out;
  for (const size_t rail : nic.rails) {
    out += out.empty() ? "" : ", ";
    out += strf("rail %zu <- rank %d", rail, node.leaders[rail].rank);
  }
  return out.empty() ? "no rail" : out;
}

std::string numa_text(const NumaItem& numa, const NodeItem& node, size_t depth) {
  const std::string title = numa.title + (numa.detail.empty() ? "" : ": " + numa.detail);
  std::string out = line(depth, title, ranks_tail(numa.ranks));
  for (const SwitchItem& box : numa.switches) {
    const size_t below = depth + (box.name.empty() ? 1 : 2);
    out += box.name.empty() ? "" : line(depth + 1, "switch " + box.name);
    for (const GpuItem& gpu : box.gpus) {
      const std::string ranks = ranks_tail(gpu.ranks);
      out += line(below, device(gpu.title, gpu.model, gpu.bus_id, gpu.uuid),
                  ranks.empty() ? "unused" : ranks);
    }
    for (const NicItem& nic : box.nics) {
      out += line(below, device("NIC " + nic.name, nic.detail, nic.bus_id), rails_tail(nic, node));
    }
  }
  return out;
}

}  // namespace

std::string render_text(const Picture& picture) {
  const World& world = picture.world;
  std::string out =
      line(0, world_title(world) + "; common transports: " + transports_text(world.transports));
  for (size_t n = 0; n < world.nodes.size(); ++n) {
    const NodeItem node = node_item(picture, n);
    out += line(0, "");
    out += line(0, node.title + " (" + node.ranks + ")");
    for (const PackageItem& package : node.packages) {
      out += package.title.empty() ? "" : line(1, package.title);
      for (const NumaItem& numa : package.numas) {
        out += numa_text(numa, node, package.title.empty() ? 1 : 2);
      }
    }
    out += line(1, "leaders");
    for (size_t rail = 0; rail < node.leaders.size(); ++rail) {
      const LeaderItem& leader = node.leaders[rail];
      out += line(2, strf("rail %zu: rank %d, ", rail, leader.rank) + leader.why);
    }
    for (const std::string& note : node.notes) {
      out += line(1, "note: " + note);
    }
  }
  return out;
}

}  // namespace prunex::topo

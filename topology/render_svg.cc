// SPDX-License-Identifier: Apache-2.0
// The picture: one card per node, its boxes inside, and below them a line per rail: who leads and
// why.
#include <algorithm>
#include <array>

#include "topology/render.h"
#include "topology/render_model.h"
#include "topology/svg.h"

namespace prunex::topo {
namespace {

using svg::Piece;

constexpr const char* kStar = "\xe2\x98\x85 ";
constexpr double kTileWidth = 124;
constexpr double kRailBadge = 62, kWho = 110, kGap = 8;  // the columns of a leader's line
constexpr double kTileInner = kTileWidth - 20;
constexpr double kMaxCardWidth = 1340;
constexpr double kMinCardWidth = 640;

// Dark enough for white letters, and told apart by people who see colours differently; the number
// of the rail is always written beside.
constexpr std::array<const char*, 8> kRailInk = {"#0b62a8", "#a8480b", "#0b7a5a", "#8a2f7a",
                                                 "#5b4bb5", "#a12b3b", "#3d6b1f", "#5a5f66"};
const char* ink_of(size_t rail) { return kRailInk[rail % kRailInk.size()]; }

constexpr svg::TextStyle kTitle{20, "#102a43", true};
constexpr svg::TextStyle kHeading{15, "#102a43", true};
constexpr svg::TextStyle kBoxTitle{12, "#334e68", true};
constexpr svg::TextStyle kName{12, "#102a43", true};
constexpr svg::TextStyle kDetail{10.5, "#52606d", false};
constexpr svg::TextStyle kBody{12, "#243b53", false};

constexpr svg::FrameStyle kCard{"#f7f9fb", "#bcccdc", 1.5, 12, 18, false};
constexpr svg::FrameStyle kPackage{"#eef3f8", "#bcccdc", 1, 10, 14, false};
constexpr svg::FrameStyle kNuma{"#ffffff", "#d2dce6", 1, 8, 12, false};
constexpr svg::FrameStyle kSwitch{"#f7f9fb", "#9fb3c8", 1, 8, 8, true};
constexpr svg::FrameStyle kGpuTile{"#e8f5e4", "#7fb069", 1, 6, 10, false};
constexpr svg::FrameStyle kIdleTile{"#f2f4f6", "#c5ced6", 1, 6, 10, false};

// A leader wears its rail's colour; everybody else is plain.
Piece rank_badge(int rank, const NodeItem& node) {
  const std::string label = strf("rank %d", rank);
  for (size_t rail = 0; rail < node.leaders.size(); ++rail) {
    if (node.leaders[rail].rank == rank) {
      return svg::badge(kStar + label, ink_of(rail), "#ffffff");
    }
  }
  return svg::badge(label, "#dfe6ee", "#243b53");
}

Piece rank_badges(const std::vector<int>& ranks, const NodeItem& node, double max_width) {
  std::vector<Piece> badges;
  for (const int rank : ranks) {
    badges.push_back(rank_badge(rank, node));
  }
  return svg::wrap(badges, 4, max_width);
}

Piece gpu_tile(const GpuItem& gpu, const NodeItem& node) {
  std::vector<Piece> lines = {svg::text(gpu.title, kName, kTileInner)};
  if (!gpu.model.empty()) {
    lines.push_back(svg::text(gpu.model, kDetail, kTileInner));
  }
  lines.push_back(svg::text(gpu.bus_id, kDetail, kTileInner));
  if (!gpu.uuid.empty()) {
    // Its end tells more than its beginning.
    size_t cut = gpu.uuid.size() > 14 ? gpu.uuid.size() - 12 : 0;
    while (cut < gpu.uuid.size() && (static_cast<unsigned char>(gpu.uuid[cut]) & 0xc0) == 0x80) {
      ++cut;
    }
    const std::string shown = (cut > 0 ? "\xe2\x80\xa6" : "") + gpu.uuid.substr(cut);
    lines.push_back(svg::text(shown, kDetail, kTileInner));
  }
  lines.push_back(gpu.ranks.empty() ? svg::text("no rank", kDetail, kTileInner)
                                    : rank_badges(gpu.ranks, node, kTileInner));
  return svg::frame(svg::column(lines, 3), gpu.ranks.empty() ? kIdleTile : kGpuTile, kTileWidth);
}

Piece nic_tile(const NicItem& nic) {
  std::vector<Piece> lines = {svg::text(nic.name, kName, kTileInner),
                              svg::text(nic.detail, kDetail, kTileInner)};
  if (!nic.bus_id.empty()) {
    lines.push_back(svg::text(nic.bus_id, kDetail, kTileInner));
  }
  if (nic.rails.empty()) {
    lines.push_back(svg::text("no rail", kDetail, kTileInner));
    return svg::frame(svg::column(lines, 3), kIdleTile, kTileWidth);
  }
  std::vector<Piece> rails;
  for (const size_t rail : nic.rails) {
    rails.push_back(svg::badge(strf("rail %zu", rail), ink_of(rail), "#ffffff"));
  }
  lines.push_back(svg::wrap(rails, 4, kTileInner));
  const svg::FrameStyle style{"#fdf6e7", ink_of(nic.rails.front()), 2, 6, 10, false};
  return svg::frame(svg::column(lines, 3), style, kTileWidth);
}

// Tiles of one row share their height, or the boxes below would stand at different levels.
template <class Item, class Draw>
std::vector<Piece> tiles(const std::vector<Item>& items, Draw draw) {
  std::vector<Piece> out;
  for (const Item& item : items) {
    out.push_back(draw(item));
  }
  return out;
}

double columns_width(size_t n) { return static_cast<double>(n) * (kTileWidth + 8); }

Piece switch_piece(const SwitchItem& box, const NodeItem& node, size_t columns) {
  std::vector<Piece> rows;
  if (!box.name.empty()) {
    rows.push_back(svg::text("PCIe " + box.name, kDetail, kTileWidth));
  }
  for (const auto& row : {tiles(box.gpus, [&](const GpuItem& gpu) { return gpu_tile(gpu, node); }),
                          tiles(box.nics, nic_tile)}) {
    if (!row.empty()) {
      rows.push_back(svg::wrap(row, 8, columns_width(columns)));
    }
  }
  const Piece inside = svg::column(rows, 6);
  return box.name.empty() ? inside : svg::frame(inside, kSwitch);
}

Piece numa_inside(const NumaItem& numa, const NodeItem& node, double max_width) {
  const double inner = max_width - 2 * kNuma.padding;
  std::vector<Piece> boxes;
  for (const SwitchItem& box : numa.switches) {
    const size_t devices = std::max(box.gpus.size(), box.nics.size());
    const auto fit = static_cast<size_t>(std::max(1.0, (inner - 16) / (kTileWidth + 8)));
    boxes.push_back(switch_piece(box, node, std::min({devices, fit, size_t{4}})));
  }
  const Piece devices = svg::wrap(boxes, 10, inner);
  std::vector<Piece> rows;
  const double line = std::max({devices.width, 220.0});
  rows.push_back(svg::text(numa.title, kBoxTitle, line));
  if (!numa.detail.empty()) {
    rows.push_back(svg::text(numa.detail, kDetail, line));
  }
  if (!numa.ranks.empty()) {
    rows.push_back(rank_badges(numa.ranks, node, line));
  }
  if (!boxes.empty()) {
    rows.push_back(devices);
  }
  return svg::column(rows, 5);
}

// Frames of one height side by side, wrapped at `max_width`.
Piece framed_row(const std::vector<Piece>& insides, const svg::FrameStyle& style, double max_width,
                 double min_height = 0) {
  double height = min_height;
  for (const Piece& inside : insides) {
    height = std::max(height, inside.height + 2 * style.padding);
  }
  std::vector<Piece> frames;
  for (const Piece& inside : insides) {
    frames.push_back(svg::frame(inside, style, 0, height));
  }
  return svg::wrap(frames, 12, max_width);
}

std::vector<Piece> numa_insides(const PackageItem& package, const NodeItem& node,
                                double max_width) {
  std::vector<Piece> numas;
  for (const NumaItem& numa : package.numas) {
    numas.push_back(numa_inside(numa, node, max_width));
  }
  return numas;
}

// All packages, side by side where their devices allow.
Piece packages_piece(const NodeItem& node, double inner) {
  std::vector<const PackageItem*> known;
  std::vector<std::vector<Piece>> numas;
  for (const PackageItem& package : node.packages) {
    if (!package.title.empty()) {
      known.push_back(&package);
    }
  }
  const double share = known.size() >= 2 ? (inner - 12) / 2 : inner;
  const double width = share - 2 * kPackage.padding;
  double height = 0;  // of the tallest NUMA node: all stand at one level
  for (const PackageItem* package : known) {
    numas.push_back(numa_insides(*package, node, width));
    for (const Piece& numa : numas.back()) {
      height = std::max(height, numa.height + 2 * kNuma.padding);
    }
  }
  std::vector<Piece> insides;
  for (size_t i = 0; i < known.size(); ++i) {
    const Piece row = framed_row(numas[i], kNuma, width, height);
    const Piece title = svg::text(known[i]->title, kBoxTitle, std::max(160.0, row.width));
    insides.push_back(svg::column({title, row}, 6));
  }
  return framed_row(insides, kPackage, inner);
}

Piece leader_rows(const NodeItem& node, double width) {
  constexpr double kBetween = 24;
  const size_t columns = node.leaders.size() > 2 && width >= 1000 ? 2 : 1;
  const double cell = columns > 1 ? (width - kBetween) / 2 : width;
  const size_t per_column = (node.leaders.size() + columns - 1) / columns;
  std::vector<Piece> lists;
  for (size_t first = 0; first < node.leaders.size(); first += per_column) {
    std::vector<Piece> rows;
    for (size_t rail = first; rail < std::min(first + per_column, node.leaders.size()); ++rail) {
      const LeaderItem& leader = node.leaders[rail];
      const Piece tag = svg::badge(strf("rail %zu", rail), ink_of(rail), "#ffffff", kRailBadge);
      Piece who = svg::lowered(svg::text(strf("rank %d leads", leader.rank), kName, kWho), 1);
      who.width = kWho;
      const double left = cell - tag.width - kWho - 2 * kGap;
      rows.push_back(
          svg::row({tag, who, svg::lowered(svg::text(leader.why, kBody, left), 1)}, kGap));
    }
    lists.push_back(svg::column(rows, 5));
    lists.back().width = cell;
  }
  return svg::row(lists, kBetween);
}

Piece node_inside(const NodeItem& node) {
  const double inner = kMaxCardWidth - 2 * kCard.padding;
  std::vector<Piece> machine;
  if (const Piece packages = packages_piece(node, inner); packages.height > 0) {
    machine.push_back(packages);
  }
  for (const PackageItem& package : node.packages) {
    if (package.title.empty()) {
      machine.push_back(framed_row(numa_insides(package, node, inner), kNuma, inner));
    }
  }
  const Piece body = svg::column(machine, 12);
  double reasons = 0;
  for (const LeaderItem& leader : node.leaders) {
    reasons =
        std::max(reasons, svg::text_width(leader.why, kBody) + kRailBadge + kWho + 2 * kGap + 1);
  }
  const double width =
      std::clamp(std::max(body.width, reasons), kMinCardWidth - 2 * kCard.padding, inner);
  std::vector<Piece> parts = {
      svg::row({svg::text(node.title, kHeading, width * 0.6),
                svg::lowered(svg::text(node.ranks, kBody, width * 0.35), 3)},
               12),
      body, leader_rows(node, width)};
  for (const std::string& note : node.notes) {
    parts.push_back(svg::text("note: " + note, kDetail, width));
  }
  return svg::column(parts, 14);
}

Piece legend(const World& world) {
  const auto words = [](const std::string& text) {
    return svg::lowered(svg::text(text, kDetail, 320), 2.5);
  };
  return svg::row({svg::badge(kStar + std::string("rank"), ink_of(0), "#ffffff"),
                   words("leads the rail of that colour"), svg::badge("rank", "#dfe6ee", "#243b53"),
                   words("does not lead"), svg::Piece{2, 1, ""},
                   words("common transports: " + transports_text(world.transports))},
                  8);
}

// Who talks to whom over the network.
Piece rails_card(const World& world, double width) {
  std::vector<Piece> rows = {
      svg::text("between nodes: the leaders of a rail exchange with each other", kBoxTitle,
                width - 2 * kCard.padding)};
  for (size_t rail = 0; rail < static_cast<size_t>(world.rails); ++rail) {
    std::string ranks;
    for (const Node& node : world.nodes) {
      ranks += ranks.empty() ? "ranks " : ", ";
      ranks += std::to_string(node.leaders[rail].rank);
    }
    const Piece tag = svg::badge(strf("rail %zu", rail), ink_of(rail), "#ffffff", kRailBadge);
    const double left = width - 2 * kCard.padding - tag.width - 8;
    rows.push_back(svg::row({tag, svg::lowered(svg::text(ranks, kBody, left), 1)}, 8));
    rows.back().width = std::max(rows.back().width, (width - 2 * kCard.padding - 25) / 4);
  }
  const Piece head = rows.front();
  rows.erase(rows.begin());
  return svg::frame(svg::column({head, svg::wrap(rows, 8, width - 2 * kCard.padding)}, 8), kCard,
                    width);
}

}  // namespace

std::string render_svg(const Picture& picture, size_t max_nodes) {
  const World& world = picture.world;
  const std::string title = world_title(world);
  std::vector<Piece> parts = {
      svg::column({svg::text(title, kTitle, kMinCardWidth), legend(world)}, 6)};
  const size_t shown = std::min(max_nodes, world.nodes.size());
  std::vector<Piece> insides;
  double width = kMinCardWidth;
  for (size_t n = 0; n < shown; ++n) {
    insides.push_back(node_inside(node_item(picture, n)));
    width = std::max(width, insides.back().width + 2 * kCard.padding);
  }
  for (const Piece& inside : insides) {
    parts.push_back(svg::frame(inside, kCard, width));
  }
  if (shown < world.nodes.size()) {
    parts.push_back(
        svg::text("and " + count_text(world.nodes.size() - shown, "more node"), kHeading, 400));
  }
  if (world.nodes.size() > 1) {
    parts.push_back(rails_card(world, width));
  }
  return svg::document(svg::column(parts, 16), "PruneX topology: " + title, 20);
}

}  // namespace prunex::topo

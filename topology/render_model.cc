// SPDX-License-Identifier: Apache-2.0
#include "topology/render_model.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace prunex::topo {
namespace {

// Bytes of the UTF-8 sequence at the start of `text`, 0 if there is no valid one.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t n = lead < 0x80                   ? 1
                   : lead >= 0xc2 && lead < 0xe0 ? 2
                   : lead >= 0xe0 && lead < 0xf0 ? 3
                   : lead >= 0xf0 && lead < 0xf5 ? 4
                                                 : 0;
  if (n == 0 || n > text.size()) {
    return 0;
  }
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return 0;
    }
  }
  // Overlong forms, surrogates, and what lies beyond the last code point.
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) >= 0xa0) ||
      (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) >= 0x90)) {
    return 0;
  }
  return n;
}

std::string ranks_text(const std::vector<int>& ranks) {
  CpuSet set;  // the same notation serves
  for (const int rank : ranks) {
    set.add(static_cast<size_t>(rank));
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + set.text();
}

std::string memory_text(uint64_t bytes) {
  const double gib = static_cast<double>(bytes) / (1 << 30);
  return gib >= 1024 ? strf("%.3g TiB", gib / 1024) : strf("%.3g GiB", gib);
}

class Builder {
 public:
  Builder(const Picture& picture, size_t index)
      : world_(picture.world), node_(world_.nodes[index]), facts_(node_.ranks.size()) {
    for (const RankFacts& f : picture.facts) {
      if (f.rank >= 0 && f.rank < world_.size &&
          world_.node_of[static_cast<size_t>(f.rank)] == static_cast<int>(index)) {
        facts_[static_cast<size_t>(world_.local_of[static_cast<size_t>(f.rank)])] = &f;
      }
    }
    std::erase(facts_, nullptr);
    const Machine* given = index < picture.machines.size() ? picture.machines[index] : nullptr;
    machine_ = given != nullptr ? *given : machine_from_facts(facts_);
    item_.title = strf("node %zu", index) + (node_.host.empty() ? "" : ": " + harmless(node_.host));
    item_.ranks = ranks_text(node_.ranks);
  }

  NodeItem build() {
    add_missing_devices();
    make_boxes();
    for (const Leader& leader : node_.leaders) {
      const NicFacts* nic = nic_of(leader);
      item_.leaders.push_back({leader.rank, nic ? harmless(nic->name) : "", harmless(leader.why)});
    }
    for (size_t i = 0; i < machine_.gpus.size(); ++i) {
      place_gpu(i);
    }
    for (const Nic& nic : machine_.nics) {
      place_nic(nic);
    }
    for (const RankFacts* f : facts_) {
      if (seated_.count(f->rank) == 0) {
        numa_box(f->numa, -1).ranks.push_back(f->rank);
      }
    }
    drop_empty_boxes();
    add_notes();
    return std::move(item_);
  }

 private:
  const NicFacts* nic_of(const Leader& leader) const {
    for (const RankFacts* f : facts_) {
      if (f->rank == leader.rank && leader.nic >= 0 &&
          static_cast<size_t>(leader.nic) < f->nics.size()) {
        return &f->nics[static_cast<size_t>(leader.nic)];
      }
    }
    return nullptr;
  }

  // A veth or a container's own device is in no machine description, but ranks use it.
  void add_missing_devices() {
    for (const RankFacts* f : facts_) {
      for (const NicFacts& nic : f->nics) {
        if (find_nic(machine_, nic.name) < 0) {
          machine_.nics.push_back(
              {nic.name, nic.rdma ? nic.name : "", nic.speed_mbps, {{}, nic.numa, -1}});
        }
      }
      for (const GpuFacts& gpu : f->gpus) {
        if (gpu_index(gpu) < 0) {
          machine_.gpus.push_back({gpu.bus_id, gpu.uuid, "", {{}, gpu.numa, -1}});
        }
      }
    }
  }

  int gpu_index(const GpuFacts& used) const {
    const auto& gpus = machine_.gpus;
    const auto same = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
      return gpu.bus_id == used.bus_id && gpu.uuid == used.uuid;
    });
    return same != gpus.end() ? static_cast<int>(same - gpus.begin())
                              : find_gpu(machine_, used.bus_id, used.uuid);
  }

  void make_boxes() {
    for (const Package& package : machine_.packages) {
      item_.packages.push_back({strf("package %d", package.os_index), {}});
      package_ids_.push_back(package.os_index);
    }
    item_.packages.push_back({"", {}});
    package_ids_.push_back(-1);
    for (const NumaNode& numa : machine_.numas) {
      NumaItem box{strf("NUMA %d", numa.os_index), "", {}, {}};
      if (!numa.cpus.empty()) {
        box.detail = "CPUs " + numa.cpus.text();
      } else if (!machine_.packages.empty()) {
        box.detail = "no CPUs";
      }
      if (numa.memory_bytes > 0) {
        box.detail += (box.detail.empty() ? "" : ", ") + memory_text(numa.memory_bytes);
      }
      PackageItem& package = package_box(numa.package);
      where_[numa.os_index] = {static_cast<size_t>(&package - item_.packages.data()),
                               package.numas.size()};
      package.numas.push_back(std::move(box));
    }
  }

  PackageItem& package_box(int os_index) {
    const auto it = std::find(package_ids_.begin(), package_ids_.end() - 1, os_index);
    return item_.packages[static_cast<size_t>(it - package_ids_.begin())];
  }

  // The box of a NUMA node, or of what is only known to be in a package, or of nothing known.
  NumaItem& numa_box(int numa, int package) {
    if (const auto it = where_.find(numa); it != where_.end()) {
      return item_.packages[it->second.first].numas[it->second.second];
    }
    PackageItem& box = package_box(package);
    for (NumaItem& existing : box.numas) {
      if (existing.title.empty()) {
        return existing;
      }
    }
    return box.numas.emplace_back();
  }

  SwitchItem& switch_box(const Place& place) {
    NumaItem& numa = numa_box(place.numa, place.package);
    // Only what lies behind a common bridge below the root is near; see distance().
    const std::string name = place.path.size() >= 3 ? harmless(place.path[1]) : "";
    for (SwitchItem& box : numa.switches) {
      if (box.name == name) {
        return box;
      }
    }
    numa.switches.push_back({name, {}, {}});
    return numa.switches.back();
  }

  void place_gpu(size_t index) {
    const Gpu& gpu = machine_.gpus[index];
    GpuItem item{strf("GPU %zu", index), harmless(gpu.model), harmless(gpu.bus_id), "", {}};
    const bool repeated = std::count_if(machine_.gpus.begin(), machine_.gpus.end(),
                                        [&](const Gpu& g) { return g.bus_id == gpu.bus_id; }) > 1;
    if (repeated) {
      item.uuid = harmless(gpu.uuid);
    }
    for (const RankFacts* f : facts_) {
      for (const GpuFacts& used : f->gpus) {
        if (gpu_index(used) == static_cast<int>(index)) {
          item.ranks.push_back(f->rank);
          seated_.insert(f->rank);
          break;
        }
      }
    }
    switch_box(gpu.place).gpus.push_back(std::move(item));
  }

  void place_nic(const Nic& nic) {
    NicItem item{harmless(nic.name()),
                 "",
                 nic.place.path.empty() ? "" : harmless(nic.place.path.back()),
                 {}};
    if (!nic.ibdev.empty() && !nic.netdev.empty() && nic.ibdev != nic.netdev) {
      item.name = harmless(nic.ibdev) + " (" + harmless(nic.netdev) + ")";
    }
    int speed = nic.speed_mbps;
    for (size_t rail = 0; rail < node_.leaders.size(); ++rail) {
      const NicFacts* used = nic_of(node_.leaders[rail]);
      if (used != nullptr && (used->name == nic.netdev || used->name == nic.ibdev)) {
        item.rails.push_back(rail);
        speed = used->speed_mbps > 0 ? used->speed_mbps : speed;
      }
    }
    item.detail = speed_text(speed) + (nic.ibdev.empty() ? "" : " RDMA");
    switch_box(nic.place).nics.push_back(std::move(item));
  }

  // A bridge with one device is no switch worth a box.
  void drop_empty_boxes() {
    for (PackageItem& package : item_.packages) {
      for (NumaItem& numa : package.numas) {
        SwitchItem loose;
        for (SwitchItem& box : numa.switches) {
          if (!box.name.empty() && box.gpus.size() + box.nics.size() > 1) {
            continue;
          }
          std::move(box.gpus.begin(), box.gpus.end(), std::back_inserter(loose.gpus));
          std::move(box.nics.begin(), box.nics.end(), std::back_inserter(loose.nics));
          box = {};
        }
        std::erase_if(numa.switches, [](const SwitchItem& box) { return box.name.empty(); });
        if (!loose.gpus.empty() || !loose.nics.empty()) {
          numa.switches.push_back(std::move(loose));
        }
      }
      std::erase_if(package.numas, [](const NumaItem& numa) {
        return numa.title.empty() && numa.ranks.empty() && numa.switches.empty();
      });
      for (NumaItem& numa : package.numas) {
        if (numa.title.empty()) {
          numa.title = package.title.empty() ? "place unknown" : "any of its NUMA nodes";
        }
      }
    }
    std::erase_if(item_.packages, [](const PackageItem& package) {
      return package.title.empty() && package.numas.empty();
    });
  }

  void add_notes() {
    std::map<std::string, std::vector<int>> notes;
    for (const RankFacts* f : facts_) {
      if (!f->note.empty()) {
        notes[harmless(f->note)].push_back(f->rank);
      }
    }
    for (const auto& [note, ranks] : notes) {
      item_.notes.push_back(ranks_text(ranks) + ": " + note);
    }
    for (const std::string& note : machine_.notes) {
      item_.notes.push_back(harmless(note));
    }
  }

  const World& world_;
  const Node& node_;
  std::vector<const RankFacts*> facts_;
  Machine machine_;
  NodeItem item_;
  std::vector<int> package_ids_;                    // of item_.packages; -1 is the last
  std::map<int, std::pair<size_t, size_t>> where_;  // NUMA node -> its box
  std::set<int> seated_;                            // ranks drawn on a GPU
};

}  // namespace

std::string harmless(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    // C0, DEL, and C1 (U+0080 to U+009F), which terminals obey too.
    const bool control = lead < 0x20 || lead == 0x7f ||
                         (n == 2 && lead == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0);
    // U+FFFE and U+FFFF are no XML characters.
    const bool none =
        n == 3 && text.substr(0, 2) == "\xef\xbf" && static_cast<unsigned char>(text[2]) >= 0xbe;
    if (n == 0 || control || none) {
      out.push_back('?');
    } else {
      out.append(text.substr(0, n));
    }
    text.remove_prefix(std::max<size_t>(n, 1));
  }
  return out;
}

std::string count_text(size_t n, const char* noun) {
  return strf("%zu %s%s", n, noun, n == 1 ? "" : "s");
}

std::string world_title(const World& world) {
  return count_text(world.nodes.size(), "node") + ", " +
         count_text(static_cast<size_t>(world.size), "rank") + ", " +
         count_text(static_cast<size_t>(world.rails), "rail");
}

std::string transports_text(uint32_t transports) {
  std::string out;
  for (const auto& [bit, name] : {std::pair{kTransportSocket, "socket"},
                                  {kTransportShm, "shm"},
                                  {kTransportVerbs, "verbs"}}) {
    if ((transports & bit) != 0) {
      out += (out.empty() ? "" : ", ") + std::string(name);
    }
  }
  return out.empty() ? "none" : out;
}

NodeItem node_item(const Picture& picture, size_t node) { return Builder(picture, node).build(); }

}  // namespace prunex::topo

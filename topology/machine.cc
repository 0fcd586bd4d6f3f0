// SPDX-License-Identifier: Apache-2.0
#include "topology/machine.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

namespace prunex::topo {
namespace {

int package_of(const Machine& machine, const CpuSet& cpus) {
  for (const Package& package : machine.packages) {
    if (!cpus.empty() && package.cpus.contains(cpus)) {
      return package.os_index;
    }
  }
  return -1;
}

const NumaNode* find_numa(const Machine& machine, int os_index) {
  for (const NumaNode& node : machine.numas) {
    if (node.os_index == os_index) {
      return &node;
    }
  }
  return nullptr;
}

int only_numa_with_cpus(const Machine& machine) {
  int found = -1;
  for (const NumaNode& node : machine.numas) {
    if (!node.cpus.empty()) {
      if (found >= 0) {
        return -1;
      }
      found = node.os_index;
    }
  }
  return found;
}

void settle(const Machine& machine, Place& place) {
  if (place.numa < 0) {
    place.numa = only_numa_with_cpus(machine);
  }
  const NumaNode* node = find_numa(machine, place.numa);
  if (place.package < 0 && node != nullptr) {
    place.package = node->package;
  }
}

std::string why_flat(const Machine& machine, const Seat& seat, const Place& cpus) {
  const Nic* seen = nullptr;
  for (const NicFacts& nic : seat.nics) {
    if (const int i = find_nic(machine, nic.name); i >= 0) {
      seen = &machine.nics[static_cast<size_t>(i)];
      break;
    }
  }
  std::string why = "locality unknown: ";
  if (seen == nullptr) {
    why += "no device is known behind " + seat.nics.front().name;
  } else if (seen->place.numa < 0) {
    why += "nothing says which NUMA node " + seen->name() + " is at";
  } else if (cpus.numa < 0) {
    why +=
        "this process may run on several NUMA nodes; bind it to one (numactl, taskset, srun "
        "--cpu-bind)";
  }
  return machine.notes.empty() ? why : why + "; " + machine.notes.front();
}

// Where there is an RDMA fabric, the other interfaces are for management.
std::vector<NicFacts> assumed_nics(const Machine& machine, bool rdma) {
  std::vector<NicFacts> nics;
  std::set<std::string_view> listed;
  for (const Nic& nic : machine.nics) {
    const std::string& name = nic.ibdev.empty() ? nic.netdev : nic.ibdev;
    if ((!rdma || !nic.ibdev.empty()) && listed.insert(name).second) {
      nics.emplace_back().name = name;
    }
  }
  return nics;
}

// Fills what `from` knows and `to` does not.
void complete(Place& to, const Place& from) {
  if (to.path.empty()) {
    to.path = from.path;
  }
  if (to.numa < 0) {
    to.numa = from.numa;
  }
  if (to.package < 0) {
    to.package = from.package;
  }
}

}  // namespace

int numa_of(const Machine& machine, const CpuSet& cpus) {
  const NumaNode* best = nullptr;
  for (const NumaNode& node : machine.numas) {
    if (!cpus.empty() && node.cpus.contains(cpus) &&
        (best == nullptr || node.cpus.count() < best->cpus.count())) {
      best = &node;
    }
  }
  return best == nullptr ? -1 : best->os_index;
}

std::string pci_address(std::string_view text) {
  // [domain:]bus:device.function, all hexadecimal; domains of virtual buses have more than 4
  // digits.
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    out.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  if (std::count(out.begin(), out.end(), ':') == 1) {
    out.insert(0, "0000:");
  }
  const size_t bus = out.find(':');
  if (bus == out.npos || bus < 4 || bus > 8 || out.size() != bus + 8 || out[bus + 3] != ':' ||
      out[bus + 6] != '.') {
    return {};
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const bool mark = i == bus || i == bus + 3 || i == bus + 6;
    if (!mark && kDigits.find(out[i]) == kDigits.npos) {
      return {};
    }
  }
  // The CUDA driver writes the domain with 8 digits, the kernel with 4 where that is enough.
  while (out.size() > 12 && out.front() == '0') {
    out.erase(0, 1);
  }
  return out;
}

int find_gpu(const Machine& machine, std::string_view bus_id, std::string_view uuid) {
  int by_bus = -1, by_uuid = -1;
  bool several = false;
  const std::string wanted = pci_address(bus_id);
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    const Gpu& gpu = machine.gpus[i];
    if (!uuid.empty() && gpu.uuid == uuid) {
      by_uuid = static_cast<int>(i);
    }
    if (!wanted.empty() && gpu.bus_id == wanted) {
      several = by_bus >= 0;
      by_bus = static_cast<int>(i);
    }
  }
  return by_uuid >= 0 ? by_uuid : (several ? -1 : by_bus);
}

int find_nic(const Machine& machine, std::string_view name) {
  for (size_t i = 0; i < machine.nics.size(); ++i) {
    if (!name.empty() && (machine.nics[i].netdev == name || machine.nics[i].ibdev == name ||
                          machine.nics[i].ibdev == name.substr(0, name.find(':')))) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

Distance distance(const Place& a, const Place& b) {
  size_t common = 0;
  while (common < std::min(a.path.size(), b.path.size()) && a.path[common] == b.path[common]) {
    ++common;
  }
  if (common >= 2) {
    return Distance::same_switch;
  }
  if (common == 1) {
    return Distance::same_root;
  }
  if (a.numa >= 0 && b.numa >= 0) {
    return a.numa == b.numa ? Distance::same_numa : Distance::same_machine;
  }
  if (a.package >= 0 && b.package >= 0) {
    return a.package == b.package ? Distance::same_numa : Distance::same_machine;
  }
  return Distance::unknown;
}

RankFacts facts_at(const Machine& machine, const Seat& seat) {
  RankFacts facts;
  facts.rank = seat.rank;
  facts.host = machine.host;
  facts.gpus = seat.gpus;
  facts.nics = seat.nics;
  Place cpus{{}, numa_of(machine, seat.cpus), package_of(machine, seat.cpus)};
  settle(machine, cpus);
  facts.numa = cpus.numa;
  std::vector<Place> places;
  for (GpuFacts& gpu : facts.gpus) {
    if (const int i = find_gpu(machine, gpu.bus_id, gpu.uuid); i >= 0) {
      places.push_back(machine.gpus[static_cast<size_t>(i)].place);
      gpu.numa = places.back().numa;
      facts.numa = facts.numa < 0 ? gpu.numa : facts.numa;
    } else {
      facts.note =
          "GPU " + (gpu.bus_id.empty() ? gpu.uuid : gpu.bus_id) +
          " is not in this machine's PCI tree, or several have that id; using the CPUs' place";
    }
  }
  if (places.empty()) {
    places.push_back(cpus);
  }
  bool flat = !facts.nics.empty();
  for (NicFacts& nic : facts.nics) {
    const int i = find_nic(machine, nic.name);
    nic.distance = Distance::unknown;
    if (i < 0) {
      continue;
    }
    const Nic& seen = machine.nics[static_cast<size_t>(i)];
    nic.numa = seen.place.numa;
    nic.rdma = nic.rdma || !seen.ibdev.empty();
    nic.speed_mbps = nic.speed_mbps > 0 ? nic.speed_mbps : seen.speed_mbps;
    for (const Place& place : places) {
      nic.distance = std::min(nic.distance, distance(place, seen.place));
    }
    flat = flat && nic.distance == Distance::unknown;
  }
  if (flat && facts.note.empty()) {
    facts.note = why_flat(machine, seat, cpus);
  }
  return facts;
}

std::vector<RankFacts> assumed_facts(const Machine& machine, int ranks,
                                     std::vector<NicFacts> nics) {
  const bool rdma = std::any_of(machine.nics.begin(), machine.nics.end(),
                                [](const Nic& nic) { return !nic.ibdev.empty(); });
  Seat seat;
  seat.nics = nics.empty() ? assumed_nics(machine, rdma) : std::move(nics);
  std::vector<const NumaNode*> homes;
  for (const NumaNode& node : machine.numas) {
    if (!node.cpus.empty()) {
      homes.push_back(&node);
    }
  }
  const size_t places =
      std::max<size_t>(1, machine.gpus.empty() ? homes.size() : machine.gpus.size());
  const size_t n = ranks > 0 ? static_cast<size_t>(ranks) : places;
  std::vector<RankFacts> all;
  for (size_t r = 0; r < n; ++r) {
    seat.rank = static_cast<int>(r);
    seat.gpus.clear();
    seat.cpus = {};
    // Neighbours in rank share a place when there are more ranks than places.
    const size_t at = n <= places ? r : r * places / n;
    if (!machine.gpus.empty()) {
      const Gpu& gpu = machine.gpus[at];
      seat.gpus.push_back({gpu.bus_id, gpu.uuid, gpu.place.numa});
      if (const NumaNode* node = find_numa(machine, gpu.place.numa)) {
        seat.cpus = node->cpus;
      }
    } else if (!homes.empty()) {
      seat.cpus = homes[at]->cpus;
    }
    all.push_back(facts_at(machine, seat));
    all.back().node_id = machine.host.empty() ? "this machine" : machine.host;
    all.back().transports = kTransportSocket | kTransportShm;
    if (rdma) {
      all.back().transports |= kTransportVerbs;
    }
  }
  return all;
}

Machine machine_from_facts(std::span<const RankFacts* const> facts) {
  Machine machine;
  machine.source = "what its ranks say";
  std::set<int> numas;
  for (const RankFacts* f : facts) {
    machine.host = machine.host.empty() ? f->host : machine.host;
    numas.insert(f->numa);
    for (const GpuFacts& gpu : f->gpus) {
      numas.insert(gpu.numa);
      const bool known = std::any_of(machine.gpus.begin(), machine.gpus.end(), [&](const Gpu& g) {
        return g.bus_id == gpu.bus_id && g.uuid == gpu.uuid;
      });
      if (!known) {
        machine.gpus.push_back({gpu.bus_id, gpu.uuid, {}, {{}, gpu.numa, -1}});
      }
    }
    for (const NicFacts& nic : f->nics) {
      numas.insert(nic.numa);
      if (find_nic(machine, nic.name) < 0) {
        machine.nics.push_back(
            {nic.name, nic.rdma ? nic.name : "", nic.speed_mbps, {{}, nic.numa, -1}});
      }
    }
  }
  numas.erase(-1);
  for (const int numa : numas) {
    machine.numas.push_back({numa, -1, {}, 0});
  }
  return machine;
}

Machine merge(Machine kernel, const Machine& hwloc) {
  const size_t kernel_numas = kernel.numas.size();
  kernel.source = hwloc.source + " and " + kernel.source;
  // An hwloc without its Linux part sees one NUMA node and no packages; the kernel knows better
  // then.
  if (hwloc.numas.size() >= kernel_numas && !hwloc.packages.empty()) {
    kernel.packages = hwloc.packages;
    kernel.numas = hwloc.numas;
  }
  if (hwloc.gpus.size() >= kernel.gpus.size()) {
    std::vector<Gpu> gpus = hwloc.gpus;
    for (Gpu& gpu : gpus) {
      if (const int i = find_gpu(kernel, gpu.bus_id, {}); i >= 0) {
        complete(gpu.place, kernel.gpus[static_cast<size_t>(i)].place);
      }
    }
    kernel.gpus = std::move(gpus);
  }
  for (Nic& nic : kernel.nics) {
    if (const int i = find_nic(hwloc, nic.name()); i >= 0) {
      complete(nic.place, hwloc.nics[static_cast<size_t>(i)].place);
    }
  }
  kernel.notes.insert(kernel.notes.end(), hwloc.notes.begin(), hwloc.notes.end());
  settle(kernel);
  return kernel;
}

void settle(Machine& machine) {
  // Memory that reaches over the CPUs of other nodes has none of its own.
  std::vector<bool> shared(machine.numas.size());
  for (size_t i = 0; i < machine.numas.size(); ++i) {
    for (const NumaNode& other : machine.numas) {
      const CpuSet& own = machine.numas[i].cpus;
      shared[i] =
          shared[i] || (!other.cpus.empty() && own.contains(other.cpus) && !(own == other.cpus));
    }
  }
  for (size_t i = 0; i < machine.numas.size(); ++i) {
    NumaNode& node = machine.numas[i];
    if (shared[i]) {
      node.cpus = {};
    }
    if (node.package < 0) {
      node.package = package_of(machine, node.cpus);
    }
  }
  std::map<std::string_view, std::vector<Gpu*>> by_bus;
  for (Gpu& gpu : machine.gpus) {
    settle(machine, gpu.place);
    if (gpu.uuid.empty()) {
      by_bus[gpu.bus_id].push_back(&gpu);
    }
  }
  for (const auto& [bus_id, equal] : by_bus) {
    for (size_t k = 0; equal.size() > 1 && k < equal.size(); ++k) {
      equal[k]->uuid = strf("#%zu", k);
    }
  }
  for (Nic& nic : machine.nics) {
    settle(machine, nic.place);
  }
}

}  // namespace prunex::topo

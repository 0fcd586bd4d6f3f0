// SPDX-License-Identifier: Apache-2.0
// The kernel's view. Devices are found by their class (net, infiniband), never by PCI class, and
// placed by the real path of their `device` link: a virtual function's link leads to its own
// function.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>
#include <string_view>

#include "topology/discover.h"
#include "topology/files.h"

namespace prunex::topo {
namespace {

// Above any link of today: older kernels write "not known" as 4294967295.
constexpr long long kAbsurdMbps = 10'000'000;

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), part.size() + 1));
    if (!part.empty()) {
      parts.emplace_back(part);
    }
  }
  return parts;
}

bool is_pci_root(std::string_view part) {
  return part.size() >= 10 && part.starts_with("pci") && part.find(':') != part.npos;
}

// The PCI part of a device's directory, and the nearest NUMA node that it or anything above it
// names: virtio devices and virtual functions often leave that to their parents.
Place place_of_directory(const std::string& directory) {
  Place place;
  const size_t devices = directory.find("/devices/");
  if (devices == directory.npos) {
    return place;
  }
  std::string_view below = directory;
  for (const std::string& part : split_path(below.substr(devices + 9))) {
    const std::string address = pci_address(part);
    if (!address.empty() || is_pci_root(part)) {
      place.path.push_back(address.empty() ? part : address);
    }
  }
  for (std::string at = directory; at.size() > devices + 9 && place.numa < 0;
       at.resize(at.rfind('/'))) {
    const auto node = read_integer(at + "/numa_node");
    place.numa = node && *node >= 0 && *node < 65536 ? static_cast<int>(*node) : -1;
  }
  return place;
}

int net_speed(const std::string& directory) {
  const auto speed = read_integer(directory + "/speed");  // fails while the link is down
  return speed && *speed > 0 && *speed < kAbsurdMbps ? static_cast<int>(*speed) : 0;
}

// A bond or VLAN lies on other interfaces: where they agree, it is there too. Nothing is known of
// an interface that has neither a device nor others below it: lo, bridges, tunnels, one end of a
// veth.
std::optional<Place> place_of_net(const std::string& root, const std::string& name, int depth,
                                  Machine& machine) {
  const std::string directory = root + "/class/net/" + name;
  if (const std::string device = real_path(directory + "/device"); !device.empty()) {
    return place_of_directory(device);
  }
  constexpr int kMaxStack = 4;
  std::optional<Place> place;
  bool split = false;
  for (const std::string& entry : list_directory(directory)) {
    if (!entry.starts_with("lower_") || depth >= kMaxStack) {
      continue;
    }
    const auto lower = place_of_net(root, entry.substr(6), depth + 1, machine);
    if (!lower || !place) {
      place = lower ? lower : place;
      continue;
    }
    split = split || lower->numa != place->numa;
    const auto apart = std::mismatch(place->path.begin(), place->path.end(), lower->path.begin(),
                                     lower->path.end())
                           .first;
    place->path.erase(apart, place->path.end());
  }
  if (split) {
    place->numa = -1;
    machine.notes.push_back(name + " joins devices of several NUMA nodes: no rank is nearer to it");
  }
  return place;
}

// "200 Gb/sec (4X HDR)" of the fastest port; a device has one entry here however many ports it has.
int rdma_speed(const std::string& directory) {
  double best = 0;
  for (const std::string& port : list_directory(directory + "/ports")) {
    if (const auto rate = read_line(directory + "/ports/" + port + "/rate")) {
      char* unit = nullptr;
      const double value = std::strtod(rate->c_str(), &unit) * 1000;
      if (std::string_view(unit).starts_with(" Gb/sec") && value > best && value < kAbsurdMbps) {
        best = value;
      }
    }
  }
  return static_cast<int>(best);
}

void find_nics(const std::string& root, Machine& machine) {
  std::map<std::string, std::vector<size_t>> on_device;
  for (const std::string& name : list_directory(root + "/class/net")) {
    const std::string directory = root + "/class/net/" + name;
    const std::string device = real_path(directory + "/device");
    auto place = place_of_net(root, name, 0, machine);
    if (!place) {
      continue;
    }
    if (!device.empty()) {
      on_device[device].push_back(machine.nics.size());
    }
    machine.nics.push_back({name, "", net_speed(directory), std::move(*place)});
  }
  for (const std::string& name : list_directory(root + "/class/infiniband")) {
    const std::string directory = root + "/class/infiniband/" + name;
    const std::string device = real_path(directory + "/device");
    const int speed = rdma_speed(directory);
    std::vector<size_t> joined;
    if (!device.empty()) {
      joined = on_device[device];
    } else if (const auto parent = read_line(directory + "/parent")) {
      // Soft-RoCE has no device of its own, only an interface it runs on.
      if (const int i = find_nic(machine, *parent); i >= 0) {
        joined.push_back(static_cast<size_t>(i));
      }
    }
    // Soft-RoCE may run beside the interface's own RDMA device: then it is one more NIC.
    std::erase_if(joined, [&](size_t i) { return !machine.nics[i].ibdev.empty(); });
    for (const size_t i : joined) {
      Nic& nic = machine.nics[i];
      nic.ibdev = name;
      nic.speed_mbps = nic.speed_mbps > 0 ? nic.speed_mbps : speed;
    }
    if (joined.empty()) {
      machine.nics.push_back({"", name, speed, place_of_directory(device)});
    }
  }
}

void find_cpus(const std::string& root, Machine& machine) {
  const std::string cpus = root + "/devices/system/cpu/";
  std::map<int, CpuSet> packages;
  for (const std::string& name : list_directory(cpus)) {
    const auto package = read_integer(cpus + name + "/topology/physical_package_id");
    const auto number = name.starts_with("cpu") ? CpuSet::parse(name.substr(3)) : std::nullopt;
    if (package && number && *package >= 0 && *package < 65536) {
      packages[static_cast<int>(*package)].add(*number);
    }
  }
  for (const auto& [index, set] : packages) {
    machine.packages.push_back({index, set});
  }
  const std::string nodes = root + "/devices/system/node/";
  for (const std::string& name : list_directory(nodes)) {
    const auto list = read_line(nodes + name + "/cpulist");
    if (!name.starts_with("node") || !list) {
      continue;
    }
    NumaNode node;
    node.os_index = std::atoi(name.c_str() + 4);
    node.cpus = CpuSet::parse(*list).value_or(CpuSet{});
    if (const auto text = read_file(nodes + name + "/meminfo", 65536)) {
      if (const size_t at = text->find("MemTotal:"); at != text->npos) {
        node.memory_bytes = std::strtoull(text->c_str() + at + 9, nullptr, 10) * 1024;
      }
    }
    machine.numas.push_back(std::move(node));
  }
  if (machine.numas.empty() && !machine.packages.empty()) {
    machine.numas.push_back({0, -1, {}, 0});  // a kernel without NUMA: all memory is one node
    for (const Package& package : machine.packages) {
      machine.numas.front().cpus.add(package.cpus);
    }
  }
}

void find_gpus(const std::string& root, Machine& machine) {
  const std::string devices = root + "/bus/pci/devices/";
  for (const std::string& name : list_directory(devices)) {
    const auto vendor = read_integer(devices + name + "/vendor");
    const auto kind = read_integer(devices + name + "/class");
    if (vendor == 0x10de && kind && (*kind >> 8 == 0x0302 || *kind >> 8 == 0x0300)) {
      machine.gpus.push_back(
          {pci_address(name), "", "", place_of_directory(real_path(devices + name))});
    }
  }
}

}  // namespace

Machine discover_sysfs(const std::string& root) {
  Machine machine;
  machine.source = "sysfs";
  find_cpus(root, machine);
  find_gpus(root, machine);
  find_nics(root, machine);
  settle(machine);
  return machine;
}

}  // namespace prunex::topo

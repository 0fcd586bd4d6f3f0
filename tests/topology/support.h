// SPDX-License-Identifier: Apache-2.0
// Facts by hand, fixtures, and a sysfs tree in a temporary folder.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "topology/discover.h"
#include "topology/facts.h"
#include "topology/machine.h"
#include "topology/world.h"

namespace prunex::topo::test {

inline NicFacts nic(std::string name, int speed_mbps = 0, Distance distance = Distance::unknown,
                    std::string address = {}) {
  NicFacts facts;
  facts.name = std::move(name);
  facts.speed_mbps = speed_mbps;
  facts.distance = distance;
  facts.address = std::move(address);
  return facts;
}

inline RankFacts rank(int number, std::string node, std::vector<NicFacts> nics = {}) {
  RankFacts facts;
  facts.rank = number;
  facts.host = node;
  facts.node_id = std::move(node);
  facts.nics = std::move(nics);
  facts.transports = kTransportSocket | kTransportShm;
  return facts;
}

inline std::string fixture(const std::string& name) {
  return std::string(PRUNEX_FIXTURES) + "/" + name;
}

// Whether XML can be loaded here at all; a test that needs it skips with this reason.
inline std::optional<std::string> no_hwloc() {
  const auto machine = load_machine(fixture("no-pci.xml"));
  return machine ? std::nullopt : std::optional(machine.error().text);
}
#define PRUNEX_NEEDS_HWLOC()                                      \
  do {                                                            \
    if (const auto why = ::prunex::topo::test::no_hwloc(); why) { \
      GTEST_SKIP() << *why;                                       \
    }                                                             \
  } while (0)

inline Machine load(const std::string& name) {
  auto machine = load_machine(fixture(name));
  EXPECT_TRUE(machine.has_value()) << machine.error().text;
  return machine ? *machine : Machine{};
}

inline World world_of(const std::vector<RankFacts>& facts, int max_rails = 0) {
  auto world = make_world(facts, {max_rails});
  EXPECT_TRUE(world.has_value()) << world.error().text;
  if (!world) {
    return {};
  }
  const auto valid = validate(*world);
  EXPECT_TRUE(valid.has_value()) << valid.error().text;
  return *world;
}

inline std::vector<int> leaders(const World& world, size_t node) {
  std::vector<int> ranks;
  for (const Leader& leader : world.nodes[node].leaders) {
    ranks.push_back(leader.rank);
  }
  return ranks;
}

// An environment variable for one scope.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const std::string& value) : name_(std::move(name)) {
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ~ScopedVariable() { ::unsetenv(name_.c_str()); }

 private:
  std::string name_;
};

class FakeSysfs {
 public:
  FakeSysfs() {
    std::string pattern = (std::filesystem::temp_directory_path() / "prunex_sysfs_XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  FakeSysfs(const FakeSysfs&) = delete;
  ~FakeSysfs() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  [[nodiscard]] std::string root() const { return root_.string(); }

  void file(const std::string& path, std::string_view text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  // `path` becomes a relative link to `target`; both are below the root.
  void link(const std::string& path, const std::string& target) {
    const auto from = (root_ / path).parent_path();
    std::filesystem::create_directories(from);
    std::filesystem::create_directories(root_ / target);
    std::filesystem::create_directory_symlink(std::filesystem::relative(root_ / target, from),
                                              root_ / path);
  }
  // An interface or RDMA device as the kernel shows it: the class entry leads into the device's
  // folder.
  void net(const std::string& name, const std::string& device, std::string_view speed = {}) {
    device_of_class("net", name, device);
    if (!speed.empty()) {
      file("class/net/" + name + "/speed", speed);
    }
  }
  void infiniband(const std::string& name, const std::string& device, std::string_view rate) {
    device_of_class("infiniband", name, device);
    file("class/infiniband/" + name + "/ports/1/rate", rate);
  }
  // A dual-socket machine's CPUs: 0-3 on node 0, 4-7 on node 1.
  void two_numas() {
    for (int cpu = 0; cpu < 8; ++cpu) {
      file("devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/physical_package_id",
           cpu < 4 ? "0" : "1");
    }
    for (const auto& [node, list] : {std::pair{"0", "0-3"}, {"1", "4-7"}}) {
      const std::string at = std::string("devices/system/node/node") + node;
      file(at + "/cpulist", list);
      file(at + "/meminfo", std::string("Node ") + node + " MemTotal:       16777216 kB");
    }
  }

 private:
  void device_of_class(const std::string& kind, const std::string& name,
                       const std::string& device) {
    const std::string at = device + "/" + kind + "/" + name;
    link("class/" + kind + "/" + name, at);
    link(at + "/device", device);
  }

  std::filesystem::path root_;
};

inline std::vector<std::string> path_of(const Machine& machine, std::string_view nic_name) {
  const int i = find_nic(machine, nic_name);
  return i < 0 ? std::vector<std::string>{"absent"}
               : machine.nics[static_cast<size_t>(i)].place.path;
}

inline const Nic& nic_of(const Machine& machine, std::string_view name) {
  static const Nic none;
  const int i = find_nic(machine, name);
  EXPECT_GE(i, 0) << name;
  return i < 0 ? none : machine.nics[static_cast<size_t>(i)];
}

}  // namespace prunex::topo::test

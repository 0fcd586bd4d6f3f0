// SPDX-License-Identifier: Apache-2.0
// What both renderings show, sorted into boxes: node > package > NUMA node > PCIe switch > devices.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "topology/render.h"

namespace prunex::topo {

struct GpuItem {
  std::string title;  // "GPU 3"
  std::string model;  // may be empty
  std::string bus_id;
  std::string uuid;  // only where several share the bus id
  std::vector<int> ranks;
};

struct NicItem {
  std::string name;    // "mlx5_0 (ib0)"
  std::string detail;  // "400 Gb/s RDMA"
  std::string bus_id;
  std::vector<size_t> rails;  // it carries; empty: none
};

struct SwitchItem {
  std::string name;  // address of the bridge; empty: these devices share none
  std::vector<GpuItem> gpus;
  std::vector<NicItem> nics;
};

struct NumaItem {
  std::string title;       // "NUMA 0", "place unknown"
  std::string detail;      // "CPUs 0-47, 512 GiB"
  std::vector<int> ranks;  // those that use no GPU drawn here
  std::vector<SwitchItem> switches;
};

struct PackageItem {
  std::string title;  // "package 0"; empty: none is known
  std::vector<NumaItem> numas;
};

struct LeaderItem {
  int rank;
  std::string nic;  // empty: none
  std::string why;
};

struct NodeItem {
  std::string title;  // "node 0: dgx01"
  std::string ranks;  // "ranks 0-7"
  std::vector<PackageItem> packages;
  std::vector<LeaderItem> leaders;  // by rail
  std::vector<std::string> notes;
};

[[nodiscard]] NodeItem node_item(const Picture& picture, size_t node);
[[nodiscard]] std::string world_title(const World& world);  // "2 nodes, 16 ranks, 8 rails"
[[nodiscard]] std::string transports_text(uint32_t transports);
// Valid UTF-8 without control characters; what is neither becomes '?'.
[[nodiscard]] std::string harmless(std::string_view text);
[[nodiscard]] std::string count_text(size_t n, const char* noun);  // "1 rail", "2 rails"

}  // namespace prunex::topo

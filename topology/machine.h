// SPDX-License-Identifier: Apache-2.0
// One host as plain data: packages, NUMA nodes, GPUs and NICs. Discovery fills it; everything here
// is pure.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topology/cpuset.h"
#include "topology/facts.h"

namespace prunex::topo {

struct Package {
  int os_index = -1;
  CpuSet cpus;
};

struct NumaNode {
  int os_index = -1;
  int package = -1;  // os_index of its package; -1: spans several, or not known
  CpuSet cpus;       // may be empty: memory without processors is no error
  uint64_t memory_bytes = 0;
};

// Where a device sits. The path leads from the PCI root to the device's own function:
// {"pci0000:15", "0000:15:01.0", …, "0000:18:00.0"}; empty when there is no PCI information.
struct Place {
  std::vector<std::string> path;
  int numa = -1;     // os_index of its NUMA node; -1: not known
  int package = -1;  // os_index of its package; -1: not known
};

struct Gpu {
  std::string bus_id;  // may be shared by several
  std::string uuid;    // empty: not known; "#k" for the k-th of several with one bus id and no uuid
  std::string model;
  Place place;
};

struct Nic {
  std::string netdev;  // network interface, may be empty
  std::string ibdev;   // RDMA device, may be empty; one of the two is not
  int speed_mbps = 0;
  Place place;

  [[nodiscard]] const std::string& name() const { return netdev.empty() ? ibdev : netdev; }
};

struct Machine {
  std::string host;
  std::string source;  // "hwloc, file dgx.xml"
  std::vector<Package> packages;
  std::vector<NumaNode> numas;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  std::vector<std::string> notes;  // what could not be found out and why, one line each
};

// Where a rank runs.
struct Seat {
  int rank = -1;
  CpuSet cpus;                 // it may run on; empty: not known
  std::vector<GpuFacts> gpus;  // it uses; bus id, and uuid where bus ids repeat
  std::vector<NicFacts> nics;  // it may use, without locality
};

// Indices of the GPU that a bus id and uuid mean, or -1 when none or several match.
[[nodiscard]] int find_gpu(const Machine& machine, std::string_view bus_id, std::string_view uuid);
[[nodiscard]] int find_nic(const Machine& machine, std::string_view name);

// os_index of the NUMA node that holds all these CPUs (the tightest of several), or -1.
[[nodiscard]] int numa_of(const Machine& machine, const CpuSet& cpus);

[[nodiscard]] Distance distance(const Place& a, const Place& b);

// Fills locality and speed into what a rank at this seat publishes; identity and transports are
// left to the caller. A device that the machine does not show stays "unknown".
[[nodiscard]] RankFacts facts_at(const Machine& machine, const Seat& seat);

// The facts of ranks that might run on this machine (one node): rank i uses GPU i and that GPU's
// CPUs, or without GPUs is bound to one NUMA node, in turn. `ranks` 0: one per GPU, else one per
// NUMA node. Without `nics` they use all of the machine's, or its RDMA devices where it has some.
[[nodiscard]] std::vector<RankFacts> assumed_facts(const Machine& machine, int ranks,
                                                   std::vector<NicFacts> nics = {});

// What the ranks of another host say about it, for pictures.
[[nodiscard]] Machine machine_from_facts(std::span<const RankFacts* const> facts);

// Joins two views of one live host: `kernel` (sysfs) lists the NICs and their speeds, `hwloc` adds
// packages, GPUs and the places that the kernel's files do not tell.
[[nodiscard]] Machine merge(Machine kernel, const Machine& hwloc);

// Sorts devices into NUMA nodes and packages as far as that follows from the rest: a device without
// a NUMA node gets the only one; its package follows from its node. Equal GPUs get their "#k".
void settle(Machine& machine);

// The canonical form of a PCI address, "0000:3B:00.0" or "3b:00.0" -> "0000:3b:00.0"; empty if it
// is none.
[[nodiscard]] std::string pci_address(std::string_view text);

}  // namespace prunex::topo

// SPDX-License-Identifier: Apache-2.0
// Looks at a host: hwloc where the library is present, the kernel's files in any case.
#pragma once
#include <string>
#include <vector>

#include "plugin/base/result.h"
#include "topology/facts.h"
#include "topology/machine.h"

namespace prunex::topo {

inline constexpr const char* kHwlocLibrary = "libhwloc.so.15";

struct DiscoverOptions {
  std::string sysfs = "/sys";  // another root is for tests; hwloc is not asked then
  bool hwloc = true;
  std::string hwloc_library = kHwlocLibrary;  // opened at run time
};

// The machine this process runs on. Never fails: what cannot be found out stays unknown, and
// Machine::notes says why. Looks once per process and library; thread-safe.
[[nodiscard]] Machine discover(const DiscoverOptions& options = {});

// A machine from a file that `lstopo --of xml` wrote; HWLOC_* variables have no part in it. hwloc's
// files hold no NIC speeds; an info "LinkSpeedMbps" of a network or RDMA device is taken as its
// speed (hwloc-annotate can add it).
[[nodiscard]] Result<Machine> load_machine(const std::string& path,
                                           const std::string& hwloc_library = kHwlocLibrary);

// The parts, for discover() and tests.
[[nodiscard]] Machine discover_afresh(const DiscoverOptions& options);
[[nodiscard]] Machine discover_sysfs(const std::string& root);
[[nodiscard]] Result<Machine> discover_hwloc(const std::string& library);
[[nodiscard]] Result<Machine> parse_hwloc_xml(const std::string& library, const std::string& xml,
                                              const std::string& name);

struct FactsOptions {
  int rank = -1;
  std::string node_id;         // override of the node's identity; empty: found out
  std::vector<NicFacts> nics;  // the usable ones in device order, without locality
  std::vector<GpuFacts> gpus;  // those this rank uses: bus id, and uuid where bus ids repeat
  uint32_t transports = kTransportSocket | kTransportShm;
  std::string shm_dir = "/dev/shm";
  DiscoverOptions discover;
};

// What this process publishes about itself. Missing locality is no error, see RankFacts::note.
[[nodiscard]] Result<RankFacts> local_facts(const FactsOptions& options);

// Ranks with equal identity share memory: host name, boot id, and the file system behind `shm_dir`
// (containers on one host may each have their own).
[[nodiscard]] Result<std::string> node_identity(const std::string& shm_dir = "/dev/shm");

}  // namespace prunex::topo

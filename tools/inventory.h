// SPDX-License-Identifier: Apache-2.0
// What `prunex info` reports: what is here, what is not and why, and what stops a job.
#pragma once
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "tools/library_probe.h"
#include "topology/machine.h"

namespace prunex::tools {

struct TransportState {
  std::string name;
  bool usable = false;
  std::string detail;                     // what it would use, or why it cannot be used
  std::vector<std::string> devices = {};  // that a job would use
};

struct GpuState {
  int number = 0;
  std::string name;
  int arch = 0;         // major * 10 + minor
  std::string problem;  // why device calls cannot use it; empty: they can
};

struct GpuPart {  // what device memory needs
  bool usable = false;
  std::string path, detail;  // where it is, as far as known; what it is, or why it cannot be used
};

struct Inventory {
  LibraryState library, nccl_plugin;
  std::vector<GpuState> gpus;     // as CUDA numbers them, where the kernel library can be used
  GpuPart cuda, nccl;             // libprunex-cuda.so with a driver and a GPU; libnccl.so.2
  std::string nccl_note;          // NCCL would load something else than what is beside this command
  std::string isa;                // in force
  std::vector<std::string> isas;  // this CPU has
  std::vector<TransportState> transports;
  topo::Machine machine;
  std::vector<ConfigValue> config;    // empty when the configuration is at fault
  std::vector<std::string> warnings;  // about the configuration
  std::vector<std::string> problems;  // a job could not run
};

// What NCCL would load, after NCCL_NET_PLUGIN and LD_LIBRARY_PATH.
[[nodiscard]] LibraryState probe_nccl_plugin(const std::vector<std::string>& symbols,
                                             const Environment& environment);
[[nodiscard]] Inventory take_inventory(const Environment& environment);

}  // namespace prunex::tools

// SPDX-License-Identifier: Apache-2.0
// The network devices that NCCL is shown. The order is by PCI address, then name: the same on every
// start, whatever order the kernel lists interfaces in.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/interfaces.h"
#include "plugin/base/result.h"
#include "topology/machine.h"

namespace prunex::nccl {

struct Device {
  std::string name;      // of the interface
  std::string pci_path;  // sysfs directory of its PCI function; empty: not known
  uint64_t guid = 0;     // tells functions apart, also ports of one card
  int speed_mbps = 0;    // as the kernel says, or kAssumedSpeedMbps
  int port = 0;
  SocketAddress address;
};

// Virtual interfaces tell no speed; NCCL takes the same figure for them.
inline constexpr int kAssumedSpeedMbps = 10000;

// Pure: one device per interface that the configuration lets through. The error names the filter
// and what there is.
[[nodiscard]] Result<std::vector<Device>> choose_devices(std::span<const Interface> have,
                                                         const topo::Machine& machine,
                                                         const Config& config);

// The same for this machine.
[[nodiscard]] Result<std::vector<Device>> find_devices(const Config& config);

}  // namespace prunex::nccl

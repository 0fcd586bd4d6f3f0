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
#include "plugin/transport/choose.h"
#include "topology/machine.h"

namespace prunex::nccl {

struct Device {
  std::string name;  // of the interface, or of the RDMA device and its port where it has several
  std::string pci_path;  // sysfs directory of its PCI function; empty: not known
  uint64_t guid = 0;     // tells functions apart, also ports of one card
  int speed_mbps = 0;    // as the kernel says, or kAssumedSpeedMbps
  int port = 0;
  SocketAddress address;  // where connections begin, whatever moves their bytes
  bool rdma = false;
  size_t rail = 0;  // of an RDMA device, as transport::RdmaPort has it
};

// Virtual interfaces tell no speed; NCCL takes the same figure for them.
inline constexpr int kAssumedSpeedMbps = 10000;

// Pure: one device per interface that the configuration lets through. The error names the filter
// and what there is.
[[nodiscard]] Result<std::vector<Device>> choose_devices(std::span<const Interface> have,
                                                         const topo::Machine& machine,
                                                         const Config& config);

// Pure: one device per usable RDMA port. Its connections begin on the interface that has one of the
// port's addresses, else on the first that the configuration lets through.
[[nodiscard]] Result<std::vector<Device>> choose_rdma_devices(const transport::Rdma& rdma,
                                                              std::span<const Interface> have,
                                                              const topo::Machine& machine,
                                                              const Config& config);

// The same for this machine: RDMA ports where there are any to be used, else interfaces.
struct FoundDevices {
  std::vector<Device> devices;
  transport::Rdma rdma;
};
[[nodiscard]] Result<FoundDevices> find_devices(const Config& config);

}  // namespace prunex::nccl

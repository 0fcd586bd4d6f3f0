// SPDX-License-Identifier: Apache-2.0
// Which network a process uses between nodes: RDMA where it can be used, else TCP, and why.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/interfaces.h"
#include "plugin/base/result.h"
#include "plugin/transport/verbs/verbs.h"

namespace prunex::transport {

struct RdmaPort {
  verbs::PortInfo info;
  size_t rail = 0;  // VerbsOptions::rail of this port
};

struct Rdma {
  std::vector<RdmaPort> ports;        // usable, by PCI address, then name and port
  std::vector<std::string> warnings;  // a person has asked for what is not there
  std::vector<std::string> notes;     // ports that are left out, and why
  std::string why_not;                // where there is no port; empty: nobody wants any
  bool named = false;                 // PRUNEX_IB_HCA speaks of devices: somebody expects RDMA

  [[nodiscard]] bool usable() const { return !ports.empty(); }
};

// Looks at this machine: every port that is listed is opened, and memory registered with it, as a
// job would. An error: PRUNEX_TRANSPORT=verbs and there is none, or a setting that no port can
// keep, or devices are asked for by names that none has. `api`: nullptr is libibverbs.so.1.
[[nodiscard]] Result<Rdma> find_rdma(const Config& config, const verbs::Api* api = nullptr);

// "mlx5_0", or "mlx5_0:2" where several ports of the device are used.
[[nodiscard]] std::string device_name(const Rdma& rdma, const RdmaPort& port);
// Where the connections of a port begin: the interface that has one of its addresses, else the
// first. `chosen`: not empty.
[[nodiscard]] const Interface& meeting_interface(const verbs::PortInfo& port,
                                                 std::span<const Interface> chosen);

// As the configuration says. traffic_class: the communicator's of NCCL, below 0: none.
[[nodiscard]] VerbsOptions verbs_options(const IbConfig& ib, const SocketOptions& meeting,
                                         size_t rail, int traffic_class = -1);

// Where a listener of either network waits.
[[nodiscard]] Result<SocketAddress> meeting_address(std::string_view handle);

// What a person is told once: the ports that are used, or why none is.
[[nodiscard]] std::string summary(const Rdma& rdma);
void tell(const Rdma& rdma);  // that line (WARN where RDMA was expected), warnings and notes

}  // namespace prunex::transport

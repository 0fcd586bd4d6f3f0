// SPDX-License-Identifier: Apache-2.0
// Transport over RDMA: reliable connected queue pairs, one or several per connection, over one port
// or several. The receiving side posts
// credits, the sending side writes into the receiver's memory and announces each message with the
// immediate of its last write. The two ends meet over TCP, and keep that connection to notice each
// other's end.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugin/base/result.h"
#include "plugin/transport/socket/socket.h"
#include "plugin/transport/transport.h"
#include "plugin/transport/verbs/devices.h"

namespace prunex::transport {

namespace verbs {
struct Api;
}

// Below this, a second announcement costs more than a second queue pair brings.
inline constexpr size_t kSplitFrom = size_t{64} << 10;

struct VerbsOptions {
  const verbs::Api* api = nullptr;  // nullptr: libibverbs.so.1
  SocketOptions socket;             // where the ends meet
  std::string hca;                  // PRUNEX_IB_HCA
  size_t rail = 0;                  // which of the chosen ports
  std::vector<size_t> rails;        // several of them instead, for every connection; at most 4
  size_t queue_pairs = 1;           // per connection, 1 to 16; at least one per port. The
                                    // connecting end's count
  size_t split_from = kSplitFrom;   // bytes of a message that goes over all queue pairs
  int gid_index = -1;               // PRUNEX_IB_GID_INDEX; -1: by choose_gid()
  verbs::GidWishes gid_wishes;      // PRUNEX_IB_ADDR_FAMILY, _ADDR_RANGE, _ROCE_VERSION
  int pkey = -1;                    // PRUNEX_IB_PKEY; -1: by choose_pkey()
  uint8_t traffic_class = 0;        // PRUNEX_IB_TC
  uint8_t service_level = 0;        // PRUNEX_IB_SL, 0 to 15
  uint8_t timeout = 20;             // PRUNEX_IB_TIMEOUT: 4.096 us * 2^n until a packet is resent
  uint8_t retry_count = 7;          // PRUNEX_IB_RETRY_CNT, 0 to 7
  uint32_t inline_bytes = 128;      // asked of the device; it may give less
  bool relaxed_order = true;        // PRUNEX_IB_RELAXED_ORDERING is not 0: register_relaxed() asks
                                    // the device for it
  bool device_memory = false;       // receives may be into memory of register_dmabuf(): then
                                    // nothing comes before its receive is posted
  double stall_s = 0;               // a transfer that began goes on within so long; 0: whenever
  uint32_t first_sequence = 0;      // tests start near the wrap; said by the connecting end
};

// Every port of every device, usable or not, in the library's order.
[[nodiscard]] Result<std::vector<verbs::PortInfo>> list_verbs_ports(const VerbsOptions& options);

// `notes`, if given, takes what a person may want to know: ports left out and why.
[[nodiscard]] Result<std::unique_ptr<Transport>> open_verbs_transport(
    const VerbsOptions& options, std::vector<std::string>* notes = nullptr);

}  // namespace prunex::transport

// SPDX-License-Identifier: Apache-2.0
// Transport over TCP: one or several streams per connection, every one announced by a hello that
// carries the listener's cookie, so that streams may arrive in any order and strays are told apart.
#pragma once
#include <cstdint>
#include <memory>

#include "plugin/base/address.h"
#include "plugin/base/result.h"
#include "plugin/base/sockets.h"
#include "plugin/transport/transport.h"

namespace prunex::transport {

struct SocketOptions {
  SocketAddress address;  // the interface to listen on and to connect from; none: loopback
  PortRange ports;        // for listeners; connecting ends use any
  int streams = 0;        // per connection, said by the connecting end; 0: by default_streams()
  int send_buffer = 0;    // bytes; 0: the kernel's own tuning
  int recv_buffer = 0;
  uint64_t pacing_rate = 0;     // bytes/s that a connection sends at most; 0: no limit
  double stray_timeout_s = 10;  // a caller that has not introduced itself by then is dropped
  double silence_s =
      kVanishedAfterS;   // no acknowledgement for so long while data are out: peer lost
  double refused_s = 0;  // connecting: a host that refuses for so long has no listener; 0: as
                         // long as the timeout
  double stall_s = 0;    // a message that began to arrive goes on within so long; 0: whenever
  uint32_t first_sequence = 0;  // tests start near the wrap; said by the connecting end
};

// One stream saturates loopback. Between machines a network may bound every flow (equal-cost paths,
// clouds), so there are several.
[[nodiscard]] int default_streams(bool same_machine);

[[nodiscard]] Result<std::unique_ptr<Transport>> open_socket_transport(
    const SocketOptions& options);

}  // namespace prunex::transport

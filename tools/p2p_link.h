// SPDX-License-Identifier: Apache-2.0
// The service part, as NCCL does it: a device, listen, handles to the other end, connect and accept
// by polling. Afterwards each end can send and receive.
#pragma once
#include <array>
#include <string>

#include "plugin/base/config.h"
#include "plugin/base/result.h"
#include "tools/net_api.h"
#include "tools/p2p.h"
#include "tools/p2p_peer.h"

namespace prunex::tools {

// Compares what the two ends would connect by; the error says what differs and how to mend it.
[[nodiscard]] Result<> fit_together(const P2pPort& here, const P2pPort& there);

class P2pLink {
 public:
  // device: a name, a number, or empty for the first. config: of this end; its deadline counts.
  [[nodiscard]] static Result<P2pLink> open(NetApi& api, const std::string& device,
                                            const Config& config, P2pPeer& peer);
  P2pLink(P2pLink&& other) noexcept { *this = std::move(other); }
  P2pLink& operator=(P2pLink&& other) noexcept;
  ~P2pLink() { close(); }

  [[nodiscard]] NetApi& api() const { return *api_; }
  [[nodiscard]] void* send_comm() const { return send_; }
  [[nodiscard]] void* recv_comm() const { return recv_; }
  [[nodiscard]] const NetDevice& device() const { return device_; }
  // "socket" or "verbs"; empty: another network's device.
  [[nodiscard]] const std::string& transport() const { return transport_; }
  // Of RDMA, for a person: port, GID, MTU of each end; empty: another network's.
  [[nodiscard]] const P2pPort& own() const { return own_; }
  [[nodiscard]] const P2pPort& peer() const { return peer_; }
  [[nodiscard]] double connect_us() const { return connect_us_; }  // both directions

 private:
  P2pLink() = default;
  [[nodiscard]] Result<int> choose(const std::string& device);
  [[nodiscard]] Result<> establish(int device, const Config& config, P2pPeer& peer);
  [[nodiscard]] Result<> connect_both(int device, char* handle, double timeout_s);
  void close();

  NetApi* api_ = nullptr;
  void *listen_ = nullptr, *send_ = nullptr, *recv_ = nullptr;
  NetDevice device_;
  std::string transport_;
  P2pPort own_, peer_;
  double connect_us_ = 0;
};

}  // namespace prunex::tools

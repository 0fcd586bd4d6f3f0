// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p_link.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "plugin/base/address.h"
#include "plugin/base/clock.h"
#include "plugin/nccl/net/devices.h"
#include "tools/p2p.h"

namespace prunex::tools {
namespace {

constexpr double kConnectSeconds = 30;  // at most; PRUNEX_TIMEOUT may be less
constexpr size_t kMaxAddress = 64;      // of its text

// What PruneX takes for the device; nothing: another network's device.
std::optional<nccl::Device> own_device(const Config& config, const std::string& device) {
  const auto found = nccl::find_devices(config);
  for (const nccl::Device& d : found ? found->devices : std::vector<nccl::Device>()) {
    if (d.name == device) {
      return d;
    }
  }
  return std::nullopt;
}

// Behind an error: the addresses of the two ends, and whether they can meet at all.
std::string between(const std::string& here, const std::string& there) {
  const auto mine = parse_host(here, 1), theirs = parse_host(there, 1);
  if (!mine || !theirs) {
    return {};
  }
  std::string text =
      strf("; this end has %s (%s), the other %s (%s)", host_text(*mine).c_str(),
           family_name(mine->family()), host_text(*theirs).c_str(), family_name(theirs->family()));
  if (mine->family() != theirs->family()) {
    text += ": they cannot meet. Give both the same NCCL_SOCKET_FAMILY";
  }
  return text;
}

}  // namespace

P2pLink& P2pLink::operator=(P2pLink&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(listen_, other.listen_);
  std::swap(send_, other.send_);
  std::swap(recv_, other.recv_);
  std::swap(device_, other.device_);
  std::swap(transport_, other.transport_);
  std::swap(connect_us_, other.connect_us_);
  return *this;
}

void P2pLink::close() {
  if (api_ == nullptr) {
    return;
  }
  if (send_ != nullptr) {
    (void)api_->close_send(std::exchange(send_, nullptr));
  }
  if (recv_ != nullptr) {
    (void)api_->close_recv(std::exchange(recv_, nullptr));
  }
  if (listen_ != nullptr) {
    (void)api_->close_listen(std::exchange(listen_, nullptr));
  }
}

Result<int> P2pLink::choose(const std::string& device) {
  int count = 0;
  if (const int r = api_->devices(&count); r != 0) {
    return tl::unexpected(net_error(*api_, "devices", r));
  }
  std::string have;
  for (int i = 0; i < count; ++i) {
    NetDevice d;
    if (const int r = api_->device(i, &d); r != 0) {
      return tl::unexpected(net_error(*api_, "getProperties", r));
    }
    if (device.empty() || device == d.name || device == std::to_string(i)) {
      device_ = d;
      return i;
    }
    have += (i == 0 ? "" : ", ") + d.name;
  }
  return count == 0
             ? fail(Code::unsupported,
                    strf("network %s has no device on this machine; NCCL_DEBUG=INFO shows what it "
                         "says of them",
                         api_->name()))
             : fail(Code::invalid_argument, strf("--device %s: network %s has %s", device.c_str(),
                                                 api_->name(), have.c_str()));
}

Result<> P2pLink::connect_both(int device, char* handle, double timeout_s) {
  const Deadline deadline = Deadline::after(timeout_s);
  while (send_ == nullptr || recv_ == nullptr) {
    if (send_ == nullptr) {
      if (const int r = api_->connect(device, handle, &send_); r != 0) {
        return tl::unexpected(net_error(*api_, "connect", r));
      }
    }
    if (recv_ == nullptr) {
      if (const int r = api_->accept(listen_, &recv_); r != 0) {
        return tl::unexpected(net_error(*api_, "accept", r));
      }
    }
    if (deadline.passed() && (send_ == nullptr || recv_ == nullptr)) {
      return fail(Code::timeout, strf("the two ends could not connect over device %s of network %s "
                                      "within %g s",
                                      device_.name.c_str(), api_->name(), timeout_s));
    }
    if (send_ == nullptr || recv_ == nullptr) {
      ::sched_yield();
    }
  }
  return {};
}

Result<> P2pLink::establish(int device, const Config& config, P2pPeer& peer) {
  alignas(8) std::array<char, nccl::kHandleBytes> handle{};
  if (const int r = api_->listen(device, handle.data(), &listen_); r != 0) {
    return tl::unexpected(net_error(*api_, "listen", r));
  }
  const auto own = own_device(config, device_.name);
  const std::string here = own ? host_text(own->address).substr(0, kMaxAddress) : std::string();
  const bool is_own = own && std::string_view(api_->name()) == kOwnNetwork;
  transport_ = !is_own ? "" : own->rdma ? "verbs" : "socket";
  auto other = peer.exchange(std::string(handle.data(), handle.size()) + here);
  if (!other) {
    return tl::unexpected(other.error());
  }
  if (other->size() < handle.size() || other->size() > handle.size() + kMaxAddress) {
    return fail(Code::mismatch, strf("the other end's handle has %zu bytes", other->size()));
  }
  std::memcpy(handle.data(), other->data(), handle.size());
  const int64_t begin = now_ns();
  auto connected = connect_both(device, handle.data(), std::min(kConnectSeconds, config.timeout_s));
  if (!connected) {
    connected.error().text += between(here, other->substr(handle.size()));
    return connected;
  }
  connect_us_ = static_cast<double>(now_ns() - begin) * 1e-3;
  return {};
}

Result<P2pLink> P2pLink::open(NetApi& api, const std::string& device, const Config& config,
                              P2pPeer& peer) {
  P2pLink link;
  link.api_ = &api;
  const Result<int> chosen = link.choose(device);
  if (!chosen) {
    return tl::unexpected(chosen.error());
  }
  if (auto done = link.establish(*chosen, config, peer); !done) {
    return tl::unexpected(done.error());
  }
  return link;
}

}  // namespace prunex::tools

// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p_link.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "plugin/base/address.h"
#include "plugin/base/clock.h"
#include "plugin/base/wire.h"
#include "plugin/nccl/net/devices.h"

namespace prunex::tools {
namespace {

constexpr double kConnectSeconds = 30;  // at most; PRUNEX_TIMEOUT may be less
constexpr size_t kMaxAddress = 64;      // of its text
constexpr size_t kMaxName = 256;

P2pPort own_port(const Config& config, const NetDevice& device) {
  P2pPort out;
  out.device = device.name.substr(0, kMaxName);
  const auto found = nccl::find_devices(config);
  if (!found) {
    return out;
  }
  for (const nccl::Device& d : found->devices) {
    if (d.name != device.name) {
      continue;
    }
    out.transport = d.rdma ? "verbs" : "socket";
    out.address = host_text(d.address).substr(0, kMaxAddress);
    for (const transport::RdmaPort& port : found->rdma.ports) {
      if (!d.rdma || port.rail != d.rail) {
        continue;
      }
      const IbConfig& ib = config.ib;
      const auto gid =
          choose_gid(port.info, ib.gid_index, {ib.gid_family, ib.gid_range, ib.roce_version});
      if (gid && gid->bytes != transport::verbs::GidBytes{}) {
        out.gid = strf("%d %s %s", gid->index, transport::verbs::to_text(gid->bytes).c_str(),
                       transport::verbs::to_text(gid->type));
      }
      out.mtu = port.info.mtu;
      out.queue_pairs = std::min(ib.queue_pairs, kP2pMaxQueuePairs);
    }
  }
  return out;
}

std::string encode(const P2pPort& port) {
  WireAppender out;
  for (const std::string* text : {&port.transport, &port.address, &port.device, &port.gid}) {
    out.put_string(*text);
  }
  out.put(static_cast<uint32_t>(port.mtu));
  out.put(static_cast<uint32_t>(port.queue_pairs));
  return out.take();
}

Result<P2pPort> decode_port(std::string_view bytes) {
  WireReader in(bytes);
  P2pPort out;
  for (std::string* text : {&out.transport, &out.address, &out.device, &out.gid}) {
    *text = in.get_string(kMaxName);
    for (char& c : *text) {  // it will be printed
      c = c >= ' ' && c <= '~' ? c : '?';
    }
  }
  out.mtu = static_cast<int>(std::min<uint32_t>(in.get<uint32_t>(), 1 << 16));
  out.queue_pairs = static_cast<int>(std::min<uint32_t>(in.get<uint32_t>(), 1 << 16));
  if (!in.ok() || in.left() != 0) {
    return fail(Code::mismatch, "the other end does not say what it connects by");
  }
  return out;
}

std::string name_of_way(const P2pPort& port) {
  return port.transport == "verbs" ? strf("RDMA (verbs, device %s)", port.device.c_str())
                                   : strf("TCP (socket, device %s)", port.device.c_str());
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

Result<> fit_together(const P2pPort& here, const P2pPort& there) {
  if (here.transport.empty() || there.transport.empty()) {
    return {};
  }
  if (here.transport != there.transport) {
    return fail(Code::mismatch,
                strf("this end uses %s, the other %s: they cannot meet. Give both the same "
                     "PRUNEX_TRANSPORT (--transport); `prunex info` says at each end what keeps "
                     "it from RDMA",
                     name_of_way(here).c_str(), name_of_way(there).c_str()));
  }
  if (here.queue_pairs != there.queue_pairs) {
    return fail(Code::mismatch,
                strf("the two ends were started differently: here PRUNEX_IB_QPS (--qps) is %d, "
                     "there %d; give both the same",
                     here.queue_pairs, there.queue_pairs));
  }
  return {};
}

P2pLink& P2pLink::operator=(P2pLink&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(listen_, other.listen_);
  std::swap(send_, other.send_);
  std::swap(recv_, other.recv_);
  std::swap(device_, other.device_);
  std::swap(transport_, other.transport_);
  std::swap(own_, other.own_);
  std::swap(peer_, other.peer_);
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
  own_ = own_port(config, device_);
  if (std::string_view(api_->name()) != kOwnNetwork) {
    own_ = {"", own_.address, own_.device, "", 0, 0};
  }
  transport_ = own_.transport;
  auto other = peer.exchange(std::string(handle.data(), handle.size()) + encode(own_));
  if (!other) {
    return tl::unexpected(other.error());
  }
  if (other->size() < handle.size()) {
    return fail(Code::mismatch, strf("the other end's handle has %zu bytes", other->size()));
  }
  auto port = decode_port(std::string_view(*other).substr(handle.size()));
  if (!port) {
    return tl::unexpected(port.error());
  }
  peer_ = *std::move(port);
  if (auto fits = fit_together(own_, peer_); !fits) {
    return fits;
  }
  std::memcpy(handle.data(), other->data(), handle.size());
  const int64_t begin = now_ns();
  auto connected = connect_both(device, handle.data(), std::min(kConnectSeconds, config.timeout_s));
  if (!connected) {
    connected.error().text += between(own_.address, peer_.address);
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

// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p_link.h"

#include <sched.h>

#include <cstring>
#include <utility>

#include "plugin/base/clock.h"

namespace prunex::tools {
namespace {

constexpr double kConnectSeconds = 30;

}  // namespace

P2pLink& P2pLink::operator=(P2pLink&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(listen_, other.listen_);
  std::swap(send_, other.send_);
  std::swap(recv_, other.recv_);
  std::swap(device_, other.device_);
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
  return fail(Code::invalid_argument, count == 0
                                          ? strf("network %s has no device", api_->name())
                                          : strf("--device %s: network %s has %s", device.c_str(),
                                                 api_->name(), have.c_str()));
}

Result<> P2pLink::establish(int device, P2pPeer& peer) {
  alignas(8) std::array<char, nccl::kHandleBytes> handle{};
  if (const int r = api_->listen(device, handle.data(), &listen_); r != 0) {
    return tl::unexpected(net_error(*api_, "listen", r));
  }
  auto other = peer.exchange(std::string_view(handle.data(), handle.size()));
  if (!other) {
    return tl::unexpected(other.error());
  }
  if (other->size() != handle.size()) {
    return fail(Code::mismatch, strf("the other end's handle has %zu bytes", other->size()));
  }
  std::memcpy(handle.data(), other->data(), handle.size());
  const int64_t begin = now_ns();
  const Deadline deadline = Deadline::after(kConnectSeconds);
  while (send_ == nullptr || recv_ == nullptr) {
    if (send_ == nullptr) {
      if (const int r = api_->connect(device, handle.data(), &send_); r != 0) {
        return tl::unexpected(net_error(*api_, "connect", r));
      }
    }
    if (recv_ == nullptr) {
      if (const int r = api_->accept(listen_, &recv_); r != 0) {
        return tl::unexpected(net_error(*api_, "accept", r));
      }
    }
    if (deadline.passed()) {
      return fail(Code::timeout, strf("the two ends could not connect over device %s of network %s "
                                      "within %g s",
                                      device_.name.c_str(), api_->name(), kConnectSeconds));
    }
    if (send_ == nullptr || recv_ == nullptr) {
      ::sched_yield();
    }
  }
  connect_us_ = static_cast<double>(now_ns() - begin) * 1e-3;
  return {};
}

Result<P2pLink> P2pLink::open(NetApi& api, const std::string& device, P2pPeer& peer) {
  P2pLink link;
  link.api_ = &api;
  const Result<int> chosen = link.choose(device);
  if (!chosen) {
    return tl::unexpected(chosen.error());
  }
  if (auto done = link.establish(*chosen, peer); !done) {
    return tl::unexpected(done.error());
  }
  return link;
}

}  // namespace prunex::tools

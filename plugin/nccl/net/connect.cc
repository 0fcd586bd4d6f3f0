// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/net/connect.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "plugin/base/address.h"
#include "plugin/base/clock.h"
#include "plugin/base/log.h"
#include "plugin/base/process.h"
#include "plugin/transport/choose.h"
#include "plugin/transport/handle.h"

namespace prunex::nccl {
namespace {

// NCCL asks again and again; one that nobody has asked for in so long was given up. (Tables without
// finalize cannot say so.)
constexpr int64_t kForgottenAfterNs = 60'000'000'000;

// A peer listens before its handle is anywhere: whoever refuses is no longer there, or starting
// anew.
constexpr double kRefusedS = 20;

struct Making {
  const Context* context = nullptr;
  int64_t asked_ns = 0;
  Link link;
  std::unique_ptr<transport::Connecting> connecting;
};

// Keyed by the caller's buffer and what is in it, not kept inside of it: whatever a handle holds
// came over a network and is no pointer.
struct InTheMaking {
  using Key = std::pair<const void*, std::array<std::byte, kHandleBytes>>;
  std::mutex mutex;
  std::map<Key, std::shared_ptr<Making>> all;
};

InTheMaking& in_the_making() {
  static InTheMaking* const one = new InTheMaking;  // outlives exit handlers
  return *one;
}

uint8_t hello_transport(const transport::Transport& transport) {
  return static_cast<uint8_t>(transport.name() == "verbs" ? transport::HandleKind::verbs
                                                          : transport::HandleKind::socket);
}

// Behind an error of two ends that chose different networks.
std::string other_network(const Settings& settings) {
  const bool rdma = !settings.devices.empty() && settings.devices.front().rdma;
  return strf(
      "; this node uses %s: `prunex info` says on each node why; PRUNEX_TRANSPORT=socket on "
      "all nodes goes round it",
      rdma ? "RDMA, the other could not" : "TCP, the other RDMA");
}

Result<std::shared_ptr<Making>> begin(const std::shared_ptr<Context>& context, int device,
                                      std::span<const std::byte, kHandleBytes> handle) {
  auto peer = read_handle(handle);
  if (!peer) {
    return tl::unexpected(peer.error());
  }
  auto opened = open_device(*context, device);
  if (!opened) {
    return tl::unexpected(opened.error());
  }
  NetHello hello;
  hello.transport = hello_transport(**opened);
  hello.tuner = context->settings->config.tuner;
  auto connecting = (*opened)->connect(*peer, encode(hello), context->settings->config.timeout_s);
  if (!connecting) {
    Error e = connecting.error();
    if (e.code == Code::mismatch) {
      e.text += other_network(*context->settings);
    }
    return tl::unexpected(std::move(e));
  }
  auto making = std::make_shared<Making>();
  making->context = context.get();
  making->asked_ns = now_ns();
  making->link.context = context;
  making->link.transport = std::move(*opened);
  making->connecting = std::move(*connecting);
  return making;
}

}  // namespace

namespace {

Result<std::unique_ptr<transport::Transport>> open_afresh(const Settings& settings,
                                                          const Device& device, int traffic_class) {
  transport::SocketOptions options;
  options.address = device.address;
  options.streams = settings.config.streams;
  options.stall_s = settings.config.timeout_s;
  options.refused_s = kRefusedS;
  options.pacing_rate = settings.config.pacing_bit_s / 8;
  auto ports = parse_port_range(settings.config.port_range);
  if (!ports) {
    return tl::unexpected(ports.error());
  }
  options.ports = *ports;
  if (!device.rdma) {
    return transport::open_socket_transport(options);
  }
  auto verbs = transport::verbs_options(settings.config.ib, options, device.rail, traffic_class);
  verbs.device_memory = settings.config.staged_gpu;
  return transport::open_verbs_transport(verbs);
}

}  // namespace

Result<std::shared_ptr<transport::Transport>> open_device(const Context& context, int device) {
  const Settings& settings = *context.settings;
  if (device < 0 || static_cast<size_t>(device) >= settings.devices.size()) {
    return fail(Code::invalid_argument,
                strf("device %d of %zu: the first is 0", device, settings.devices.size()));
  }
  const std::lock_guard lock(settings.open->mutex);
  auto& place = settings.open->all[{device, context.traffic_class, forks()}];
  if (auto open = place.lock()) {
    return open;
  }
  auto opened =
      open_afresh(settings, settings.devices[static_cast<size_t>(device)], context.traffic_class);
  if (!opened) {
    return tl::unexpected(opened.error());
  }
  std::shared_ptr<transport::Transport> out = *std::move(opened);
  place = out;
  return out;
}

Result<std::unique_ptr<ListenComm>> listen(std::shared_ptr<Context> context, int device,
                                           std::span<std::byte, kHandleBytes> handle,
                                           HandleFor use) {
  auto opened = open_device(*context, device);
  if (!opened) {
    return tl::unexpected(opened.error());
  }
  auto listener = (*opened)->listen();
  if (!listener) {
    return tl::unexpected(listener.error());
  }
  if (auto written = write_handle((*listener)->handle(), handle, use); !written) {
    return tl::unexpected(written.error());
  }
  auto out = std::make_unique<ListenComm>();
  out->context = std::move(context);
  out->transport = std::move(*opened);
  out->listener = std::move(*listener);
  return out;
}

Result<std::unique_ptr<RecvComm>> accept(ListenComm& listen) {
  auto connection = listen.listener->accept();
  if (!connection) {
    return tl::unexpected(connection.error());
  }
  if (*connection == nullptr) {
    return nullptr;
  }
  if (auto hello = decode_net_hello((*connection)->hello(), listen.context->settings->config.tuner);
      !hello) {
    return tl::unexpected(hello.error());
  }
  return std::make_unique<RecvComm>(Link{listen.context, listen.transport, std::move(*connection)});
}

Result<std::unique_ptr<SendComm>> connect(const std::shared_ptr<Context>& context, int device,
                                          const void* handle) {
  InTheMaking::Key key{handle, {}};
  std::memcpy(key.second.data(), handle, kHandleBytes);
  InTheMaking& makings = in_the_making();
  std::shared_ptr<Making> making;
  {
    const int64_t now = now_ns();
    const std::lock_guard lock(makings.mutex);
    if (const auto at = makings.all.find(key); at != makings.all.end()) {
      making = at->second;
      making->asked_ns = now;
    }
    std::erase_if(makings.all,
                  [&](const auto& one) { return now - one.second->asked_ns > kForgottenAfterNs; });
  }
  const auto forget = [&] {
    const std::lock_guard lock(makings.mutex);
    makings.all.erase(key);
  };
  if (making == nullptr) {
    auto begun = begin(context, device, key.second);
    if (!begun) {
      return tl::unexpected(begun.error());
    }
    making = std::move(*begun);
    const std::lock_guard lock(makings.mutex);
    makings.all[key] = making;
  }
  auto connection = making->connecting->step();
  if (!connection) {
    forget();
    return tl::unexpected(connection.error());
  }
  if (*connection == nullptr) {
    return nullptr;
  }
  forget();
  making->link.connection = std::move(*connection);
  making->connecting.reset();
  return std::make_unique<SendComm>(std::move(making->link));
}

void forget_connecting(const Context* context) {
  InTheMaking& makings = in_the_making();
  const std::lock_guard lock(makings.mutex);
  std::erase_if(makings.all, [&](const auto& one) { return one.second->context == context; });
}

}  // namespace prunex::nccl

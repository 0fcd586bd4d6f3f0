// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/device.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "plugin/base/log.h"
#include "plugin/base/sockets.h"
#include "plugin/transport/verbs/ports.h"

namespace prunex::transport::verbs {

Result<std::shared_ptr<Device>> Device::open(const Api& api, const PortInfo& port,
                                             const VerbsOptions& options) {
  std::shared_ptr<Device> d(new Device(api, port, options));
  auto gid = choose_gid(port, options.gid_index, options.gid_wishes);
  if (!gid) {
    return tl::unexpected<Error>(gid.error());
  }
  d->gid_ = *gid;
  d->gids_ = port.gids;
  auto pkey = choose_pkey(port, options.pkey);
  if (!pkey) {
    return tl::unexpected<Error>(pkey.error());
  }
  d->pkey_index_ = *pkey;
  int error = 0;
  auto listed = for_each_device(api, [&](ibv_device* device) {
    if (d->context_ == nullptr && port.device == api.get_device_name(device)) {
      d->context_ = api.open_device(device);
      error = d->context_ == nullptr ? errno : 0;
    }
  });
  if (!listed) {
    return tl::unexpected<Error>(listed.error());
  }
  if (d->context_ != nullptr) {
    d->domain_ = api.alloc_pd(d->context_);
    error = d->domain_ == nullptr ? errno : 0;
  }
  if (d->domain_ == nullptr) {
    return fail(Code::system,
                strf("%s cannot be opened: %s", port.name().c_str(), errno_text(error).c_str()),
                error);
  }
  const int flags = ::fcntl(d->context_->async_fd, F_GETFL);
  (void)::fcntl(d->context_->async_fd, F_SETFL, flags | O_NONBLOCK);
  return d;
}

Device::~Device() {
  if (domain_ != nullptr) {
    api_.dealloc_pd(domain_);
  }
  if (context_ != nullptr) {
    api_.close_device(context_);
  }
}

// What concerns one connection: it is told when it asks.
void Device::note_failed(const ibv_async_event& event) {
  Failed failed;
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      failed.queue = event.element.cq;
      failed.why = "lost completions: their queue was full";
      break;
    case IBV_EVENT_QP_FATAL:
      failed.pair = event.element.qp->qp_num;
      failed.why = "reports a fatal error of this connection's queue pair: see dmesg";
      break;
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      failed.pair = event.element.qp->qp_num;
      failed.why =
          "refused what the peer asked of this connection's queue pair: was a buffer freed "
          "or unregistered during a transfer?";
      break;
    default:
      return;
  }
  failed.why = strf("%s %s", port_.name().c_str(), failed.why.c_str());
  PRUNEX_LOG(info, "%s", failed.why.c_str());
  failed_.push_back(std::move(failed));
}

void Device::welcome_pair(uint32_t number) {
  const std::lock_guard lock(mutex_);
  take_events();
  std::erase_if(failed_, [&](const Failed& f) { return f.queue == nullptr && f.pair == number; });
}

void Device::welcome_queue(const ibv_cq* queue) {
  const std::lock_guard lock(mutex_);
  take_events();
  std::erase_if(failed_, [&](const Failed& f) { return f.queue == queue; });
}

Device::Partition Device::partition() {
  const std::lock_guard lock(mutex_);
  take_events();
  return {pkey_index_, pkey_changes_};
}

void Device::take_events() {
  ibv_async_event event;
  bool moved = false, pkeys = false;
  errno = 0;
  while (api_.get_async_event(context_, &event) == 0) {
    const bool ours = event.element.port_num == port_.port;  // of events that concern a port
    switch (event.event_type) {
      case IBV_EVENT_PORT_ERR:
        down_ = down_ || ours;
        break;
      case IBV_EVENT_PORT_ACTIVE:
        down_ = down_ && !ours;
        break;
      case IBV_EVENT_GID_CHANGE:
        moved = moved || ours;
        break;
      case IBV_EVENT_PKEY_CHANGE:
        pkeys = pkeys || ours;
        break;
      case IBV_EVENT_DEVICE_FATAL:
        fatal_ = true;
        break;
      default:
        note_failed(event);
        break;
    }
    api_.ack_async_event(&event);
  }
  fatal_ = fatal_ || errno == EIO || errno == ENODEV;  // it was taken out
  if (moved) {
    look_at_gids();
  }
  if (pkeys) {
    look_at_pkeys();
  }
}

void Device::look_at_gids() {
  ibv_port_attr attr;
  if (port_of(api_, context_, static_cast<uint8_t>(port_.port), &attr) != 0) {
    return;
  }
  PortInfo now = port_;
  now.gids.clear();
  read_gids(api_, context_, attr.gid_tbl_len, &now);
  gids_ = now.gids;
  if (auto chosen = choose_gid(now, options_.gid_index, options_.gid_wishes)) {
    gid_ = *chosen;
  }
}

// A subnet manager rewrites the table in place: queue pairs stand for an index of it.
void Device::look_at_pkeys() {
  PortInfo now = port_;
  read_pkeys(api_, context_, static_cast<int>(port_.pkeys.size()), &now);
  const auto key_in = [this](const PortInfo& port) {
    return pkey_index_ < port.pkeys.size() ? unsigned{port.pkeys[pkey_index_]} : 0U;
  };
  const unsigned before = key_in(port_), after = key_in(now);
  port_.pkeys = now.pkeys;
  if (before != after) {
    ++pkey_changes_;
    pkey_trouble_ = strf(
        "partition key %u of %s was 0x%04x and is now 0x%04x: the subnet manager has changed its "
        "table; connect again",
        unsigned{pkey_index_}, port_.name().c_str(), before, after);
    PRUNEX_LOG(info, "%s", pkey_trouble_.c_str());
  }
  if (auto chosen = choose_pkey(now, options_.pkey)) {
    pkey_index_ = *chosen;
  }
}

Device::Now Device::now() {
  const std::lock_guard lock(mutex_);
  take_events();
  Now now{gid_, port_.lid, port_.mtu};
  ibv_port_attr attr;
  if (port_of(api_, context_, static_cast<uint8_t>(port_.port), &attr) == 0) {
    now.lid = attr.lid;
    now.mtu = mtu_bytes(attr.active_mtu);
  }
  return now;
}

std::string Device::trouble(const Used& what) {
  const std::lock_guard lock(mutex_);
  take_events();
  const Gid& used = what.gid;
  if (fatal_) {
    return strf("the device %s has failed: see dmesg, and reset it", port_.device.c_str());
  }
  if (down_) {
    return strf("the port %s has gone down: look at its cable, switch and driver",
                port_.name().c_str());
  }
  if (what.pkey_changes != pkey_changes_) {
    return pkey_trouble_;
  }
  for (const Failed& f : failed_) {
    if (f.queue != nullptr
            ? f.queue == what.queue
            : std::find(what.pairs.begin(), what.pairs.end(), f.pair) != what.pairs.end()) {
      return f.why;
    }
  }
  const auto now =
      std::find_if(gids_.begin(), gids_.end(), [&](const Gid& g) { return g.index == used.index; });
  const bool same = now == gids_.end() ? used.bytes == GidBytes{}
                                       : now->bytes == used.bytes && now->type == used.type;
  if (same) {
    return {};
  }
  return strf(
      "GID %d of %s was %s (%s) and is now %s: the address of its network interface has "
      "changed; connect again",
      used.index, port_.name().c_str(), to_text(used.bytes).c_str(), to_text(used.type),
      now == gids_.end()
          ? "empty"
          : strf("%s (%s)", to_text(now->bytes).c_str(), to_text(now->type)).c_str());
}

}  // namespace prunex::transport::verbs

// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/device.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "plugin/base/sockets.h"

namespace prunex::transport::verbs {
namespace {

const char* state_name(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "DOWN";
    case IBV_PORT_INIT:
      return "INIT (no subnet manager has configured it)";
    case IBV_PORT_ARMED:
      return "ARMED";
    case IBV_PORT_ACTIVE:
    case IBV_PORT_ACTIVE_DEFER:
      return "ACTIVE";
    default:
      return "unknown";
  }
}

int mtu_bytes(ibv_mtu mtu) { return 128 << std::clamp<int>(mtu, IBV_MTU_256, IBV_MTU_4096); }

std::string pci_of(const ibv_device& device) {
  // A virtual device has no such link.
  char path[PATH_MAX];
  const std::string link = std::string(device.ibdev_path) + "/device";
  if (device.ibdev_path[0] == '\0' || ::realpath(link.c_str(), path) == nullptr) {
    return {};
  }
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

GidType type_of(unsigned type) {
  return type == IBV_GID_TYPE_IB        ? GidType::infiniband
         : type == IBV_GID_TYPE_ROCE_V1 ? GidType::roce_v1
         : type == IBV_GID_TYPE_ROCE_V2 ? GidType::roce_v2
                                        : GidType::unknown;
}

void read_gids(const Api& api, ibv_context* context, int entries, PortInfo* out) {
  for (int i = 0; i < entries; ++i) {
    Gid gid;
    gid.index = i;
    ibv_gid_entry entry{};
    if (api.query_gid_ex != nullptr) {
      if (api.query_gid_ex(context, static_cast<uint32_t>(out->port), static_cast<uint32_t>(i),
                           &entry, 0, sizeof entry) != 0) {
        continue;
      }
      gid.type = type_of(entry.gid_type);
    } else if (api.query_gid(context, static_cast<uint8_t>(out->port), i, &entry.gid) != 0) {
      continue;
    }
    std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
    if (gid.bytes != GidBytes{}) {
      out->gids.push_back(gid);
    }
  }
}

PortInfo describe_port(const Api& api, ibv_context* context, PortInfo info) {
  ibv_port_attr attr;
  const int error = port_of(api, context, static_cast<uint8_t>(info.port), &attr);
  if (error != 0) {
    info.trouble = "its port cannot be asked: " + errno_text(error);
    return info;
  }
  if (attr.state != IBV_PORT_ACTIVE) {
    info.trouble = strf("its state is %s", state_name(attr.state));
  }
  // Not by the LID: an Ethernet port may have one.
  info.link = attr.link_layer == IBV_LINK_LAYER_ETHERNET ? Link::ethernet : Link::infiniband;
  info.lid = attr.lid;
  info.mtu = mtu_bytes(attr.active_mtu);
  info.max_message = attr.max_msg_sz;
  info.grh_required = (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
  read_gids(api, context, attr.gid_tbl_len, &info);
  for (int i = 0; i < attr.pkey_tbl_len; ++i) {
    __be16 key = 0;
    const bool got = api.query_pkey(context, static_cast<uint8_t>(info.port), i, &key) == 0;
    info.pkeys.push_back(got ? __builtin_bswap16(key) : uint16_t{0});
  }
  return info;
}

void describe_device(const Api& api, ibv_device* device, std::vector<PortInfo>* out) {
  PortInfo info;
  info.device = api.get_device_name(device);
  info.pci = pci_of(*device);
  ibv_context* context = api.open_device(device);
  if (context == nullptr) {
    info.trouble = "it cannot be opened: " + errno_text(errno) +
                   "; is /dev/infiniband there, and may this user open it?";
    out->push_back(std::move(info));
    return;
  }
  ibv_device_attr attr{};
  const int error = api.query_device(context, &attr);
  if (error != 0) {
    info.trouble = "it cannot be asked: " + errno_text(error);
    out->push_back(std::move(info));
  }
  info.max_queue_pairs = attr.max_qp;
  info.max_work_requests = attr.max_qp_wr;
  info.max_completions = attr.max_cqe;
  for (int p = 1; error == 0 && p <= attr.phys_port_cnt; ++p) {
    info.port = p;
    out->push_back(describe_port(api, context, info));
  }
  api.close_device(context);
}

template <class Visit>
Result<> for_each_device(const Api& api, Visit visit) {
  int n = 0;
  errno = 0;
  ibv_device** list = api.get_device_list(&n);
  if (list == nullptr) {
    return fail(
        Code::unsupported,
        strf("RDMA is not used: the devices cannot be listed: %s", errno_text(errno).c_str()),
        errno);
  }
  for (int i = 0; i < n; ++i) {
    visit(list[i]);
  }
  api.free_device_list(list);
  return {};
}

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited"
                                : strf("%llu", static_cast<unsigned long long>(limit));
}

}  // namespace

Result<std::vector<PortInfo>> list_ports(const Api& api) {
  std::vector<PortInfo> out;
  if (auto r = for_each_device(api, [&](ibv_device* d) { describe_device(api, d, &out); }); !r) {
    return tl::unexpected<Error>(r.error());
  }
  return out;
}

Result<std::shared_ptr<Device>> Device::open(const Api& api, const PortInfo& port,
                                             const VerbsOptions& options) {
  std::shared_ptr<Device> d(new Device(api, port, options));
  auto gid = choose_gid(port, options.gid_index);
  if (!gid) {
    return tl::unexpected<Error>(gid.error());
  }
  d->gid_ = *gid;
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

bool Device::look_at_events() {
  ibv_async_event event;
  while (api_.get_async_event(context_, &event) == 0) {
    const bool ours = event.element.port_num == port_.port;
    if (ours && event.event_type == IBV_EVENT_PORT_ERR) {
      down_ = true;
    } else if (ours && event.event_type == IBV_EVENT_PORT_ACTIVE) {
      down_ = false;
    } else if (event.event_type == IBV_EVENT_DEVICE_FATAL) {
      down_ = true;
    }
    api_.ack_async_event(&event);
  }
  return !down_;
}

Result<std::shared_ptr<Memory>> Memory::open(std::shared_ptr<Device> device, void* data,
                                             size_t bytes) {
  errno = 0;
  ibv_mr* region = device->api().reg_mr(device->domain(), data, bytes,
                                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (region != nullptr) {
    return std::shared_ptr<Memory>(new Memory(std::move(device), region));
  }
  const int error = errno;
  std::string text = strf("%zu bytes at %p cannot be registered with %s: %s", bytes, data,
                          device->port().name().c_str(), errno_text(error).c_str());
  if (error == ENOMEM || error == EAGAIN || error == EPERM) {
    rlimit limit{};
    (void)::getrlimit(RLIMIT_MEMLOCK, &limit);
    text += strf(
        "; this process may lock %s bytes of memory (hard limit %s): raise it in the launcher "
        "(ulimit -l unlimited; LimitMEMLOCK=infinity for a service), or give the container "
        "CAP_IPC_LOCK",
        limit_text(limit.rlim_cur).c_str(), limit_text(limit.rlim_max).c_str());
  }
  return fail(Code::memory, std::move(text), error);
}

bool Memory::holds(const void* data, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(region_->addr);
  const auto at = reinterpret_cast<uintptr_t>(data);
  return at >= begin && at - begin <= region_->length && bytes <= region_->length - (at - begin);
}

}  // namespace prunex::transport::verbs

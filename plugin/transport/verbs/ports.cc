// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/ports.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "plugin/base/fd.h"
#include "plugin/base/sockets.h"

namespace prunex::transport::verbs {
namespace {

constexpr int kMostGids = 256;  // an address handle has 8 bits for the index

// Why nothing of ours runs on such a device; nullptr: it is InfiniBand or RoCE.
const char* foreign_kind(ibv_transport_type type) {
  switch (type) {
    case IBV_TRANSPORT_IB:
      return nullptr;
    case IBV_TRANSPORT_IWARP:
      return "it is iWARP; InfiniBand or RoCE is needed (irdma devices may be switched to RoCE)";
    default:
      return "it is neither InfiniBand nor RoCE and has no reliable connections (Amazon's EFA is "
             "such a device)";
  }
}

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

// How many bits of an interface's address are its network's; 0: no interface has that address.
int network_bits_of(const GidBytes& gid) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return 0;
  }
  int bits = 0;
  for (const ifaddrs* i = list; i != nullptr && bits == 0; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_netmask == nullptr) {
      continue;
    }
    GidBytes own{}, mask{};
    mask.fill(0xFF);
    if (i->ifa_addr->sa_family == AF_INET) {
      own[10] = own[11] = 0xFF;
      std::memcpy(&own[12], &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, 4);
      std::memcpy(&mask[12], &reinterpret_cast<const sockaddr_in*>(i->ifa_netmask)->sin_addr, 4);
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(own.data(), &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr, 16);
      std::memcpy(mask.data(), &reinterpret_cast<const sockaddr_in6*>(i->ifa_netmask)->sin6_addr,
                  16);
    }
    for (const uint8_t byte : mask) {
      bits += own == gid ? std::popcount(byte) : 0;
    }
  }
  ::freeifaddrs(list);
  return bits;
}

// For a library without query_gid_ex (rdma-core before 32): what the kernel says.
GidType type_in_sysfs(const ibv_device& device, int port, int index) {
  const std::string path = strf("%s/ports/%d/gid_attrs/types/%d", device.ibdev_path, port, index);
  char text[32] = "";
  if (const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)); fd) {
    const ssize_t n = ::read(fd.get(), text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
  }
  const std::string_view said(text);
  return said.starts_with("RoCE v2")       ? GidType::roce_v2
         : !said.starts_with("IB/RoCE v1") ? GidType::unknown
                                           : GidType::roce_v1;
}

uint32_t speed_of(const ibv_port_attr& attr) {
  struct Lane {
    unsigned code;
    double speed;  // Gb/s
  };
  constexpr Lane kLanes[] = {{1, 2.5}, {2, 5},   {4, 10},  {8, 10},
                             {16, 14}, {32, 25}, {64, 50}, {128, 100}};
  constexpr Lane kWidths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
  const auto look_up = [](const auto& table, unsigned code) {
    const auto found = std::find_if(std::begin(table), std::end(table),
                                    [code](const Lane& l) { return l.code == code; });
    return found == std::end(table) ? 0 : found->speed;
  };
  return static_cast<uint32_t>(look_up(kLanes, attr.active_speed) *
                               look_up(kWidths, attr.active_width));
}

// The kernel's file of the device, which the library opens, and what keeps this process from it.
std::string not_opened(const ibv_device& device, int error) {
  const std::string file = std::string("/dev/infiniband/") + device.dev_name;
  std::string text = strf("it cannot be opened: %s: %s", file.c_str(), errno_text(error).c_str());
  struct stat about {};
  if (::stat(file.c_str(), &about) != 0) {
    return text + strf(
                      "; the file cannot be seen (%s): give the container /dev/infiniband "
                      "(--device=%s), or load ib_uverbs",
                      errno_text(errno).c_str(), file.c_str());
  }
  if (error == EACCES || error == EPERM) {
    text += strf(
        "; its mode is %03o, of user %u and group %u, and this process has user %u: "
        "chmod 666 %s, or let the group in (udev: MODE=\"0666\")",
        about.st_mode & 0777U, about.st_uid, about.st_gid, ::geteuid(), file.c_str());
  }
  return text;
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
  info.speed = speed_of(attr);
  info.max_message = attr.max_msg_sz;
  info.grh_required = (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
  read_gids(api, context, attr.gid_tbl_len, &info);
  read_pkeys(api, context, attr.pkey_tbl_len, &info);
  return info;
}

void describe_device(const Api& api, ibv_device* device, std::vector<PortInfo>* out) {
  PortInfo info;
  info.device = api.get_device_name(device);
  info.pci = pci_of(*device);
  if (const char* const foreign = foreign_kind(device->transport_type); foreign != nullptr) {
    info.trouble = foreign;
    out->push_back(std::move(info));
    return;
  }
  ibv_context* context = api.open_device(device);
  if (context == nullptr) {
    info.trouble = not_opened(*device, errno);
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

// libibverbs answers "not implemented" where the kernel has no RDMA at all.
Error no_list(int error) {
  return {
      Code::unsupported,
      error == ENOSYS
          ? std::string("RDMA is not used: this kernel offers no RDMA devices "
                        "(/sys/class/infiniband_verbs is missing): load the device's driver "
                        "and ib_uverbs")
          : strf("RDMA is not used: the devices cannot be listed: %s", errno_text(error).c_str()),
      error};
}

}  // namespace

int mtu_bytes(ibv_mtu mtu) { return 128 << std::clamp<int>(mtu, IBV_MTU_256, IBV_MTU_4096); }

void read_gids(const Api& api, ibv_context* context, int entries, PortInfo* out) {
  entries = std::min(entries, kMostGids);
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
      if (api.query_gid_ex == nullptr && out->link == Link::ethernet) {
        gid.type = type_in_sysfs(*context->device, out->port, i);
      }
      gid.network_bits = out->link == Link::ethernet ? network_bits_of(gid.bytes) : 0;
      out->gids.push_back(gid);
    }
  }
}

void read_pkeys(const Api& api, ibv_context* context, int entries, PortInfo* out) {
  out->pkeys.clear();
  for (int i = 0; i < entries; ++i) {
    __be16 key = 0;
    const bool got = api.query_pkey(context, static_cast<uint8_t>(out->port), i, &key) == 0;
    out->pkeys.push_back(got ? __builtin_bswap16(key) : uint16_t{0});
  }
}

Result<> for_each_device(const Api& api, const std::function<void(ibv_device*)>& visit) {
  int n = 0;
  errno = 0;
  ibv_device** list = api.get_device_list(&n);
  if (list == nullptr) {
    return tl::unexpected(no_list(errno));
  }
  for (int i = 0; i < n; ++i) {
    visit(list[i]);
  }
  api.free_device_list(list);
  return {};
}

Result<std::vector<PortInfo>> list_ports(const Api& api) {
  std::vector<PortInfo> out;
  if (auto r = for_each_device(api, [&](ibv_device* d) { describe_device(api, d, &out); }); !r) {
    return tl::unexpected<Error>(r.error());
  }
  return out;
}

}  // namespace prunex::transport::verbs

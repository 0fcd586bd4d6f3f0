// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/verbs/devices.h"

#include <arpa/inet.h>

#include <algorithm>
#include <tuple>

#include "plugin/base/address.h"
#include "plugin/base/hca_filter.h"

namespace prunex::transport::verbs {
namespace {

constexpr uint16_t kKeyBits = 0x7FFF;  // the top bit says full or limited membership

bool matches(const HcaFilter& filter, const HcaFilter::Item& item, const PortInfo& port) {
  const bool name = filter.exact ? port.device == item.device
                                 : port.device.compare(0, item.device.size(), item.device) == 0;
  return name && (item.port < 0 || item.port == port.port);
}

std::string names_of(std::span<const PortInfo> have) {
  std::string out;
  for (const PortInfo& p : have) {
    out += (out.empty() ? "" : ", ") + p.name() + (p.trouble.empty() ? "" : " (" + p.trouble + ")");
  }
  return out.empty() ? "none" : out;
}

bool is_link_local(const GidBytes& gid) { return gid[0] == 0xFE && (gid[1] & 0xC0) == 0x80; }
bool is_ipv4(const GidBytes& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t b) { return b == 0; }) &&
         gid[10] == 0xFF && gid[11] == 0xFF;
}
bool is_link_local_v4(const GidBytes& gid) {
  return is_ipv4(gid) && gid[12] == 169 && gid[13] == 254;
}

}  // namespace

Result<Selection> select_ports(std::span<const PortInfo> have, std::string_view text) {
  auto filter = parse_hca_filter(text);
  if (!filter) {
    return tl::unexpected<Error>(filter.error());
  }
  Selection out;
  std::vector<bool> used(filter->items.size());
  for (size_t i = 0; i < have.size(); ++i) {
    bool named = filter->items.empty();
    for (size_t k = 0; k < filter->items.size(); ++k) {
      if (matches(*filter, filter->items[k], have[i])) {
        used[k] = named = true;
      }
    }
    if (named == filter->exclude) {
      continue;
    }
    if (have[i].trouble.empty()) {
      out.ports.push_back(i);
    } else {
      out.notes.push_back(
          strf("%s is not used: %s", have[i].name().c_str(), have[i].trouble.c_str()));
    }
  }
  for (size_t k = 0; k < used.size(); ++k) {
    if (!used[k]) {
      const HcaFilter::Item& item = filter->items[k];
      out.notes.push_back(
          strf("PRUNEX_IB_HCA (or NCCL_IB_HCA): \"%s%s\" matches no device; there are: %s",
               item.device.c_str(), item.port < 0 ? "" : strf(":%d", item.port).c_str(),
               names_of(have).c_str()));
    }
  }
  if (out.ports.empty()) {
    return fail(Code::unsupported,
                strf("no usable RDMA port%s; there are: %s",
                     text.empty() ? ""
                                  : strf(" with PRUNEX_IB_HCA (or NCCL_IB_HCA) \"%.*s\"",
                                         static_cast<int>(text.size()), text.data())
                                        .c_str(),
                     names_of(have).c_str()));
  }
  return out;
}

std::string to_text(const GidBytes& gid) {
  char text[INET6_ADDRSTRLEN] = "?";
  (void)inet_ntop(AF_INET6, gid.data(), text, sizeof text);
  return text;
}

const char* to_text(GidType type) {
  constexpr const char* kNames[] = {"type unknown", "InfiniBand", "RoCE v1", "RoCE v2"};
  return kNames[static_cast<size_t>(type)];
}

namespace {

std::string gids_of(const PortInfo& port) {
  std::string out;
  for (const Gid& g : port.gids) {
    out += strf("%s%d (%s, %s)", out.empty() ? "" : ", ", g.index, to_text(g.bytes).c_str(),
                to_text(g.type));
  }
  return out.empty() ? "none" : out;
}

}  // namespace

Result<Gid> choose_gid(const PortInfo& port, int index, const GidWishes& wishes) {
  if (index >= 0) {
    const auto found = std::find_if(port.gids.begin(), port.gids.end(),
                                    [index](const Gid& g) { return g.index == index; });
    if (found != port.gids.end()) {
      return *found;
    }
    return fail(
        Code::config,
        strf("PRUNEX_IB_GID_INDEX=%d (or NCCL_IB_GID_INDEX): %s has no GID there; it has: %s",
             index, port.name().c_str(), gids_of(port).c_str()));
  }
  if (port.gids.empty()) {
    if (port.link == Link::infiniband) {
      return Gid{};  // reached by its LID
    }
    return fail(Code::unsupported, strf("%s has no GID: give its network interface an IP address",
                                        port.name().c_str()));
  }
  if (port.link == Link::infiniband) {
    return port.gids.front();
  }
  const auto network = parse_address_range(wishes.range);
  std::vector<Gid> allowed = port.gids;
  std::erase_if(allowed, [&](const Gid& g) { return network && !network->holds(g.bytes); });
  if (allowed.empty()) {
    return fail(Code::config,
                strf("PRUNEX_IB_ADDR_RANGE=%s (or NCCL_IB_ADDR_RANGE): %s has no GID in that "
                     "network; it has: %s",
                     wishes.range.c_str(), port.name().c_str(), gids_of(port).c_str()));
  }
  const GidType wanted = wishes.version == 1 ? GidType::roce_v1 : GidType::roce_v2;
  const auto rank = [&](const Gid& g) {
    const bool of_family =
        wishes.family == Family::any || is_ipv4(g.bytes) == (wishes.family == Family::v4);
    return std::tuple(of_family ? 0 : 1,
                      g.type == wanted             ? 0
                      : g.type == GidType::unknown ? 1
                                                   : 2,
                      is_link_local(g.bytes) || is_link_local_v4(g.bytes) ? 1 : 0,
                      is_ipv4(g.bytes) ? 0 : 1, g.index);
  };
  return *std::min_element(allowed.begin(), allowed.end(),
                           [&](const Gid& a, const Gid& b) { return rank(a) < rank(b); });
}

Result<uint16_t> choose_pkey(const PortInfo& port, int wanted) {
  const auto& table = port.pkeys;
  const auto valid = [&](size_t i) { return (table[i] & kKeyBits) != 0; };
  if (wanted >= 0 && static_cast<size_t>(wanted) < table.size() &&
      valid(static_cast<size_t>(wanted))) {
    return static_cast<uint16_t>(wanted);
  }
  for (size_t i = 0; i < table.size(); ++i) {
    if (valid(i) && (wanted < 0 || table[i] == wanted)) {
      return static_cast<uint16_t>(i);
    }
  }
  std::string filled;
  for (size_t i = 0; i < table.size(); ++i) {
    if (valid(i)) {
      filled += strf("%s%zu: 0x%04x", filled.empty() ? "" : ", ", i, unsigned{table[i]});
    }
  }
  if (wanted >= 0) {
    return fail(Code::config,
                strf("PRUNEX_IB_PKEY=0x%x (or NCCL_IB_PKEY) is neither a filled index nor a key "
                     "of %s; it has: %s",
                     static_cast<unsigned>(wanted), port.name().c_str(),
                     filled.empty() ? "none" : filled.c_str()));
  }
  if (port.link == Link::ethernet) {
    return uint16_t{0};
  }
  return fail(Code::unsupported,
              strf("%s is in no partition: its table of partition keys is empty; is the subnet "
                   "manager running?",
                   port.name().c_str()));
}

bool needs_global_route(const PortInfo& port, const GidBytes& own, const GidBytes& peer) {
  return port.link == Link::ethernet || port.grh_required ||
         !std::equal(own.begin(), own.begin() + 8, peer.begin());
}

}  // namespace prunex::transport::verbs

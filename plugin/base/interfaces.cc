// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "plugin/base/fd.h"
#include "plugin/base/sockets.h"

namespace prunex {
namespace {

bool is_docker(std::string_view name) { return name.starts_with("docker"); }

// Lower is better. Loopback addresses behind routed ones (some hosts carry their only routable
// address on lo), IPv4 before IPv6, link-local last.
int address_order(const SocketAddress& a) {
  return (a.is_link_local() ? 4 : 0) + (a.is_loopback() ? 2 : 0) + (a.family() == AF_INET6 ? 1 : 0);
}

void drop_link_local(std::vector<Interface>& list) {
  const std::vector<Interface> all = list;
  std::erase_if(list, [&](const Interface& one) {
    return one.address.is_link_local() && std::ranges::any_of(all, [&](const Interface& other) {
             return other.name == one.name && !other.address.is_link_local();
           });
  });
}

// Addresses of one interface stay together and are sorted; interfaces keep the kernel's order.
void sort_addresses(std::vector<Interface>& list) {
  std::vector<std::string> order;
  for (const Interface& one : list) {
    if (std::ranges::find(order, one.name) == order.end()) {
      order.push_back(one.name);
    }
  }
  const auto place = [&](const Interface& one) {
    return std::pair(std::ranges::find(order, one.name) - order.begin(),
                     address_order(one.address));
  };
  std::ranges::stable_sort(list, {}, place);
}

}  // namespace

Result<std::vector<Interface>> list_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    const int err = errno;
    return fail(Code::system, "cannot list network interfaces: " + errno_text(err), err);
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owned(list, freeifaddrs);
  std::vector<Interface> out;
  std::vector<Interface> bare;  // named, to be listed in messages if no address turns up
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    Interface entry;
    entry.name = one->ifa_name;
    entry.up = (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_RUNNING) != 0;
    entry.loopback = (one->ifa_flags & IFF_LOOPBACK) != 0;
    const int family = one->ifa_addr == nullptr ? AF_UNSPEC : one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) {
      bare.push_back(std::move(entry));
      continue;
    }
    entry.address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&entry.address.storage, one->ifa_addr, entry.address.length);
    entry.address.set_port(0);
    out.push_back(std::move(entry));
  }
  for (Interface& entry : bare) {
    const auto known = [&](const Interface& one) { return one.name == entry.name; };
    if (std::ranges::none_of(out, known)) {
      out.push_back(std::move(entry));
    }
  }
  return out;
}

std::string to_text(std::span<const Interface> list) {
  std::string out;
  for (const Interface& one : list) {
    out += out.empty() ? "" : ", ";
    out += one.name + "(" + (one.address ? host_text(one.address) : "no address");
    out += one.up ? ")" : ", down)";
  }
  return out.empty() ? "none" : out;
}

bool InterfaceFilter::matches(std::string_view name) const {
  if (names.empty()) {
    return true;
  }
  const bool listed = std::ranges::any_of(
      names, [&](const std::string& one) { return exact ? name == one : name.starts_with(one); });
  return listed != exclude;
}

Result<InterfaceFilter> parse_interface_filter(std::string_view text) {
  InterfaceFilter out;
  std::string_view rest = text;
  if (rest.starts_with('^')) {
    out.exclude = true;
    rest.remove_prefix(1);
  }
  if (rest.starts_with('=')) {
    out.exact = true;
    rest.remove_prefix(1);
  }
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view name = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    if (name.find_first_of("^= \t\n/") != std::string_view::npos || name.size() >= IFNAMSIZ) {
      return fail(Code::config, strf("'%.*s': '%.*s' is no interface name",
                                     int(std::min<size_t>(text.size(), 200)), text.data(),
                                     int(std::min<size_t>(name.size(), 60)), name.data()));
    }
    if (!name.empty()) {
      out.names.emplace_back(name);
    }
  }
  if (out.names.empty() && !text.empty()) {
    return fail(Code::config, strf("'%.*s' names no interface",
                                   int(std::min<size_t>(text.size(), 200)), text.data()));
  }
  return out;
}

Result<std::vector<Interface>> of_family(std::span<const Interface> have, Family family) {
  std::vector<Interface> out;
  for (const Interface& i : have) {
    if (family == Family::any ||
        i.address.family() == (family == Family::v4 ? AF_INET : AF_INET6)) {
      out.push_back(i);
    }
  }
  if (out.empty() && family != Family::any) {
    return fail(Code::config,
                strf("no interface has an %s address; have: %s. Unset PRUNEX_SOCKET_FAMILY and "
                     "NCCL_SOCKET_FAMILY to take either family",
                     family == Family::v4 ? "IPv4" : "IPv6", to_text(have).c_str()));
  }
  return out;
}

Result<std::vector<Interface>> choose_interfaces(std::span<const Interface> have,
                                                 std::string_view filter_text) {
  const auto filter = parse_interface_filter(filter_text);
  if (!filter) {
    return tl::unexpected(filter.error());
  }
  std::vector<Interface> out;
  for (const Interface& one : have) {
    if (one.up && one.address && filter->matches(one.name)) {
      out.push_back(one);
    }
  }
  if (filter->names.empty() || filter->exclude) {
    const auto keep_unless = [&](auto&& unwanted) {
      if (!std::ranges::all_of(out, unwanted)) {
        std::erase_if(out, unwanted);
      }
    };
    const bool docker_too = filter->exclude;  // an exclusion list says all that is to be excluded
    keep_unless(
        [&](const Interface& one) { return one.loopback || (!docker_too && is_docker(one.name)); });
    keep_unless([&](const Interface& one) { return !docker_too && is_docker(one.name); });
  }
  if (out.empty()) {
    return fail(Code::config,
                (filter_text.empty()
                     ? std::string("no network interface is up and has an address")
                     : strf("no usable interface matches '%.*s' (PRUNEX_SOCKET_IFNAME or "
                            "NCCL_SOCKET_IFNAME)",
                            int(std::min<size_t>(filter_text.size(), 200)), filter_text.data())) +
                    "; have: " + to_text(have));
  }
  drop_link_local(out);
  sort_addresses(out);
  return out;
}

Result<SocketAddress> route_source(const SocketAddress& peer) {
  const Fd fd(::socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress to = peer;
  if (to.port() == 0) {
    to.set_port(9);  // discard: a connected UDP socket sends nothing, but port 0 is refused by some
  }
  SocketAddress out;
  out.length = sizeof out.storage;
  if (!fd || ::connect(fd.get(), to.data(), to.length) != 0 ||
      ::getsockname(fd.get(), out.data(), &out.length) != 0) {
    const int err = errno;
    return fail(Code::system, "no route to " + host_text(peer) + ": " + errno_text(err), err);
  }
  out.set_port(0);
  return out;
}

void prefer_route(std::vector<Interface>& chosen, const SocketAddress& peer, RouteLookup lookup) {
  const auto source = lookup(peer);
  if (!source) {
    return;
  }
  const auto carrier = std::ranges::find_if(
      chosen, [&](const Interface& one) { return same_host(one.address, *source); });
  if (carrier == chosen.end()) {
    return;
  }
  const std::string name = carrier->name;
  std::rotate(chosen.begin(), carrier, carrier + 1);
  std::stable_partition(chosen.begin() + 1, chosen.end(),
                        [&](const Interface& one) { return one.name == name; });
}

Result<> check_families(std::span<const Interface> chosen, std::span<const SocketAddress> peers) {
  if (peers.empty()) {
    return {};
  }
  for (const SocketAddress& peer : peers) {
    const auto speaks = [&](const Interface& one) { return one.address.family() == peer.family(); };
    if (peer.is_loopback() || std::ranges::any_of(chosen, speaks)) {
      return {};
    }
  }
  const int theirs = peers.front().family();
  return fail(Code::config,
              strf("peer %s speaks only %s, but here there is only %s: %s; give both sides one "
                   "family",
                   to_text(peers.front()).c_str(), family_name(theirs),
                   family_name(theirs == AF_INET ? AF_INET6 : AF_INET), to_text(chosen).c_str()));
}

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
// Which of the machine's network addresses to use. The choice is a pure function of a list, so that
// tests bring their own machines; only list_interfaces and route_source ask the kernel.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/address.h"
#include "plugin/base/config.h"
#include "plugin/base/result.h"

namespace prunex {

struct Interface {  // one per name and address
  std::string name;
  SocketAddress address;  // port 0; may be empty: an interface without an IP address
  bool up = false;        // up and with carrier
  bool loopback = false;
};

[[nodiscard]] Result<std::vector<Interface>> list_interfaces();
[[nodiscard]] std::string to_text(
    std::span<const Interface> list);  // "lo(127.0.0.1), eno1(10.9.0.1)"

// NCCL_SOCKET_IFNAME's grammar: a comma list of name prefixes; a leading ^ excludes, = matches
// whole names, ^= excludes whole names.
struct InterfaceFilter {
  bool exclude = false, exact = false;
  std::vector<std::string> names;  // empty: no filter
  [[nodiscard]] bool matches(std::string_view name) const;
};
[[nodiscard]] Result<InterfaceFilter> parse_interface_filter(std::string_view text);

// Those with an address of the family. An error, naming the variables, when there is none.
[[nodiscard]] Result<std::vector<Interface>> of_family(std::span<const Interface> have,
                                                       Family family);

// The usable addresses, best first. Without a filter: everything but loopback and docker*, loopback
// only when nothing else is there. Named loopback gives its address outside 127/8 first. Per
// interface IPv4 comes before IPv6, and link-local addresses count only where there is nothing
// else. The error names the filter and lists what there is.
[[nodiscard]] Result<std::vector<Interface>> choose_interfaces(std::span<const Interface> have,
                                                               std::string_view filter);

// The local address from which the kernel would talk to `peer` (nothing is sent).
[[nodiscard]] Result<SocketAddress> route_source(const SocketAddress& peer);
using RouteLookup = Result<SocketAddress> (*)(const SocketAddress& peer);

// Moves the interface that carries the route to `peer` to the front; the others keep their order.
void prefer_route(std::vector<Interface>& chosen, const SocketAddress& peer,
                  RouteLookup lookup = route_source);

// An error naming both families when no chosen interface speaks the family of any of `peers`.
// Loopback peers are always reachable.
[[nodiscard]] Result<> check_families(std::span<const Interface> chosen,
                                      std::span<const SocketAddress> peers);

}  // namespace prunex

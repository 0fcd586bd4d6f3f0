// SPDX-License-Identifier: Apache-2.0
// Internet addresses and ports as values: parse, format, resolve. IPv4 and IPv6.
#pragma once
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/result.h"

namespace prunex {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;  // 0: no address

  [[nodiscard]] explicit operator bool() const { return length != 0; }
  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] uint16_t port() const;
  void set_port(uint16_t port);
  [[nodiscard]] bool is_loopback() const;    // 127/8, ::1, also when mapped into IPv6
  [[nodiscard]] bool is_link_local() const;  // 169.254/16, fe80::/10
  [[nodiscard]] const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] sockaddr* data() { return reinterpret_cast<sockaddr*>(&storage); }
};

// The same host, whatever the ports.
[[nodiscard]] bool same_host(const SocketAddress& a, const SocketAddress& b);
[[nodiscard]] std::string host_text(const SocketAddress& address);  // "10.0.0.1", "fd00::1"
[[nodiscard]] std::string to_text(const SocketAddress& address);    // "10.0.0.1:80", "[fd00::1]:80"
[[nodiscard]] const char* family_name(int family);                  // "IPv4", "IPv6"

struct HostPort {
  std::string host;  // name or number, IPv6 without its brackets
  uint16_t port = 0;
};

// "host:port" or "[IPv6]:port", port 1 to 65535. The error says what is wrong with which text.
[[nodiscard]] Result<HostPort> parse_host_port(std::string_view text);
[[nodiscard]] std::string to_text(const HostPort& at);

// A numeric address only, "10.0.0.1:80" or "[fd00::1]:80": never asks a name server.
[[nodiscard]] Result<SocketAddress> parse_address(std::string_view text);
// A bare numeric host.
[[nodiscard]] Result<SocketAddress> parse_host(std::string_view host, uint16_t port);

// The addresses whose first bits are these: "10.0.0.0/8", "fd00::/64", a host alone.
struct AddressRange {
  std::array<uint8_t, 16> bytes{};  // as IPv6; IPv4 is ::ffff:10.0.0.0
  int bits = 0;                     // of the 16 bytes
  [[nodiscard]] bool holds(std::span<const uint8_t, 16> address) const;
};
// Numbers only.
[[nodiscard]] Result<AddressRange> parse_address_range(std::string_view text);

// All stream addresses of a name, in the resolver's order; numbers are taken as they are. May block
// as long as the resolver does.
[[nodiscard]] Result<std::vector<SocketAddress>> resolve(const HostPort& at);

// Ports that may be bound, both ends included. lo = 0: any port the kernel gives.
struct PortRange {
  uint16_t lo = 0, hi = 0;
  [[nodiscard]] int count() const { return lo == 0 ? 0 : hi - lo + 1; }
};
[[nodiscard]] Result<PortRange> parse_port_range(std::string_view text);  // "lo-hi", "port", ""

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace prunex {
namespace {

// Copies in and out instead of casts: sockaddr_storage is bytes, and the optimiser may know it.
sockaddr_in as_v4(const SocketAddress& a) {
  sockaddr_in v4;
  std::memcpy(&v4, &a.storage, sizeof v4);
  return v4;
}
sockaddr_in6 as_v6(const SocketAddress& a) {
  sockaddr_in6 v6;
  std::memcpy(&v6, &a.storage, sizeof v6);
  return v6;
}

// The IPv4 address in host order, if there is one, also inside ::ffff:0:0/96.
bool ipv4_of(const SocketAddress& a, uint32_t* out) {
  if (a.family() == AF_INET) {
    *out = ntohl(as_v4(a).sin_addr.s_addr);
    return true;
  }
  const in6_addr v6 = as_v6(a).sin6_addr;
  if (a.family() == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6)) {
    uint32_t net;
    std::memcpy(&net, v6.s6_addr + 12, sizeof net);
    *out = ntohl(net);
    return true;
  }
  return false;
}

SocketAddress from_v6(sockaddr_in6 v6) {
  SocketAddress out;
  std::memcpy(&out.storage, &v6, sizeof v6);
  out.length = sizeof v6;
  return out;
}

bool parse_port(std::string_view text, uint16_t* out) {
  unsigned value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || value < 1 || value > 65535) {
    return false;
  }
  *out = static_cast<uint16_t>(value);
  return true;
}

std::string quoted(std::string_view text) {
  constexpr size_t kShown = 200;  // messages stay one line whatever came in
  std::string out = "'";
  out += text.substr(0, kShown);
  out += text.size() > kShown ? "...'" : "'";
  return out;
}

}  // namespace

uint16_t SocketAddress::port() const {
  switch (family()) {
    case AF_INET:
      return ntohs(as_v4(*this).sin_port);
    case AF_INET6:
      return ntohs(as_v6(*this).sin6_port);
    default:
      return 0;
  }
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET) {
    sockaddr_in v4 = as_v4(*this);
    v4.sin_port = htons(port);
    std::memcpy(&storage, &v4, sizeof v4);
  } else if (family() == AF_INET6) {
    sockaddr_in6 v6 = as_v6(*this);
    v6.sin6_port = htons(port);
    std::memcpy(&storage, &v6, sizeof v6);
  }
}

bool SocketAddress::is_loopback() const {
  uint32_t v4 = 0;
  if (ipv4_of(*this, &v4)) {
    return v4 >> 24 == 127;
  }
  const in6_addr v6 = as_v6(*this).sin6_addr;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool SocketAddress::is_link_local() const {
  uint32_t v4 = 0;
  if (ipv4_of(*this, &v4)) {
    return v4 >> 16 == 0xA9FE;
  }
  const in6_addr v6 = as_v6(*this).sin6_addr;
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6);
}

bool same_host(const SocketAddress& a, const SocketAddress& b) {
  uint32_t x = 0, y = 0;
  const bool a4 = ipv4_of(a, &x), b4 = ipv4_of(b, &y);
  if (a4 || b4) {
    return a4 && b4 && x == y;
  }
  if (a.family() != AF_INET6 || b.family() != AF_INET6) {
    return false;
  }
  const sockaddr_in6 p = as_v6(a), q = as_v6(b);
  return std::memcmp(&p.sin6_addr, &q.sin6_addr, sizeof p.sin6_addr) == 0 &&
         p.sin6_scope_id == q.sin6_scope_id;
}

std::string host_text(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  uint32_t v4 = 0;
  if (ipv4_of(address, &v4)) {
    const uint32_t net = htonl(v4);
    inet_ntop(AF_INET, &net, text, sizeof text);
    return text;
  }
  if (address.family() != AF_INET6) {
    return "(no address)";
  }
  const sockaddr_in6 v6 = as_v6(address);
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  std::string out = text;
  if (v6.sin6_scope_id != 0) {
    char name[IF_NAMESIZE];
    out += '%';
    out += if_indextoname(v6.sin6_scope_id, name) != nullptr ? std::string(name)
                                                             : std::to_string(v6.sin6_scope_id);
  }
  return out;
}

std::string to_text(const SocketAddress& address) {
  return to_text(HostPort{host_text(address), address.port()});
}

const char* family_name(int family) {
  return family == AF_INET ? "IPv4" : family == AF_INET6 ? "IPv6" : "no IP";
}

std::string to_text(const HostPort& at) {
  const bool v6 = at.host.find(':') != std::string::npos;
  return v6 ? strf("[%s]:%u", at.host.c_str(), unsigned{at.port})
            : strf("%s:%u", at.host.c_str(), unsigned{at.port});
}

Result<HostPort> parse_host_port(std::string_view text) {
  const auto wrong = [&](const char* what) {
    return fail(Code::config,
                quoted(text) + ": " + what + "; write host:port or [IPv6]:port, port 1 to 65535");
  };
  HostPort out;
  std::string_view port;
  if (!text.empty() && text.front() == '[') {
    const size_t close = text.find(']');
    if (close == std::string_view::npos || close + 1 >= text.size() || text[close + 1] != ':') {
      return wrong("']:port' is missing");
    }
    out.host = text.substr(1, close - 1);
    port = text.substr(close + 2);
    if (!parse_host(out.host, 0) || out.host.find(':') == std::string::npos) {
      return wrong("what is in brackets is no IPv6 address");
    }
  } else {
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos) {
      return wrong("the port is missing");
    }
    if (text.find(':', colon + 1) != std::string_view::npos) {
      return wrong("an IPv6 address needs brackets");
    }
    out.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (out.host.empty()) {
      return wrong("the host is missing");
    }
    constexpr size_t kMaxName = 253;  // RFC 1035
    if (out.host.size() > kMaxName ||
        out.host.find_first_of(std::string_view(" \t\r\n/@[]\0", 9)) != std::string::npos) {
      return wrong("that is no host name");
    }
  }
  if (!parse_port(port, &out.port)) {
    return wrong("the port is no number from 1 to 65535");
  }
  return out;
}

Result<SocketAddress> parse_host(std::string_view host, uint16_t port) {
  std::string number(host);
  if (number.find('\0') != std::string::npos) {
    return fail(Code::invalid_argument, "a zero byte in an address");
  }
  SocketAddress out;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  if (inet_pton(AF_INET, number.c_str(), &v4.sin_addr) == 1) {
    std::memcpy(&out.storage, &v4, sizeof v4);
    out.length = sizeof v4;
    out.set_port(port);
    return out;
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  const size_t percent = number.find('%');
  if (percent != std::string::npos) {
    v6.sin6_scope_id = if_nametoindex(number.c_str() + percent + 1);
    const char* first = number.c_str() + percent + 1;
    const char* last = number.c_str() + number.size();
    if (v6.sin6_scope_id == 0 && std::from_chars(first, last, v6.sin6_scope_id).ptr != last) {
      return fail(Code::invalid_argument, quoted(host) + ": no interface has that name");
    }
    number.resize(percent);
  }
  if (inet_pton(AF_INET6, number.c_str(), &v6.sin6_addr) != 1) {
    return fail(Code::invalid_argument, quoted(host) + " is no numeric IPv4 or IPv6 address");
  }
  v6.sin6_port = htons(port);
  return from_v6(v6);
}

Result<SocketAddress> parse_address(std::string_view text) {
  const auto at = parse_host_port(text);
  if (!at) {
    return tl::unexpected(at.error());
  }
  return parse_host(at->host, at->port);
}

bool AddressRange::holds(std::span<const uint8_t, 16> address) const {
  const size_t whole = static_cast<size_t>(bits) / 8, rest = static_cast<size_t>(bits) % 8;
  return std::memcmp(address.data(), bytes.data(), whole) == 0 &&
         (rest == 0 || (address[whole] ^ bytes[whole]) >> (8 - rest) == 0);
}

Result<AddressRange> parse_address_range(std::string_view text) {
  const size_t slash = std::min(text.find('/'), text.size());
  const auto host = parse_host(text.substr(0, slash), 0);
  if (!host) {
    return tl::unexpected(host.error());
  }
  AddressRange out;
  const bool v4 = host->family() == AF_INET;
  if (v4) {
    out.bytes[10] = out.bytes[11] = 0xFF;
    std::memcpy(&out.bytes[12], &reinterpret_cast<const sockaddr_in*>(host->data())->sin_addr, 4);
  } else {
    std::memcpy(out.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(host->data())->sin6_addr,
                16);
  }
  const int most = v4 ? 32 : 128;
  out.bits = most;
  if (slash < text.size()) {
    const std::string_view number = text.substr(slash + 1);
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), out.bits);
    if (error != std::errc() || end != number.data() + number.size() || out.bits < 0 ||
        out.bits > most) {
      return fail(Code::invalid_argument, strf("'%.*s': the bits of an %s network are 0 to %d",
                                               static_cast<int>(text.size()), text.data(),
                                               family_name(host->family()), most));
    }
  }
  out.bits += v4 ? 96 : 0;
  return out;
}

Result<std::vector<SocketAddress>> resolve(const HostPort& at) {
  if (auto number = parse_host(at.host, at.port)) {
    return std::vector<SocketAddress>{*number};
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int rc = getaddrinfo(at.host.c_str(), nullptr, &hints, &list);
  if (rc != 0) {
    const int err = rc == EAI_SYSTEM ? errno : 0;
    return fail(Code::system,
                strf("cannot resolve host '%s': %s", at.host.c_str(), gai_strerror(rc)), err);
  }
  std::vector<SocketAddress> out;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) {
      continue;
    }
    SocketAddress address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.length = one->ai_addrlen;
    address.set_port(at.port);
    out.push_back(address);
  }
  freeaddrinfo(list);
  if (out.empty()) {
    return fail(Code::system,
                strf("host '%s' has neither an IPv4 nor an IPv6 address", at.host.c_str()));
  }
  return out;
}

Result<PortRange> parse_port_range(std::string_view text) {
  PortRange out;
  if (text.empty()) {
    return out;
  }
  const size_t dash = text.find('-');
  const std::string_view lo = text.substr(0, dash);
  const std::string_view hi = dash == std::string_view::npos ? lo : text.substr(dash + 1);
  if (!parse_port(lo, &out.lo) || !parse_port(hi, &out.hi) || out.lo > out.hi) {
    return fail(Code::config,
                quoted(text) + " is no port range; write lo-hi, 1 <= lo <= hi <= 65535");
  }
  return out;
}

}  // namespace prunex

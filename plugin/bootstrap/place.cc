// SPDX-License-Identifier: Apache-2.0
// Where rank 0 listens: the address of PRUNEX_ROOT, or any port whose address goes into the store.
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "plugin/base/interfaces.h"
#include "plugin/bootstrap/meeting.h"

namespace prunex {
namespace {

int backlog_for(int size) { return std::clamp(2 * size + 64, 128, 4096); }

enum class Holder { nobody, prunex, foreign };

// Who listens on a port that we cannot bind? A PruneX that is assembling another communicator
// answers any hello at once and will be gone soon; anything else will not make room.
Holder who_listens(const SocketAddress& at, int size) {
  const Deadline deadline = Deadline::after(1);
  auto fd = start_connect(at);
  if (!fd) {
    return Holder::nobody;
  }
  Link link(std::move(*fd), size);
  bool asked = false;
  while (!deadline.passed()) {
    pollfd one{link.fd(), short(asked ? POLLIN : POLLOUT), 0};
    ::poll(&one, 1, poll_wait_ms(deadline.left_ns(), 1000));
    if (!asked) {
      const auto connected = connect_done(link.fd(), at);
      if (!connected) {
        return Holder::nobody;
      }
      if (*connected) {
        wire::Hello hello;
        hello.rank = UINT32_MAX;  // no rank: nobody takes us in
        link.post(wire::Kind::hello, 0, wire::encode(hello));
        asked = true;
      }
      continue;
    }
    Frame frame;
    switch (link.receive({wire::Kind::refuse}, &frame)) {
      case Link::Got::frame:
        return Holder::prunex;
      case Link::Got::nothing:
        break;
      case Link::Got::end:
        return Holder::foreign;
      case Link::Got::broken:
        return link.error().code == Code::mismatch ? Holder::prunex : Holder::foreign;
    }
  }
  return Holder::foreign;
}

bool is_local(const SocketAddress& address, std::span<const Interface> have) {
  return address.is_loopback() || std::ranges::any_of(have, [&](const Interface& one) {
           return one.address && same_host(one.address, address);
         });
}

SocketAddress any_address(int family, uint16_t port) {
  auto any = parse_host(family == AF_INET6 ? "::" : "0.0.0.0", port);
  return any ? *any : SocketAddress{};
}

// A number is bound as it stands, and so is localhost. Another name is bound on all addresses:
// machines commonly know their own name as 127.0.1.1 while the others know it by its real address.
Result<std::vector<SocketAddress>> where_to_bind(const HostPort& root) {
  auto resolved = resolve(root);
  for (const Deadline patience = Deadline::after(10); !resolved && !patience.passed();) {
    sleep_within(patience, 0.5);  // the name server of a fresh container may be late
    resolved = resolve(root);
  }
  if (!resolved) {
    return resolved;
  }
  const auto have = list_interfaces();
  if (!have) {
    return tl::unexpected(have.error());
  }
  std::vector<SocketAddress> local;
  std::ranges::copy_if(*resolved, std::back_inserter(local),
                       [&](const SocketAddress& one) { return is_local(one, *have); });
  const bool number = parse_host(root.host, root.port).has_value();
  const bool wildcard =
      number && root.host == host_text(any_address(resolved->front().family(), 0));
  if (local.empty() && !wildcard) {
    return fail(
        Code::config,
        strf("PRUNEX_ROOT=%s is %s, which is no address of this machine, where rank 0 runs; "
             "have: %s. Name the machine of rank 0, or start rank 0 there",
             to_text(root).c_str(), host_text(resolved->front()).c_str(), to_text(*have).c_str()));
  }
  if (number || root.host == "localhost") {
    return wildcard ? *resolved : local;
  }
  return std::vector<SocketAddress>{any_address(AF_INET6, root.port),
                                    any_address(AF_INET, root.port)};
}

// What became of one round of binding.
struct Bound {
  std::vector<Listening> listeners;
  Error error;            // when there are none
  SocketAddress refused;  // whose error that is
};

Bound bind_all(const std::vector<SocketAddress>& wanted, bool first_only, int backlog) {
  Bound out;
  for (const SocketAddress& at : wanted) {
    auto listening = listen_tcp(at, {}, backlog);
    if (listening) {
      out.listeners.push_back(std::move(*listening));
      if (first_only) {
        break;
      }
      continue;
    }
    const int error = listening.error().sys_errno;
    const bool family_missing = error == EAFNOSUPPORT || error == EADDRNOTAVAIL;
    if (out.error.sys_errno == 0 || !family_missing) {
      out.error = std::move(listening.error());
      out.refused = at;
    }
    if (!family_missing) {
      out.listeners.clear();  // half a place is none: who looks for us may try the other half
      break;
    }
  }
  return out;
}

SocketAddress reachable(SocketAddress at) {
  if (same_host(at, any_address(at.family(), 0))) {
    const auto loopback = parse_host(at.family() == AF_INET6 ? "::1" : "127.0.0.1", at.port());
    return loopback ? *loopback : at;
  }
  return at;
}

Result<Place> place_at_root(const ControlOptions& options, const Deadline& deadline) {
  const auto root = parse_host_port(options.root);
  if (!root) {
    return fail(Code::config, "PRUNEX_ROOT=" + root.error().text);
  }
  const auto wanted = where_to_bind(*root);
  if (!wanted) {
    return tl::unexpected(wanted.error());
  }
  const bool first_only = same_host(wanted->front(), any_address(wanted->front().family(), 0));
  constexpr double kForeignS = 5, kTentativeS = 3;
  const Deadline tentative = Deadline::after(kTentativeS);
  Deadline foreign;  // when to stop hoping that a stranger leaves; counts while one was seen
  bool foreign_seen = false;
  while (true) {
    Bound bound = bind_all(*wanted, first_only, backlog_for(options.size));
    if (!bound.listeners.empty()) {
      Place out;
      out.listeners = std::move(bound.listeners);
      out.text = options.root;
      return out;
    }
    const int error = bound.error.sys_errno;
    Holder holder = Holder::nobody;
    if (error == EADDRINUSE) {
      holder = who_listens(reachable(bound.refused), options.size);
    } else if (error != EADDRNOTAVAIL ||
               tentative.passed()) {  // a fresh IPv6 address needs a moment
      return fail(Code::system, "PRUNEX_ROOT=" + options.root + ": " + bound.error.text, error);
    }
    if (holder == Holder::foreign && !foreign_seen) {
      foreign = Deadline::after(kForeignS);
    }
    foreign_seen = holder == Holder::foreign;
    if (deadline.passed() || (foreign_seen && foreign.passed())) {
      return fail(
          Code::system,
          strf("PRUNEX_ROOT=%s: the port is in use by %s; choose a port that nothing else uses "
               "(torchrun's MASTER_PORT belongs to torch)",
               options.root.c_str(),
               holder == Holder::prunex ? "another PruneX communicator that is still waiting "
                                          "for its ranks"
                                        : "something that is not PruneX"),
          error, 0);
    }
    sleep_within(deadline, 0.05);
  }
}

Result<Place> place_in_store(const ControlOptions& options) {
  const auto range = parse_port_range(options.port_range);
  if (!range) {
    return fail(Code::config, "PRUNEX_PORT_RANGE=" + range.error().text);
  }
  const auto have = list_interfaces();
  if (!have) {
    return tl::unexpected(have.error());
  }
  const auto fitting = of_family(*have, options.family);
  if (!fitting) {
    return tl::unexpected(fitting.error());
  }
  auto chosen = choose_interfaces(*fitting, options.socket_ifname);
  if (!chosen) {
    return tl::unexpected(chosen.error());
  }
  const auto cookie = random_cookie();
  if (!cookie) {
    return tl::unexpected(cookie.error());
  }
  Place out;
  out.has_cookie = true;
  out.cookie = *cookie;
  wire::RootCard card{*cookie, {}};
  Error last{Code::config, "no address that other machines could use; have: " + to_text(*have), 0,
             -1};
  for (const Interface& one : *chosen) {
    // A link-local IPv6 address means something only together with an interface of ours.
    if (one.address.family() == AF_INET6 && one.address.is_link_local()) {
      continue;
    }
    auto listening = listen_tcp(one.address, *range, backlog_for(options.size));
    if (!listening) {
      last = std::move(listening.error());
      continue;
    }
    out.text += (out.text.empty() ? "" : " or ") + to_text(listening->address);
    card.addresses.push_back(listening->address);
    out.listeners.push_back(std::move(*listening));
    if (card.addresses.size() == wire::kMaxCardAddresses) {
      break;
    }
  }
  if (out.listeners.empty()) {
    return tl::unexpected(last);
  }
  if (auto set = options.store->set(root_key(options), wire::encode(card)); !set) {
    Error error = std::move(set.error());
    error.text = "cannot write '" + root_key(options) + "' to the store: " + error.text;
    return tl::unexpected(error);
  }
  return out;
}

}  // namespace

Result<Place> open_place(const ControlOptions& options, const Deadline& deadline) {
  constexpr size_t kSpare = 256;  // for the process's own files
  raise_descriptor_limit(static_cast<size_t>(options.size) + kSpare);
  return options.store ? place_in_store(options) : place_at_root(options, deadline);
}

}  // namespace prunex

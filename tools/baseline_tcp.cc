// SPDX-License-Identifier: Apache-2.0
#include "tools/baseline_tcp.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <span>
#include <vector>

#include "plugin/base/address.h"
#include "plugin/base/clock.h"
#include "plugin/base/sockets.h"
#include "plugin/transport/socket/tuning.h"

namespace prunex::tools {
namespace {

constexpr double kConnectSeconds = 10;
constexpr int64_t kSettleNs = 300'000'000;  // slow start and a shaper's burst are not the link
constexpr int64_t kMeasureNs = 1'000'000'000;
constexpr size_t kBufferBytes = size_t{1} << 20;

// What rank 0 tells everybody, as words that add up with the zeros of the other ranks.
using Invitation = std::array<int64_t, 3>;  // port (0: it could not listen), cookie

tl::unexpected<Error> broken(const char* what, int error) {
  return fail(Code::system, strf("TCP baseline: %s: %s", what, errno_text(error).c_str()), error);
}

bool wait_for(int fd, short events, const Deadline& deadline) {
  pollfd p{fd, events, 0};
  return ::poll(&p, 1, static_cast<int>(deadline.left_ns() / 1'000'000 + 1)) > 0;
}

// Accepts until a connection shows the cookie; strays are dropped.
Result<Fd> accept_peer(int listener, const Cookie& cookie) {
  const Deadline deadline = Deadline::after(kConnectSeconds);
  while (!deadline.passed()) {
    if (!wait_for(listener, POLLIN, deadline)) {
      continue;
    }
    Result<std::optional<Accepted>> accepted = accept_tcp(listener);
    if (!accepted) {
      return tl::unexpected(accepted.error());
    }
    if (!*accepted) {
      continue;
    }
    Cookie shown{};
    size_t got = 0;
    const Deadline patience = Deadline::after(2);
    while (got < sizeof shown && wait_for((*accepted)->fd.get(), POLLIN, patience)) {
      const Moved moved =
          recv_some((*accepted)->fd.get(), std::as_writable_bytes(std::span(shown)).subspan(got));
      if (moved.state != Transfer::some && moved.state != Transfer::again) {
        break;
      }
      got += moved.bytes;
    }
    if (got == sizeof shown && same_cookie(shown, cookie)) {
      return std::move((*accepted)->fd);
    }
  }
  return broken("nobody connected", ETIMEDOUT);
}

Result<Fd> connect_peer(SocketAddress address, uint16_t port, const Cookie& cookie) {
  address.set_port(port);
  Result<Fd> fd = start_connect(address);
  const Deadline deadline = Deadline::after(kConnectSeconds);
  Result<bool> connected = false;
  while (fd && connected && !*connected) {
    if (!wait_for(fd->get(), POLLOUT, deadline)) {
      return broken("connect", ETIMEDOUT);
    }
    connected = connect_done(fd->get(), address);
  }
  if (!fd || !connected) {
    return fd ? tl::unexpected(connected.error()) : tl::unexpected(fd.error());
  }
  const Moved sent = send_some(fd->get(), std::as_bytes(std::span(cookie)));
  if (sent.state != Transfer::some || sent.bytes != sizeof cookie) {
    return broken("greeting", sent.sys_errno);
  }
  return fd;
}

// Sends and receives as fast as the socket takes it; the rate of what arrives between the two
// marks.
Result<double> exchange(int fd) {
  std::vector<std::byte> out(kBufferBytes), in(kBufferBytes);
  const int64_t from = now_ns() + kSettleNs, to = from + kMeasureNs;
  const Deadline hopeless = Deadline::after(kConnectSeconds);
  uint64_t received = 0;
  int64_t first = 0, last = 0;  // the first arrival after `from` starts the clock
  bool sending = true, receiving = true;
  while (sending || receiving) {
    pollfd p{fd, static_cast<short>((sending ? POLLOUT : 0) | (receiving ? POLLIN : 0)), 0};
    if (hopeless.passed()) {
      return broken("exchange", ETIMEDOUT);
    }
    ::poll(&p, 1, 1000);
    const Moved got = receiving ? recv_some(fd, in) : Moved{};
    const int64_t now = now_ns();
    if (got.state == Transfer::broken) {
      return broken("exchange", got.sys_errno);
    }
    receiving = receiving && got.state != Transfer::closed;
    if (got.state == Transfer::some && now >= from && now <= to) {
      received += first != 0 ? got.bytes : 0;
      first = first != 0 ? first : now;
      last = now;
    }
    const Moved sent = sending ? send_some(fd, out) : Moved{};
    if (sent.state == Transfer::broken || sent.state == Transfer::closed) {
      return broken("exchange", sent.sys_errno);
    }
    if (sending && now > to) {
      ::shutdown(fd, SHUT_WR);
      sending = false;
    }
  }
  return last > first ? static_cast<double>(received) / static_cast<double>(last - first) : 0.0;
}

Result<SocketAddress> host_of(const std::string& root) {
  const Result<HostPort> at = parse_host_port(root);
  if (!at) {
    return fail(Code::config, "TCP baseline: PRUNEX_ROOT: " + at.error().text);
  }
  Result<std::vector<SocketAddress>> found = resolve(*at);
  if (!found) {
    return tl::unexpected(found.error());
  }
  if (found->empty()) {
    return fail(Code::system, "TCP baseline: " + at->host + " has no address");
  }
  return found->front();
}

// Rank 0: listens where the others know it.
Result<Listening> invite(SocketAddress address, Invitation& invitation) {
  address.set_port(0);
  Result<Listening> listening = listen_tcp(address);
  if (!listening) {
    return listening;
  }
  const Result<Cookie> cookie = random_cookie();
  if (!cookie) {
    return tl::unexpected(cookie.error());
  }
  const auto words = std::bit_cast<std::array<int64_t, 2>>(*cookie);
  invitation = {listening->address.port(), words[0], words[1]};
  return listening;
}

Result<double> measure_here(bool serves, const Result<Listening>& listening,
                            const SocketAddress& address, const Invitation& invitation,
                            uint64_t pacing_bit_s) {
  const auto cookie = std::bit_cast<Cookie>(std::array<int64_t, 2>{invitation[1], invitation[2]});
  const Result<Fd> peer = serves
                              ? accept_peer(listening->fd.get(), cookie)
                              : connect_peer(address, static_cast<uint16_t>(invitation[0]), cookie);
  if (!peer) {
    return tl::unexpected(peer.error());
  }
  if (pacing_bit_s > 0 && !transport::pace(peer->get(), std::max<uint64_t>(pacing_bit_s / 8, 1))) {
    return broken("pacing", errno);
  }
  return exchange(peer->get());
}

}  // namespace

Result<double> measure_tcp_baseline(const World& world, const std::string& root,
                                    uint64_t pacing_bit_s) {
  const bool serves = world.rank() == 0;
  const int client = world.ranks_of(1).front();
  const Result<SocketAddress> address = host_of(root);
  Invitation invitation{};
  Result<Listening> listening = address && serves ? invite(*address, invitation) : Listening{};
  // Whatever goes wrong on one rank, all take part in both gatherings.
  if (const Result<> invited = world.sum(std::span<int64_t>(invitation)); !invited) {
    return tl::unexpected(invited.error());
  }
  Result<double> rate = 0.0;
  if (!address || !listening) {
    rate = tl::unexpected(address ? listening.error() : address.error());
  } else if (invitation[0] != 0 && (serves || world.rank() == client)) {
    rate = measure_here(serves, listening, *address, invitation, pacing_bit_s);
  }
  std::vector<double> rates(static_cast<size_t>(world.size()), 0);
  rates[static_cast<size_t>(world.rank())] = rate.value_or(0.0);
  if (const Result<> gathered = world.sum(std::span<double>(rates)); !gathered) {
    return tl::unexpected(gathered.error());
  }
  const double slower = std::min(rates[0], rates[static_cast<size_t>(client)]);
  if (rate && !(slower > 0)) {
    return fail(Code::system, "TCP baseline: no result; the rank that failed says why");
  }
  return rate ? Result<double>(slower) : rate;
}

}  // namespace prunex::tools

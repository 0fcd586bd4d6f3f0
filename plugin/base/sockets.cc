// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "plugin/base/text.h"

namespace prunex {
namespace {

tl::unexpected<Error> system_error(const std::string& what, int error) {
  return fail(Code::system, what + ": " + errno_text(error), error);
}

tl::unexpected<Error> no_descriptor(const char* what, int error) {
  rlimit limit{};
  if ((error == EMFILE || error == ENFILE) && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    return fail(Code::system,
                strf("%s: %s; the limit is %llu, see 'ulimit -n'", what, errno_text(error).c_str(),
                     static_cast<unsigned long long>(limit.rlim_cur)),
                error);
  }
  return system_error(what, error);
}

void set_option(int fd, int level, int name, int value) {
  // Best effort: a socket without the option still works, only less well.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

// 0, or the errno. bind() and listen() belong together: with SO_REUSEADDR two sockets may bind one
// port and the second learns of it only in listen().
int try_listen(const SocketAddress& at, int backlog, Fd* out) {
  Fd fd(::socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    return errno;
  }
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.family() == AF_INET6) {
    set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);  // [::] means IPv4 as well
  }
  if (::bind(fd.get(), at.data(), at.length) != 0 || ::listen(fd.get(), backlog) != 0) {
    return errno;
  }
  *out = std::move(fd);
  return 0;
}

}  // namespace

std::string errno_text(int error) {
  const char* text = strerrordesc_np(error);
  return text != nullptr ? text : strf("error %d", error);
}

Result<Listening> listen_tcp(const SocketAddress& at, PortRange range, int backlog) {
  Listening out;
  const bool search = at.port() == 0 && range.lo != 0;
  SocketAddress where = at;
  for (int port = range.lo; search && port <= range.hi && !out.fd; ++port) {
    where.set_port(static_cast<uint16_t>(port));
    const int error = try_listen(where, backlog, &out.fd);
    if (error != 0 && error != EADDRINUSE && error != EACCES) {
      return no_descriptor(("cannot listen on " + to_text(where)).c_str(), error);
    }
  }
  if (search && !out.fd) {
    return fail(
        Code::system,
        strf("PRUNEX_PORT_RANGE=%u-%u has %s, and none is free on %s. While a communicator "
             "starts, a leader needs one port for each rail it leads, and rank 0 one more "
             "where ranks meet through a store; under NCCL a rank needs one for every "
             "connection that it is about to accept. Processes of one machine need ports of "
             "their own: widen the range",
             unsigned{range.lo}, unsigned{range.hi},
             counted(static_cast<uint64_t>(range.count()), "port").c_str(), host_text(at).c_str()),
        EADDRINUSE);
  }
  if (!search) {
    if (const int error = try_listen(at, backlog, &out.fd)) {
      return no_descriptor(("cannot listen on " + to_text(at)).c_str(), error);
    }
  }
  out.address = local_address(out.fd.get());
  return out;
}

void raise_descriptor_limit(size_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max);
    (void)setrlimit(RLIMIT_NOFILE, &limit);
  }
}

Result<std::optional<Accepted>> accept_tcp(int listen_fd) {
  Accepted out;
  out.peer.length = sizeof out.peer.storage;
  out.fd.reset(
      ::accept4(listen_fd, out.peer.data(), &out.peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (out.fd) {
    return std::optional<Accepted>(std::move(out));
  }
  switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case EBADF:
    case EINVAL:
    case ENOTSOCK:
      return no_descriptor("cannot accept a connection", errno);
    default:  // EAGAIN, EINTR, and all that accept(2) passes on from a connection that died waiting
      return std::optional<Accepted>();
  }
}

Result<Fd> start_connect(const SocketAddress& peer, const SocketAddress& source) {
  Fd fd(::socket(peer.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) {
    return no_descriptor("cannot make a socket", errno);
  }
  if (source) {
    SocketAddress from = source;
    from.set_port(0);
    // The port is chosen in connect(), where one local port may serve many peers.
    set_option(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (::bind(fd.get(), from.data(), from.length) != 0) {
      return system_error("cannot connect from " + host_text(from), errno);
    }
  }
  if (::connect(fd.get(), peer.data(), peer.length) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    return system_error("cannot connect to " + to_text(peer), errno);
  }
  return fd;
}

Result<bool> connect_done(int fd, const SocketAddress& peer) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
    error = errno;
  }
  if (error != 0) {
    return system_error("cannot connect to " + to_text(peer), error);
  }
  SocketAddress there;
  there.length = sizeof there.storage;
  if (::getpeername(fd, there.data(), &there.length) != 0) {
    if (errno == ENOTCONN) {
      return false;
    }
    return system_error("cannot connect to " + to_text(peer), errno);
  }
  // An ephemeral source port may equal the wanted one, and TCP then connects a socket to itself.
  const SocketAddress here = local_address(fd);
  if (here.port() == there.port() && same_host(here, there)) {
    return fail(Code::system, "cannot connect to " + to_text(peer) + ": nobody listens there",
                ECONNREFUSED);
  }
  return true;
}

void tune_stream(int fd, Vigilance vigilance) {
  constexpr int kIdleS = 15, kIntervalS = 5;
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleS);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, kIntervalS);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, (kVanishedAfterS - kIdleS) / kIntervalS);
  if (vigilance == Vigilance::user_timeout) {
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kVanishedAfterS * 1000);
  }
}

SocketAddress local_address(int fd) {
  SocketAddress out;
  out.length = sizeof out.storage;
  if (::getsockname(fd, out.data(), &out.length) != 0) {
    return {};
  }
  return out;
}

Moved send_some(int fd, std::span<const std::byte> data) {
  const ssize_t n = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) {
    return {Transfer::some, static_cast<size_t>(n), 0};
  }
  const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  return later ? Moved{} : Moved{Transfer::broken, 0, errno};
}

Moved recv_some(int fd, std::span<std::byte> data) {
  const ssize_t n = ::recv(fd, data.data(), data.size(), MSG_DONTWAIT);
  if (n > 0 || data.empty()) {
    return {Transfer::some, n > 0 ? static_cast<size_t>(n) : 0, 0};
  }
  if (n == 0) {
    return {Transfer::closed, 0, 0};
  }
  const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  return later ? Moved{} : Moved{Transfer::broken, 0, errno};
}

Result<Cookie> random_cookie() {
  Cookie out{};
  size_t have = 0;
  while (have < out.size()) {
    const ssize_t n = ::getrandom(out.data() + have, out.size() - have, 0);
    if (n < 0 && errno != EINTR) {
      return system_error("no random bytes", errno);
    }
    have += n > 0 ? static_cast<size_t>(n) : 0;
  }
  return out;
}

bool same_cookie(const Cookie& a, const Cookie& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace prunex

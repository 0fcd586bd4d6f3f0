// SPDX-License-Identifier: Apache-2.0
// TCP sockets as this library uses them: non-blocking, close-on-exec, never raising SIGPIPE.
#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "plugin/base/address.h"
#include "plugin/base/fd.h"
#include "plugin/base/result.h"

namespace prunex {

[[nodiscard]] std::string errno_text(int error);  // thread-safe strerror

struct Listening {
  Fd fd;
  SocketAddress address;  // with the port that was bound
};

// Binds `at` (SO_REUSEADDR, so that a restart on a fixed port works) and listens. at.port() != 0:
// that port; otherwise one of `range`, or any. A used-up range is an error naming range and count.
[[nodiscard]] Result<Listening> listen_tcp(const SocketAddress& at, PortRange range = {},
                                           int backlog = 1024);

// Raises the soft limit of file descriptors (never the hard one) where it is below `wanted`.
void raise_descriptor_limit(size_t wanted);

// nullopt: nobody is waiting (or whoever was has gone again). Errors are those that need a person,
// such as too few file descriptors.
struct Accepted {
  Fd fd;
  SocketAddress peer;
};
[[nodiscard]] Result<std::optional<Accepted>> accept_tcp(int listen_fd);

// Starts connecting, from the host of `source` if there is one; connect_done says true when
// connected, false when not yet.
[[nodiscard]] Result<Fd> start_connect(const SocketAddress& peer, const SocketAddress& source = {});
[[nodiscard]] Result<bool> connect_done(int fd, const SocketAddress& peer);

// TCP_NODELAY, and keepalive with TCP_USER_TIMEOUT: a host that vanished is noticed within
// kVanishedAfterS. TCP_USER_TIMEOUT also ends a connection whose other end has not read for that
// long while data waits: only for connections that somebody always polls.
inline constexpr int kVanishedAfterS = 45;
enum class Vigilance { keepalive_only, user_timeout };
void tune_stream(int fd, Vigilance vigilance);

[[nodiscard]] SocketAddress local_address(int fd);  // empty if the socket has none

enum class Transfer : uint8_t { some, again, closed, broken };
struct Moved {
  Transfer state = Transfer::again;
  size_t bytes = 0;   // state == some
  int sys_errno = 0;  // state == broken
};
[[nodiscard]] Moved send_some(int fd, std::span<const std::byte> data);
[[nodiscard]] Moved recv_some(int fd, std::span<std::byte> data);

// 128 random bits that a stranger cannot guess.
using Cookie = std::array<std::byte, 16>;
[[nodiscard]] Result<Cookie> random_cookie();
[[nodiscard]] bool same_cookie(const Cookie& a, const Cookie& b);  // in constant time

}  // namespace prunex

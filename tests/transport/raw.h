// SPDX-License-Identifier: Apache-2.0
// A peer of the socket transport that speaks byte by byte: strangers, old versions, odd orders.
#pragma once
#include <gtest/gtest.h>
#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/sockets.h"
#include "plugin/transport/socket/wire.h"
#include "plugin/transport/transport.h"

namespace prunex::transport {

class RawPeer {
 public:
  explicit RawPeer(Fd fd) : fd_(std::move(fd)) {}
  explicit RawPeer(const SocketAddress& to) {
    auto fd = start_connect(to);
    EXPECT_TRUE(fd);
    fd_ = *std::move(fd);
    const Deadline deadline = Deadline::after(30);
    while (!*connect_done(fd_.get(), to) && !deadline.passed()) {
    }
  }

  void send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const Moved m = send_some(fd_.get(), bytes);
      ASSERT_NE(m.state, Transfer::broken);
      bytes = bytes.subspan(m.bytes);
    }
  }
  void send(std::string_view text) { send(std::as_bytes(std::span(text))); }

  // Exactly n bytes, or what came before the end of the stream; nothing for 30 s is a failure.
  // `turn` lets the other end work.
  template <class Turn>
  std::string read(size_t n, Turn turn) {
    std::string out(n, '\0');
    size_t have = 0;
    const Deadline deadline = Deadline::after(30);
    while (have < n) {
      turn();
      const Moved m = recv_some(fd_.get(), std::as_writable_bytes(std::span(out)).subspan(have));
      have += m.bytes;
      if (m.state == Transfer::closed || m.state == Transfer::broken) {
        break;
      }
      if (deadline.passed()) {
        ADD_FAILURE() << "nothing for 30 s";
        break;
      }
    }
    out.resize(have);
    return out;
  }
  [[nodiscard]] int fd() const { return fd_.get(); }
  void close() { fd_.reset(); }

 private:
  Fd fd_;
};

inline Hello hello_for(const Handle& handle, uint64_t connection, unsigned stream,
                       unsigned streams) {
  Hello hello;
  hello.cookie = handle.cookie;
  hello.connection = connection;
  hello.stream = static_cast<uint16_t>(stream);
  hello.streams = static_cast<uint16_t>(streams);
  return hello;
}

// accept() until it gives a connection or an error.
inline Result<std::unique_ptr<Connection>> accept_one(Listener& listener) {
  const Deadline deadline = Deadline::after(30);
  while (!deadline.passed()) {
    auto r = listener.accept();
    if (!r || *r) {
      return r;
    }
  }
  ADD_FAILURE() << "nobody came for 30 s";
  return std::unique_ptr<Connection>();
}

}  // namespace prunex::transport

// SPDX-License-Identifier: Apache-2.0
// The accepting side: gathers the streams of each connection, in whatever order they come, and
// drops whoever does not know the cookie.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/sockets.h"
#include "plugin/transport/socket/socket.h"
#include "plugin/transport/socket/wire.h"

namespace prunex::transport {

class SocketListener final : public Listener {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Listener>> open(const SocketOptions& options);

  [[nodiscard]] std::string handle() const override;
  Result<std::unique_ptr<Connection>> accept() override;
  void poll_fds(std::vector<pollfd>& out) const override;

 private:
  // Somebody who connected: a stranger until the whole hello is there.
  struct Caller {
    Fd fd;
    SocketAddress peer;
    Deadline deadline;
    std::array<std::byte, kHelloBytes + kMaxHello> bytes{};
    size_t have = 0;
    Hello hello;
    bool introduced = false;
    bool refused = false;  // the refusal is sent; kept until the other end has read it
  };

  SocketListener(Listening listening, const Cookie& cookie, const SocketOptions& options)
      : listening_(std::move(listening)), cookie_(cookie), options_(options) {}
  Result<> take_callers();
  bool listen_to(Caller& caller);
  bool check_hello(Caller& caller);
  void refuse(Caller& caller);
  [[nodiscard]] bool is_duplicate(const Caller& caller) const;
  std::unique_ptr<Connection> assemble();
  std::unique_ptr<Connection> make_connection(const Hello& hello);

  Listening listening_;
  Cookie cookie_;
  SocketOptions options_;
  std::vector<std::unique_ptr<Caller>> callers_;
  uint64_t refused_connection_ = 0;  // reported once, not once per stream
  std::optional<Error> report_;      // for the next accept()
};

}  // namespace prunex::transport

// SPDX-License-Identifier: Apache-2.0
// The connecting side: all streams of one attempt at once; an attempt that fails is made again,
// after a pause that doubles, until the deadline.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/fd.h"
#include "plugin/transport/socket/socket.h"
#include "plugin/transport/socket/wire.h"
#include "plugin/transport/timer.h"

namespace prunex::transport {

class SocketConnecting final : public Connecting {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Connecting>> open(const SocketOptions& options,
                                                                std::string_view handle,
                                                                std::string_view hello,
                                                                double timeout_s);
  Result<std::unique_ptr<Connection>> step() override;
  void poll_fds(std::vector<pollfd>& out) const override;

 private:
  enum class Stage : uint8_t { connecting, introduced, accepted };
  struct Leg {
    Fd fd;
    Stage stage = Stage::connecting;
    std::array<std::byte, kReplyBytes> reply{};
    size_t have = 0;
  };

  SocketConnecting(const SocketOptions& options, const Handle& handle, std::string_view hello,
                   double timeout_s, Timer timer);
  Result<> begin_attempt();
  Result<> step_leg(Leg& leg, size_t index);
  Result<> introduce(Leg& leg, size_t index);
  Result<> read_reply(Leg& leg);
  Result<std::unique_ptr<Connection>> give_back(Error error);
  Result<std::unique_ptr<Connection>> too_late() const;
  std::unique_ptr<Connection> finish();

  SocketOptions options_;
  Handle handle_;
  SocketAddress source_;  // none: the kernel's choice
  std::string hello_;
  size_t streams_;
  double timeout_s_;
  Deadline deadline_;
  Timer timer_;            // wakes poll() for the next attempt and for the deadline
  std::vector<Leg> legs_;  // empty: between two attempts
  uint64_t connection_ = 0;
  int attempts_ = 0;
  int64_t refused_since_ns_ = 0;  // 0: the last attempt was not refused
  Deadline patience_;             // until somebody is told
  int64_t next_ns_ = 0;           // when to begin the next attempt, or to give this one up
  bool reached_ = false;          // the last attempt found a listener
  std::string last_failure_;
};

}  // namespace prunex::transport

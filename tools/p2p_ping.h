// SPDX-License-Identifier: Apache-2.0
// One message to and fro between the two ends.
#pragma once
#include <array>
#include <cstdint>

#include "plugin/base/clock.h"
#include "plugin/base/result.h"
#include "tools/p2p_flow.h"
#include "tools/p2p_measure.h"

namespace prunex::tools {

// Nothing has moved: is the other end still there, and for how long shall one wait?
class Stall {
 public:
  static constexpr int64_t kLookNs = 500'000'000;
  explicit Stall(const P2pPeer& peer) : peer_(peer) { moved(); }
  void moved() { since_ns_ = 0; }
  [[nodiscard]] Result<> check();
  [[nodiscard]] int64_t waited_ns() const { return waited_ns_; }  // at the last check

 private:
  const P2pPeer& peer_;
  int64_t since_ns_ = 0, next_look_ns_ = 0, waited_ns_ = 0;
};

// Receives are posted ahead, so that no message waits for one: two of them, or as many as
// P2pOp::write has. They are topped up while a message of this end is under way.
class PingPong {
 public:
  PingPong(const P2pSession& session, const FlowEnd& send, const FlowEnd& recv, P2pSlots* expected)
      : s_(session), send_(send), recv_(recv), expected_(expected) {}

  // Rank 0: as many as asked for, or as long; 0 seconds: no limit. Then tells the other end.
  [[nodiscard]] Result<> serve(uint64_t iters, double seconds);
  [[nodiscard]] Result<> answer();  // rank 1, until it is told

  [[nodiscard]] uint64_t messages() const { return messages_; }
  [[nodiscard]] uint64_t ended() const { return ended_; }  // empty messages sent to end the run
  [[nodiscard]] uint64_t errors() const { return errors_; }
  [[nodiscard]] double seconds() const { return seconds_; }
  [[nodiscard]] const Histogram& time() const { return time_; }  // half of each round trip

 private:
  [[nodiscard]] Result<> post_receives();  // those that are due
  [[nodiscard]] Result<> post_receive();
  [[nodiscard]] Result<> post_send(size_t bytes);
  [[nodiscard]] Result<> finish(void** request, int* bytes);  // polls until it is done
  [[nodiscard]] Result<> finish_receive(int* bytes);          // the oldest
  [[nodiscard]] Result<> take(int bytes);
  [[nodiscard]] Result<> end_sending(uint64_t empties);
  [[nodiscard]] Result<> end_receiving();
  // Receives that an end has posted after topping up behind so many messages.
  [[nodiscard]] uint64_t posted_behind(uint64_t messages) const {
    const auto step = static_cast<uint64_t>(recv_.batch);
    return static_cast<uint64_t>(recv_.receives) + messages / step * step;
  }
  [[nodiscard]] void*& receiving(uint64_t message) { return receiving_[message % kP2pMaxInflight]; }

  const P2pSession& s_;
  FlowEnd send_, recv_;
  P2pSlots* expected_;
  void* sending_ = nullptr;
  std::array<void*, kP2pMaxInflight> receiving_{};
  uint64_t posted_ = 0, received_ = 0;  // empty ones too
  uint64_t messages_ = 0, errors_ = 0, ended_ = 0;
  double seconds_ = 0;
  Histogram time_;
};

}  // namespace prunex::tools

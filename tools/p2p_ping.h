// SPDX-License-Identifier: Apache-2.0
// One message to and fro between the two ends.
#pragma once
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
  static constexpr double kMostSeconds = 60;
  explicit Stall(const P2pPeer& peer) : peer_(peer) { moved(); }
  void moved() { since_ns_ = 0; }
  [[nodiscard]] Result<> check();

 private:
  const P2pPeer& peer_;
  int64_t since_ns_ = 0, next_look_ns_ = 0;
};

class PingPong {
 public:
  PingPong(const P2pSession& session, const FlowEnd& send, const FlowEnd& recv, P2pSlots* expected)
      : s_(session), send_(send), recv_(recv), expected_(expected) {}

  // Rank 0: as many as asked for, or as long; 0 seconds: no limit. Then tells the other end.
  [[nodiscard]] Result<> serve(uint64_t iters, double seconds);
  [[nodiscard]] Result<> answer();  // rank 1, until it is told

  [[nodiscard]] uint64_t messages() const { return messages_; }
  [[nodiscard]] uint64_t errors() const { return errors_; }
  [[nodiscard]] double seconds() const { return seconds_; }
  [[nodiscard]] const Histogram& time() const { return time_; }  // half of each round trip

 private:
  [[nodiscard]] Result<> post_receive();
  [[nodiscard]] Result<> post_send(size_t bytes);
  [[nodiscard]] Result<> finish(void** request, int* bytes);  // polls until it is done
  [[nodiscard]] Result<> take(int bytes);

  const P2pSession& s_;
  FlowEnd send_, recv_;
  P2pSlots* expected_;
  void *sending_ = nullptr, *receiving_ = nullptr;
  uint64_t messages_ = 0, errors_ = 0;
  double seconds_ = 0;
  Histogram time_;
};

}  // namespace prunex::tools

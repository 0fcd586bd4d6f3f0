// SPDX-License-Identifier: Apache-2.0
// What one end knows of a run, its way to the other end, and what follows from both.
#pragma once
#include <string>
#include <string_view>

#include "tools/p2p.h"

namespace prunex::tools {

// What one end knows of a run; the other end gets it over the peer's connection.
struct EndResult {
  uint64_t sent = 0, received = 0, warmup_done = 0, errors = 0;
  uint64_t ended = 0;  // empty messages that this end has sent to end the run; stays here
  double send_seconds = 0, receive_seconds = 0, density = 1;
  double send_peak = 0, receive_peak = 0;  // messages per second
  Histogram time;
  bool has_kinds = false;
  P2pKinds kinds;  // sent
  uint64_t pack_ns = 0, unpack_ns = 0;
};

[[nodiscard]] std::string encode(const EndResult& result);
[[nodiscard]] bool decode(std::string_view bytes, EndResult& result);

// One direction. sender_clock: see P2pReport.
[[nodiscard]] P2pPart part_of(const P2pSpec& spec, const EndResult& sender,
                              const EndResult& receiver, uint64_t bytes, bool sender_clock);
[[nodiscard]] P2pPart sum_of(const P2pPart& a, const P2pPart& b);

}  // namespace prunex::tools

// SPDX-License-Identifier: Apache-2.0
// What two ends that have met hand to their connection.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "plugin/transport/verbs/board.h"
#include "plugin/transport/verbs/domain.h"
#include "plugin/transport/verbs/queue_pair.h"

namespace prunex::transport::verbs {

// A port of this end joined with one of the other.
struct Rail {
  size_t index = 0;  // among the domain's
  std::shared_ptr<Device> device;
  Device::Partition partition;
  std::unique_ptr<CompletionQueue> queue;
  std::vector<std::unique_ptr<QueuePair>> pairs;
  RailEnd own, peer;
};

// In the id of a write, beside what queue_pair.h has there: about no message.
inline constexpr uint64_t kControlId = uint64_t{1} << 62;

struct Lane {  // a queue pair, as messages see it
  QueuePair* pair;
  size_t rail;
};

struct Parts {
  std::shared_ptr<Domain> domain;
  std::unique_ptr<Board> board;
  std::vector<Rail> rails;            // both ends have them in the same order
  std::vector<std::string> left_out;  // ports of this end that reach none of the other's
  std::unique_ptr<Connection> side;   // over TCP; ends when the other end does
  Endpoint own, peer;
  std::string hello;
};

// A completion that failed, for a person: what, from which port to which, with which settings.
[[nodiscard]] Error explain(const Parts& parts, const Rail& rail, const ibv_wc& entry);

}  // namespace prunex::transport::verbs

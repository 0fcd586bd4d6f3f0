// SPDX-License-Identifier: Apache-2.0
// What an exchange runs on: one rank's place in the world and the resources of its communicator.
// Used by one thread at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/bootstrap/control.h"
#include "plugin/collective/leader_links.h"
#include "plugin/collective/node_memory.h"
#include "plugin/collective/table.h"
#include "plugin/transport/staging.h"
#include "topology/world.h"

namespace prunex::collective {

// Busy times in nanoseconds; stages overlap.
struct StageTimes {
  uint64_t pack = 0, unpack = 0, reduce = 0, inter = 0, agree = 0, total = 0;
};

class PointToPoint;

struct Context {
  topo::World world;
  int rank = 0;
  size_t node = 0, local = 0;
  NodeMemory memory;
  std::vector<transport::Staging> scratch;          // by rail: partial sums of other nodes
  std::vector<std::unique_ptr<LeaderLinks>> links;  // by rail; null where this rank does not lead
  std::vector<size_t> leader_locals;                // by rail, of this node
  Control* control = nullptr;
  Tuning tuning;
  // To be moved by waits; set while the communicator's own thread is in the call.
  PointToPoint* messages = nullptr;
  StageTimes times;
  std::vector<pollfd> fds;  // reused by waits

  [[nodiscard]] size_t local_size() const { return world.nodes[node].ranks.size(); }
  [[nodiscard]] int rank_at(size_t local_index) const {
    return world.nodes[node].ranks[local_index];
  }
  [[nodiscard]] bool leads(size_t rail) const { return leader_locals[rail] == local; }
  [[nodiscard]] bool leads_any() const {
    for (size_t r = 0; r < leader_locals.size(); ++r) {
      if (leads(r)) {
        return true;
      }
    }
    return false;
  }
};

// The error that every survivor returns, from the common verdict.
[[nodiscard]] Error to_error(const Verdict& verdict);

// Says who did not do what, and which deadline that was.
[[nodiscard]] Error late_error(int rank, const char* what, double timeout_s);

// Adds the time of its scope to a stage.
class Timed {
 public:
  explicit Timed(uint64_t& stage) : stage_(stage), begin_(now_ns()) {}
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() { stage_ += static_cast<uint64_t>(now_ns() - begin_); }

 private:
  uint64_t& stage_;
  int64_t begin_;
};

}  // namespace prunex::collective

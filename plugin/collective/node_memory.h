// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of one node share during collectives: slots for data in flight and
// counters that say how far each rank is. Counters count chunks since the communicator was created
// and never go back, so a slot's state follows from comparing two numbers.
#pragma once
#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/fd.h"
#include "plugin/base/result.h"
#include "plugin/collective/call.h"
#include "plugin/transport/shm/segment.h"

namespace prunex::collective {

using Counter = std::atomic<uint64_t>;
static_assert(Counter::is_always_lock_free);

// Written by its rank, read by all of the node. One cache line per counter that others spin on.
struct RankBlock {
  alignas(64) Counter packed{0};     // chunks in the rank's input slots
  alignas(64) Counter reduced{0};    // chunks whose shard the rank has added up
  alignas(64) Counter unpacked{0};   // chunks that the rank has taken from the output slots
  alignas(64) Counter audit{0};      // turn * 4 + Audit
  Counter header_turn{0};            // `header` is that of this turn
  Counter mailed{0}, mail_taken{0};  // gathers inside the node: written, read
  std::atomic<uint32_t> polling{0};  // a leader sleeps in poll(): wake it through its FIFO
  std::atomic<uint32_t> closed{0};
  std::byte header[CallHeader::kWireBytes]{};
};

enum class Go : uint8_t { undecided = 0, go = 1, differ = 2 };

// Written by the leader of a rail.
struct LeaderBlock {
  alignas(64) Counter finished{
      0};  // chunks of this rail whose result is in the output slot, in order
  alignas(64) Counter released{0};  // … whose sends have left the slots
  alignas(64) Counter verdict{0};   // turn * 4 + Go; rail 0 only
  Counter commit{0};                // turn * 4 + Audit; rail 0 only
};

struct NodeShape {
  size_t local_size = 1, rails = 1;
  size_t slots = 8;  // chunks in flight
  size_t slot_bytes = 256 * 1024;
  [[nodiscard]] size_t bytes() const;
};

class NodeMemory {
 public:
  // Creates the segment (one rank per node), or joins it by name. A node of one rank needs no name.
  [[nodiscard]] static Result<NodeMemory> create(const NodeShape& shape);
  [[nodiscard]] static Result<NodeMemory> attach(const std::string& name, const NodeShape& shape);

  // Leaders sleep in poll(), where a futex cannot wake them: each has a FIFO beside the segment.
  // First every leader makes its own, then everybody opens all, then the names go away.
  [[nodiscard]] Result<> make_fifo(size_t local);
  [[nodiscard]] Result<> open_fifos(const std::vector<size_t>& leaders);
  void unlink_names(size_t local);

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(segment_); }
  [[nodiscard]] const NodeShape& shape() const { return shape_; }
  [[nodiscard]] const std::string& name() const { return segment_.name(); }
  [[nodiscard]] RankBlock& rank(size_t local) const;
  [[nodiscard]] LeaderBlock& leader(size_t rail) const;
  [[nodiscard]] std::byte* input(size_t local, size_t slot) const;
  [[nodiscard]] std::byte* sum(size_t slot) const;
  [[nodiscard]] std::byte* output(size_t slot) const;
  // All sums and outputs: what leaders send and receive.
  [[nodiscard]] std::span<std::byte> exchanged() const;

  // Tells everybody on the node that some counter moved.
  void ring();
  [[nodiscard]] uint32_t bell() const;
  // Sleeps until the bell no longer says `seen`, or `ns` have passed.
  void sleep(uint32_t seen, int64_t ns);
  // The same for the leader `local`, who also waits for file descriptors; fds gets its FIFO added.
  void poll(size_t local, uint32_t seen, std::vector<pollfd>& fds, int64_t ns);

  // The first culprit that somebody on the node found or heard of; -1: none.
  struct Culprit {
    int rank = -1;
    bool late = false;  // it did not come in time; otherwise it is lost
  };
  [[nodiscard]] Culprit culprit() const;
  void set_culprit(Culprit culprit);

 private:
  struct Head;
  [[nodiscard]] Head& head() const;
  [[nodiscard]] std::byte* at(size_t offset) const { return segment_.data() + offset; }

  NodeShape shape_;
  transport::shm::Segment segment_;
  std::vector<Fd> fifos_;  // by local rank; only leaders' are open
};

}  // namespace prunex::collective

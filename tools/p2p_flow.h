// SPDX-License-Identifier: Apache-2.0
// Messages in one direction, as NCCL's progress thread moves them: several in flight over slots
// that are used again, completions in order, everything by polling. The sender decides when it is
// enough, and says so by empty messages, one for every receive that may be posted.
#pragma once
#include <array>
#include <cstdint>

#include "plugin/base/result.h"
#include "tools/net_api.h"
#include "tools/p2p_data.h"
#include "tools/p2p_stats.h"

namespace prunex::tools {

struct FlowEnd {
  NetApi* api = nullptr;
  void* comm = nullptr;
  void* mr = nullptr;
  P2pSlots* slots = nullptr;
  int slot_count = 1;
  int inflight = 1;      // sends that are posted at a time
  int receives = 1;      // receives that are; they may share slots
  int batch = 1;         // of which so many are looked after together
  bool in_turn = false;  // each is looked for: the network may take no look at a later one
  uint64_t window = 1;   // messages at least, for the peak of what arrives
  bool check = false;

  [[nodiscard]] std::byte* slot(uint64_t message) const { return slots->slot(message, slot_count); }
  // Empty messages behind so many: the receives that are posted then, and to a whole batch.
  [[nodiscard]] uint64_t empties(uint64_t messages) const {
    const auto least = static_cast<uint64_t>(receives), step = static_cast<uint64_t>(batch);
    return least + (step - (messages + least) % step) % step;
  }
};

class SendFlow {
 public:
  // Until `iters` messages are out or, if `until_ns` is not 0, until then.
  void start(const FlowEnd& end, uint64_t iters, int64_t until_ns);
  // Posts and tests what it can. true: something happened.
  [[nodiscard]] Result<bool> step();
  [[nodiscard]] bool done() const { return ending_ && completed_ == posted_ && empties_ == 0; }
  [[nodiscard]] uint64_t messages() const { return messages_; }
  [[nodiscard]] uint64_t ended() const { return end_.empties(messages_); }  // once it is done
  [[nodiscard]] const Histogram& time() const { return time_; }  // from posting to completion
  // From the first posting to the last completion.
  [[nodiscard]] double seconds() const { return static_cast<double>(last_ns_ - first_ns_) * 1e-9; }
  [[nodiscard]] double peak_per_second() const { return peak_.per_second(); }

 private:
  [[nodiscard]] Result<bool> post();
  [[nodiscard]] Result<bool> reap();
  [[nodiscard]] bool enough() const;

  FlowEnd end_;
  uint64_t iters_ = 0;
  int64_t until_ns_ = 0;
  uint64_t posted_ = 0, completed_ = 0, messages_ = 0;
  uint64_t empties_ = 0;  // still to be sent
  bool ending_ = false;
  struct Slot {
    void* request = nullptr;
    int64_t posted_ns = 0;
    bool empty = false;
  };
  std::array<Slot, kP2pMaxInflight> slots_{};
  int64_t first_ns_ = 0, last_ns_ = 0;
  Histogram time_;
  PeakRate peak_;
};

class RecvFlow {
 public:
  // expected: null, or the sender's messages, to check every byte.
  void start(const FlowEnd& end, P2pSlots* expected);
  [[nodiscard]] Result<bool> step();
  [[nodiscard]] bool done() const { return empties_ > 0 && empties_ == end_.empties(messages_); }
  [[nodiscard]] uint64_t messages() const { return messages_; }
  [[nodiscard]] uint64_t errors() const { return errors_; }
  [[nodiscard]] double seconds() const;  // from the start to the last message
  [[nodiscard]] double peak_per_second() const { return peak_.per_second(); }

 private:
  struct Slot {
    void* request = nullptr;
    int64_t since_ns = 0;  // all that had come before had been taken then
    int bytes = -1;        // -1: not here yet
  };
  [[nodiscard]] Slot& slot_of(uint64_t message) {
    return slots_[message % static_cast<uint64_t>(end_.receives)];
  }
  [[nodiscard]] Result<bool> post();
  [[nodiscard]] Result<bool> look(uint64_t message);  // has it come?
  [[nodiscard]] Result<bool> take();
  [[nodiscard]] Result<> arrived(const Slot& slot, int64_t now);

  FlowEnd end_;
  P2pSlots* expected_ = nullptr;
  uint64_t posted_ = 0, completed_ = 0, messages_ = 0, errors_ = 0;
  uint64_t empties_ = 0;
  int64_t start_ns_ = 0, last_ns_ = 0;
  int64_t since_ns_ = 0;  // when all that had come was taken
  bool fresh_ = false;    // something has come since then
  std::array<Slot, kP2pMaxInflight> slots_{};
  PeakRate peak_;
};

}  // namespace prunex::tools

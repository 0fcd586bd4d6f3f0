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
  int inflight = 1;
  bool check = false;
};

class SendFlow {
 public:
  // Until `iters` messages are out or, if `until_ns` is not 0, until then.
  void start(const FlowEnd& end, uint64_t iters, int64_t until_ns);
  // Posts and tests what it can. true: something happened.
  [[nodiscard]] Result<bool> step();
  [[nodiscard]] bool done() const { return ending_ && completed_ == posted_ && empties_ == 0; }
  [[nodiscard]] uint64_t messages() const { return messages_; }
  [[nodiscard]] const Histogram& time() const { return time_; }  // from posting to completion

 private:
  [[nodiscard]] Result<bool> post();
  [[nodiscard]] Result<bool> reap();
  [[nodiscard]] bool enough() const;

  FlowEnd end_;
  uint64_t iters_ = 0;
  int64_t until_ns_ = 0;
  uint64_t posted_ = 0, completed_ = 0, messages_ = 0;
  int empties_ = 0;  // still to be sent
  bool ending_ = false;
  struct Slot {
    void* request = nullptr;
    int64_t posted_ns = 0;
    bool empty = false;
  };
  std::array<Slot, kP2pMaxInflight> slots_{};
  Histogram time_;
};

class RecvFlow {
 public:
  // expected: null, or the sender's messages, to check every byte.
  void start(const FlowEnd& end, P2pSlots* expected);
  [[nodiscard]] Result<bool> step();
  [[nodiscard]] bool done() const { return empties_ == end_.inflight; }
  [[nodiscard]] uint64_t messages() const { return messages_; }
  [[nodiscard]] uint64_t errors() const { return errors_; }
  [[nodiscard]] double seconds() const;  // from the start to the last message

 private:
  [[nodiscard]] Result<bool> post();
  [[nodiscard]] Result<> arrived(size_t bytes);

  FlowEnd end_;
  P2pSlots* expected_ = nullptr;
  uint64_t posted_ = 0, completed_ = 0, messages_ = 0, errors_ = 0;
  int empties_ = 0;
  int64_t start_ns_ = 0, last_ns_ = 0;
  std::array<void*, kP2pMaxInflight> requests_{};
};

}  // namespace prunex::tools

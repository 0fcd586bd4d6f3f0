// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p_flow.h"

#include <algorithm>
#include <cstring>

#include "plugin/base/clock.h"

namespace prunex::tools {

void SendFlow::start(const FlowEnd& end, uint64_t iters, int64_t until_ns) {
  *this = SendFlow();
  end_ = end;
  iters_ = iters;
  until_ns_ = until_ns;
}

bool SendFlow::enough() const {
  return messages_ >= iters_ || (until_ns_ != 0 && now_ns() >= until_ns_);
}

Result<bool> SendFlow::post() {
  bool moved = false;
  while (posted_ - completed_ < static_cast<uint64_t>(end_.inflight)) {
    if (!ending_ && enough()) {
      ending_ = true;
      empties_ = end_.empties(messages_);
    }
    if (ending_ && empties_ == 0) {
      break;
    }
    Slot& slot = slots_[posted_ % static_cast<uint64_t>(end_.inflight)];
    std::byte* const data = end_.slot(posted_);
    if (end_.check && !ending_) {
      stamp(data, end_.slots->bytes, posted_);
    }
    slot.empty = ending_;
    slot.posted_ns = now_ns();
    const size_t bytes = ending_ ? 0 : end_.slots->bytes;
    if (const int r = end_.api->isend(end_.comm, data, bytes, end_.mr, &slot.request); r != 0) {
      return tl::unexpected(net_error(*end_.api, "isend", r));
    }
    if (slot.request == nullptr) {
      break;
    }
    if (posted_ == 0) {
      first_ns_ = last_ns_ = slot.posted_ns;
    }
    ++posted_;
    ending_ ? (void)--empties_ : (void)++messages_;
    moved = true;
  }
  return moved;
}

Result<bool> SendFlow::reap() {
  bool moved = false;
  while (completed_ < posted_) {
    const Slot& slot = slots_[completed_ % static_cast<uint64_t>(end_.inflight)];
    int done = 0;
    if (const int r = end_.api->test(slot.request, &done, nullptr); r != 0) {
      return tl::unexpected(net_error(*end_.api, "test of a send", r));
    }
    if (done == 0) {
      break;
    }
    if (!slot.empty) {
      last_ns_ = now_ns();
      time_.add(last_ns_ - slot.posted_ns);
      peak_.add(slot.posted_ns, last_ns_);
    }
    ++completed_;
    moved = true;
  }
  return moved;
}

Result<bool> SendFlow::step() {
  auto posted = post();
  if (!posted) {
    return posted;
  }
  auto reaped = reap();
  return reaped ? Result<bool>(*posted || *reaped) : reaped;
}

void RecvFlow::start(const FlowEnd& end, P2pSlots* expected) {
  *this = RecvFlow();
  end_ = end;
  expected_ = expected;
  peak_ = PeakRate(end.window);
  start_ns_ = last_ns_ = since_ns_ = now_ns();
}

double RecvFlow::seconds() const { return static_cast<double>(last_ns_ - start_ns_) * 1e-9; }

Result<bool> RecvFlow::post() {
  bool moved = false;
  const uint64_t target = empties_ > 0 ? messages_ + end_.empties(messages_)
                                       : completed_ + static_cast<uint64_t>(end_.receives);
  while (posted_ < target) {
    std::byte* const data = end_.slot(posted_);
    if (end_.check) {
      std::memset(data, 0xA5, end_.slots->bytes);
    }
    Slot& slot = slot_of(posted_);
    if (const int r = end_.api->irecv(end_.comm, data, end_.slots->bytes, end_.mr, &slot.request);
        r != 0) {
      return tl::unexpected(net_error(*end_.api, "irecv", r));
    }
    if (slot.request == nullptr) {
      break;
    }
    slot.since_ns = since_ns_;
    slot.bytes = -1;
    ++posted_;
    moved = true;
  }
  return moved;
}

Result<> RecvFlow::arrived(const Slot& slot, int64_t now) {
  if (slot.bytes == 0) {
    ++empties_;
    return {};
  }
  if (static_cast<size_t>(slot.bytes) != end_.slots->bytes) {
    return fail(Code::internal,
                strf("message %llu has %d bytes instead of %zu",
                     static_cast<unsigned long long>(messages_), slot.bytes, end_.slots->bytes));
  }
  last_ns_ = now;
  peak_.add(slot.since_ns, now);
  if (expected_ != nullptr) {
    errors_ += wrong_bytes(end_.slot(completed_), expected_->slot(completed_, end_.slot_count),
                           end_.slots->bytes, completed_);
  }
  ++messages_;
  return {};
}

Result<bool> RecvFlow::look(uint64_t message) {
  Slot& slot = slot_of(message);
  if (slot.bytes < 0) {
    int finished = 0, bytes = 0;
    if (const int r = end_.api->test(slot.request, &finished, &bytes); r != 0) {
      return tl::unexpected(net_error(*end_.api, "test of a receive", r));
    }
    slot.bytes = finished != 0 ? bytes : -1;
  }
  return slot.bytes >= 0;
}

// The next batch, if it is here: once its last one is, the others are.
Result<bool> RecvFlow::take() {
  const uint64_t end = std::min(completed_ + static_cast<uint64_t>(end_.batch), posted_);
  auto here = look(end_.in_turn ? completed_ : end - 1);
  for (uint64_t next = completed_ + 1; end_.in_turn && here && *here && next < end; ++next) {
    here = look(next);
  }
  const int64_t now = here && *here ? now_ns() : 0;
  for (; here && *here && completed_ < end; ++completed_) {
    here = look(completed_);
    if (here && *here) {
      if (auto fine = arrived(slot_of(completed_), now); !fine) {
        return tl::unexpected(fine.error());
      }
    } else {
      break;
    }
  }
  return here;
}

Result<bool> RecvFlow::step() {
  auto moved = post();
  while (moved && completed_ < posted_ && !done()) {
    const auto taken = take();
    if (!taken) {
      return taken;
    }
    if (!*taken) {
      if (fresh_) {
        since_ns_ = now_ns();
        fresh_ = false;
      }
      break;
    }
    fresh_ = *moved = true;
  }
  return moved;
}

}  // namespace prunex::tools

// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p_flow.h"

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
      empties_ = end_.inflight;
    }
    if (ending_ && empties_ == 0) {
      break;
    }
    Slot& slot = slots_[posted_ % static_cast<uint64_t>(end_.inflight)];
    std::byte* const data = end_.slots->slot(posted_, end_.inflight);
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
      time_.add(now_ns() - slot.posted_ns);
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
  start_ns_ = last_ns_ = now_ns();
}

double RecvFlow::seconds() const { return static_cast<double>(last_ns_ - start_ns_) * 1e-9; }

Result<bool> RecvFlow::post() {
  bool moved = false;
  const auto inflight = static_cast<uint64_t>(end_.inflight);
  const uint64_t target = empties_ > 0 ? messages_ + inflight : completed_ + inflight;
  while (posted_ < target) {
    std::byte* const data = end_.slots->slot(posted_, end_.inflight);
    if (end_.check) {
      std::memset(data, 0xA5, end_.slots->bytes);
    }
    void** const request = &requests_[posted_ % inflight];
    if (const int r = end_.api->irecv(end_.comm, data, end_.slots->bytes, end_.mr, request);
        r != 0) {
      return tl::unexpected(net_error(*end_.api, "irecv", r));
    }
    if (*request == nullptr) {
      break;
    }
    ++posted_;
    moved = true;
  }
  return moved;
}

Result<> RecvFlow::arrived(size_t bytes) {
  if (bytes == 0) {
    ++empties_;
    return {};
  }
  if (bytes != end_.slots->bytes) {
    return fail(Code::internal,
                strf("message %llu has %zu bytes instead of %zu",
                     static_cast<unsigned long long>(messages_), bytes, end_.slots->bytes));
  }
  last_ns_ = now_ns();
  if (expected_ != nullptr) {
    errors_ += wrong_bytes(end_.slots->slot(completed_, end_.inflight),
                           expected_->slot(completed_, end_.inflight), bytes, completed_);
  }
  ++messages_;
  return {};
}

Result<bool> RecvFlow::step() {
  auto moved = post();
  if (!moved) {
    return moved;
  }
  while (completed_ < posted_ && !done()) {
    int finished = 0, bytes = 0;
    void* const request = requests_[completed_ % static_cast<uint64_t>(end_.inflight)];
    if (const int r = end_.api->test(request, &finished, &bytes); r != 0) {
      return tl::unexpected(net_error(*end_.api, "test of a receive", r));
    }
    if (finished == 0) {
      break;
    }
    if (auto fine = arrived(static_cast<size_t>(bytes)); !fine) {
      return tl::unexpected(fine.error());
    }
    ++completed_;
    *moved = true;
  }
  return moved;
}

}  // namespace prunex::tools

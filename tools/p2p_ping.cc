// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p_ping.h"

#include <sched.h>

#include <cstring>

namespace prunex::tools {
namespace {

constexpr int kIdleLooks = 16;  // as NCCL, which lends the processor out after each

}  // namespace

Result<> Stall::check() {
  const int64_t now = now_ns();
  if (since_ns_ == 0) {
    since_ns_ = now;
    next_look_ns_ = now + kLookNs;
  }
  if (now < next_look_ns_) {
    return {};
  }
  next_look_ns_ = now + kLookNs;
  if (peer_.gone()) {
    return fail(Code::peer_lost, "the other end of the benchmark has ended; it says why");
  }
  if (static_cast<double>(now - since_ns_) > kMostSeconds * 1e9) {
    return fail(Code::timeout, strf("no message has come or gone for %g s", kMostSeconds));
  }
  return {};
}

Result<> PingPong::post_receive() {
  std::byte* const data = recv_.slots->slot(0, 1);
  if (recv_.check) {
    std::memset(data, 0xA5, recv_.slots->bytes);
  }
  Stall stall(s_.peer);
  while (receiving_ == nullptr) {
    if (const int r = recv_.api->irecv(recv_.comm, data, recv_.slots->bytes, recv_.mr, &receiving_);
        r != 0) {
      return tl::unexpected(net_error(*recv_.api, "irecv", r));
    }
    if (auto fine = receiving_ == nullptr ? stall.check() : Result<>(); !fine) {
      return fine;
    }
  }
  return {};
}

Result<> PingPong::post_send(size_t bytes) {
  std::byte* const data = send_.slots->slot(0, 1);
  if (send_.check && bytes > 0) {
    stamp(data, bytes, messages_);
  }
  Stall stall(s_.peer);
  while (sending_ == nullptr) {
    if (const int r = send_.api->isend(send_.comm, data, bytes, send_.mr, &sending_); r != 0) {
      return tl::unexpected(net_error(*send_.api, "isend", r));
    }
    if (auto fine = sending_ == nullptr ? stall.check() : Result<>(); !fine) {
      return fine;
    }
  }
  return {};
}

Result<> PingPong::finish(void** request, int* bytes) {
  Stall stall(s_.peer);
  NetApi& api = *send_.api;
  for (int looks = 1;; ++looks) {
    int done = 0;
    if (const int r = api.test(*request, &done, bytes); r != 0) {
      return tl::unexpected(net_error(api, "test", r));
    }
    if (done != 0) {
      *request = nullptr;
      return {};
    }
    if (looks % kIdleLooks == 0) {
      if (auto fine = stall.check(); !fine) {
        return fine;
      }
      ::sched_yield();
    }
  }
}

Result<> PingPong::take(int bytes) {
  if (static_cast<size_t>(bytes) != recv_.slots->bytes) {
    return fail(Code::internal,
                strf("a message has %d bytes instead of %zu", bytes, recv_.slots->bytes));
  }
  if (expected_ != nullptr) {
    errors_ +=
        wrong_bytes(recv_.slots->slot(0, 1), expected_->slot(0, 1), recv_.slots->bytes, messages_);
  }
  ++messages_;
  return {};
}

Result<> PingPong::serve(uint64_t iters, double seconds) {
  const int64_t begin = now_ns();
  const Deadline deadline = Deadline::after(seconds);
  int64_t last = begin;
  while (messages_ < iters && (seconds <= 0 || last < deadline.at_ns())) {
    if (auto posted = post_receive(); !posted) {
      return posted;
    }
    const int64_t from = now_ns();
    int bytes = 0;
    auto done = post_send(send_.slots->bytes);
    done = done ? finish(&sending_, nullptr) : done;
    done = done ? finish(&receiving_, &bytes) : done;
    if (!done) {
      return done;
    }
    last = now_ns();
    time_.add((last - from) / 2);
    if (auto fine = take(bytes); !fine) {
      return fine;
    }
  }
  seconds_ = static_cast<double>(last - begin) * 1e-9;
  auto ended = post_send(0);
  return ended ? finish(&sending_, nullptr) : ended;
}

Result<> PingPong::answer() {
  const int64_t begin = now_ns();
  for (;;) {
    int bytes = 0;
    auto done = post_receive();
    done = done ? finish(&receiving_, &bytes) : done;
    if (!done || bytes == 0) {
      return done;
    }
    seconds_ = static_cast<double>(now_ns() - begin) * 1e-9;
    const uint64_t number = messages_;
    if (auto fine = take(bytes); !fine) {
      return fine;
    }
    messages_ = number;  // its answer has the same number
    done = post_send(send_.slots->bytes);
    messages_ = number + 1;
    done = done ? finish(&sending_, nullptr) : done;
    if (!done) {
      return done;
    }
  }
}

}  // namespace prunex::tools

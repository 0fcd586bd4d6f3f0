// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p_ping.h"

#include <sched.h>

#include <cstring>

namespace prunex::tools {
namespace {

constexpr int kIdleLooks = 16;  // between two looks at the clock
// As perftest, which never lends the processor out. Much longer waits do: two ends may share one.
constexpr int64_t kSpinNs = 1'000'000;

}  // namespace

Result<> Stall::check() {
  const int64_t now = now_ns();
  if (since_ns_ == 0) {
    since_ns_ = now;
    next_look_ns_ = now + kLookNs;
  }
  waited_ns_ = now - since_ns_;
  if (now < next_look_ns_) {
    return {};
  }
  next_look_ns_ = now + kLookNs;
  if (peer_.gone()) {
    return fail(Code::peer_lost, "the other end of the benchmark has ended; it says why");
  }
  if (static_cast<double>(waited_ns_) > peer_.patience_s() * 1e9) {
    return fail(Code::timeout,
                strf("no message has come or gone for %g s: is the other end stopped, or the "
                     "network between the devices cut? PRUNEX_TIMEOUT is how long to wait, 60 s at "
                     "most",
                     peer_.patience_s()));
  }
  return {};
}

Result<> PingPong::post_receives() {
  while (posted_ < posted_behind(messages_)) {
    if (auto posted = post_receive(); !posted) {
      return posted;
    }
  }
  return {};
}

Result<> PingPong::post_receive() {
  std::byte* const data = recv_.slot(posted_);
  if (recv_.check) {
    std::memset(data, 0xA5, recv_.slots->bytes);
  }
  void*& request = receiving(posted_);
  Stall stall(s_.peer);
  while (request == nullptr) {
    if (const int r = recv_.api->irecv(recv_.comm, data, recv_.slots->bytes, recv_.mr, &request);
        r != 0) {
      return tl::unexpected(net_error(*recv_.api, "irecv", r));
    }
    if (auto fine = request == nullptr ? stall.check() : Result<>(); !fine) {
      return fine;
    }
  }
  ++posted_;
  return {};
}

// A message has the number of those before it in its direction.
Result<> PingPong::post_send(size_t bytes) {
  const uint64_t number = s_.rank == 0 ? messages_ : messages_ - 1;
  std::byte* const data = send_.slot(number);
  if (send_.check && bytes > 0) {
    stamp(data, bytes, number);
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
      if (stall.waited_ns() > kSpinNs) {
        ::sched_yield();
      }
    }
  }
}

Result<> PingPong::finish_receive(int* bytes) {
  auto done = finish(&receiving(received_), bytes);
  received_ += done ? 1 : 0;
  return done;
}

Result<> PingPong::take(int bytes) {
  if (static_cast<size_t>(bytes) != recv_.slots->bytes) {
    return fail(Code::internal,
                strf("a message has %d bytes instead of %zu", bytes, recv_.slots->bytes));
  }
  if (expected_ != nullptr) {
    errors_ += wrong_bytes(recv_.slot(messages_), expected_->slot(messages_, recv_.slot_count),
                           recv_.slots->bytes, messages_);
  }
  ++messages_;
  return {};
}

Result<> PingPong::end_sending(uint64_t empties) {
  Result<> done;
  for (; done && ended_ < empties; ++ended_) {
    done = post_send(0);
    done = done ? finish(&sending_, nullptr) : done;
  }
  return done;
}

Result<> PingPong::end_receiving() {
  Result<> done;
  while (done && received_ < posted_) {
    int bytes = 0;
    done = finish_receive(&bytes);
    if (done && bytes != 0) {
      done = fail(Code::internal, strf("a message of %d bytes has come after the last", bytes));
    }
  }
  return done;
}

Result<> PingPong::serve(uint64_t iters, double seconds) {
  if (auto posted = post_receives(); !posted) {
    return posted;
  }
  const int64_t begin = now_ns();
  const Deadline deadline = Deadline::after(seconds);
  int64_t last = begin;
  while (messages_ < iters && (seconds <= 0 || last < deadline.at_ns())) {
    const int64_t from = now_ns();
    int bytes = 0;
    auto done = post_send(send_.slots->bytes);
    done = done ? post_receives() : done;
    done = done ? finish(&sending_, nullptr) : done;
    done = done ? finish_receive(&bytes) : done;
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
  auto ended = end_sending(posted_behind(messages_) - messages_);
  return ended ? end_receiving() : ended;
}

Result<> PingPong::answer() {
  const int64_t begin = now_ns();
  auto done = post_receives();
  while (done) {
    int bytes = 0;
    done = finish_receive(&bytes);
    if (!done || bytes == 0) {
      break;
    }
    seconds_ = static_cast<double>(now_ns() - begin) * 1e-9;
    done = take(bytes);
    done = done ? post_send(send_.slots->bytes) : done;
    done = done ? post_receives() : done;
    done = done ? finish(&sending_, nullptr) : done;
  }
  done = done ? end_receiving() : done;
  // Rank 0 has topped up its own before its last message, not behind it.
  return done ? end_sending(posted_behind(messages_ > 0 ? messages_ - 1 : 0) - messages_) : done;
}

}  // namespace prunex::tools

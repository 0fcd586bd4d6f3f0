// SPDX-License-Identifier: Apache-2.0
// The reading half of a socket connection.
#include <algorithm>

#include "plugin/base/copy.h"
#include "plugin/base/sockets.h"
#include "plugin/transport/socket/connection.h"
#include "plugin/transport/socket/tuning.h"

namespace prunex::transport {
namespace {

// Streams other than the first are looked at in every round while something arrives there, and in
// every kIdleStride-th when nothing did for kIdleRounds: small messages must not pay for them.
constexpr int kIdleRounds = 256;
constexpr int kIdleStride = 32;

// a comes before b, also across the wrap; they are less than 2^31 apart.
bool before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

}  // namespace

bool SocketConnection::receive_some() {
  size_t budget = kProgressBudget;
  idle_rounds_ = std::min(idle_rounds_ + 1, 1 << 20);
  const bool look_at_all = slept_ || idle_rounds_ < kIdleRounds || idle_rounds_ % kIdleStride == 0;
  const size_t n = look_at_all ? streams_.size() : 1;
  bool moved = false;
  for (size_t i = 0; i < n && budget > 0 && !failed_; ++i) {
    const size_t at = (turn_ + i) % n;
    if (receive(streams_[at], &budget)) {
      moved = true;
      idle_rounds_ = at == 0 ? idle_rounds_ : 0;
    }
  }
  if (moved) {
    check_closed();
  }
  return moved;
}

// Takes what is staged and reads more while the budget lasts. Afterwards nothing is left in the
// stage that a posted receive waits for: a stage shows on no descriptor. true: something came.
bool SocketConnection::receive(Stream& stream, size_t* budget) {
  bool moved = false, drained = false;
  while (!failed_) {
    Intake::Read how = Intake::Read::all;
    int error = 0;
    if (!stream.has_header && !read_header(stream)) {
      if (failed_ || drained || stream.ended || *budget == 0) {
        return moved;
      }
      how = stream.intake.fill(stream.fd.get(), &error);
    } else {
      RecvOp* op = operation_of(stream);
      stream.paused = op == nullptr;
      if (op == nullptr || (!stream.admitted && !admit(stream, *op))) {
        return moved;
      }
      const size_t placed = place(stream, *op, drained || stream.ended ? 0 : *budget, &how, &error);
      *budget -= std::min(*budget, placed);
      moved = moved || placed > 0;
      if (stream.done == stream.header.length) {
        stream.has_header = false;
        moved = true;
        advance();
      } else if (drained || *budget == 0) {
        return moved;
      }
    }
    switch (how) {
      case Intake::Read::all:
        break;
      case Intake::Read::part:
        drained = true;
        moved = true;
        break;
      case Intake::Read::again:
        return moved;
      case Intake::Read::closed:
      case Intake::Read::broken:
        end_of(stream, error);
        return true;
    }
  }
  return moved;
}

// false: not all of it is there yet, or it is none (failed).
bool SocketConnection::read_header(Stream& stream) {
  const auto staged = stream.intake.staged();
  if (staged.size() < kFragmentBytes) {
    return false;
  }
  if (!decode_fragment(staged.first<kFragmentBytes>(), &stream.header) ||
      before(stream.header.sequence, first_pending_)) {
    break_with(
        Code::mismatch,
        strf("%s sent bytes that are no message header (kind %u, flags %u, sequence %u): the "
             "stream was damaged, or the two ends run different builds",
             peer_.c_str(), unsigned{stream.header.kind}, unsigned{stream.header.flags},
             stream.header.sequence));
    return false;
  }
  stream.intake.drop(kFragmentBytes);
  stream.has_header = true;
  stream.admitted = false;
  stream.done = 0;
  return true;
}

SocketConnection::RecvOp* SocketConnection::operation_of(const Stream& stream) {
  const uint32_t sequence = stream.header.sequence;
  return before(sequence, next_receive_) ? &receives_[order_[sequence % kMaxInFlight]] : nullptr;
}

// The first sight of a message: does it fit the receive, and where does it go? false: failed.
bool SocketConnection::announce(const FragmentHeader& header, RecvOp& op) {
  const auto bytes = static_cast<size_t>(header.message);
  if ((header.flags & kAside) != 0) {
    op.data = op.aside == nullptr ? nullptr : static_cast<std::byte*>(op.aside->room(bytes).memory);
    op.capacity = op.data == nullptr ? 0 : bytes;
  }
  if (bytes > op.capacity || ((header.flags & kAside) != 0 && op.data == nullptr)) {
    break_with(Code::mismatch,
               strf("%s sent a message of %zu bytes into a receive of %zu bytes%s", peer_.c_str(),
                    bytes, op.capacity, (header.flags & kAside) != 0 ? " aside" : ""));
    return false;
  }
  op.announced = true;
  op.message = header.message;
  op.mark = header.flags;
  return true;
}

// The first sight of a fragment: does it fit its message? false: no (failed).
bool SocketConnection::admit(Stream& stream, RecvOp& op) {
  const FragmentHeader& h = stream.header;
  if (!op.announced && !announce(h, op)) {
    return false;
  }
  if (op.message != h.message || op.mark != h.flags || h.length > op.message - op.claimed) {
    break_with(Code::mismatch,
               strf("%s sent fragments that contradict each other (messages of %zu and %zu bytes): "
                    "the stream was damaged, or the two ends run different builds",
                    peer_.c_str(), op.message, static_cast<size_t>(h.message)));
    return false;
  }
  op.claimed += h.length;
  stream.admitted = true;
  return true;
}

// Moves payload of the current fragment to its place, from the stage and then from the kernel.
size_t SocketConnection::place(Stream& stream, RecvOp& op, size_t budget, Intake::Read* how,
                               int* error) {
  const size_t before_this = stream.done;
  std::byte* to = op.data + stream.header.offset;
  const auto staged = stream.intake.staged();
  const size_t here = std::min(staged.size(), stream.header.length - stream.done);
  if (here > 0) {
    copy_ascending(to + stream.done, staged.data(), here);
    stream.intake.drop(here);
    stream.done += here;
  }
  const size_t left = stream.header.length - stream.done;
  if (left > 0 && budget > 0) {
    const size_t want = std::min(left, budget);
    size_t got = 0;
    *how =
        stream.intake.direct(stream.fd.get(), {to + stream.done, want}, want == left, &got, error);
    stream.done += got;
  }
  op.received += stream.done - before_this;
  arrived_ += stream.done - before_this;
  return stream.done - before_this;
}

// Receives are done in the order in which they were posted.
void SocketConnection::advance() {
  while (first_pending_ != next_receive_) {
    RecvOp& op = receives_[order_[first_pending_ % kMaxInFlight]];
    if (!op.announced || op.received < op.message) {
      return;
    }
    op.done = true;
    ++first_pending_;
  }
}

void SocketConnection::end_of(Stream& stream, int error) {
  if (error != 0) {
    break_with(Code::peer_lost,
               strf("receiving from %s failed: %s; %s", peer_.c_str(), errno_text(error).c_str(),
                    cause_of(error)),
               error);
    return;
  }
  stream.ended = true;
  const size_t staged = stream.intake.staged().size();
  if (stream.has_header || staged > 0) {
    break_with(Code::peer_lost, strf("%s has ended in the middle of a message (%zu bytes of it "
                                     "arrived): the process died or gave up",
                                     peer_.c_str(), stream.has_header ? stream.done : staged));
  }
}

// Before a connection breaks: what has arrived for the receives that are posted is still theirs.
void SocketConnection::drain() {
  for (Stream& s : streams_) {
    for (size_t budget = kProgressBudget; !failed_ && !s.ended && receive(s, &budget);) {
      budget = kProgressBudget;
    }
  }
}

}  // namespace prunex::transport

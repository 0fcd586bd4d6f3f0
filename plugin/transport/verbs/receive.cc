// SPDX-License-Identifier: Apache-2.0
// The receiving half of a connection.
#include <algorithm>
#include <cstring>
#include <utility>

#include "plugin/transport/verbs/connection.h"

namespace prunex::transport::verbs {
namespace {

constexpr uint32_t kTellAfter = 16;  // eager places that are free and not yet said to be
// Long receives whose credits are out: with as many, further ones wait for company.
constexpr int kEnoughOut = 4;

}  // namespace

Io VerbsConnection::irecv(void* data, size_t capacity, const Region* region, Ticket* out,
                          Aside* aside) {
  if (failed_) {
    return Io::failed;
  }
  if (due_count_ > kDuePlaces / 2) {
    return Io::again;
  }
  const int slot = receives_.take();
  if (slot < 0) {
    return Io::again;
  }
  RecvOp& op = receives_[slot];
  op.data = static_cast<std::byte*>(data);
  op.capacity = capacity;
  op.aside = aside;
  op.sequence = next_receive_;
  receive_order_[next_receive_ % kPlaces] = static_cast<uint8_t>(slot);
  ++next_receive_;
  *out = receives_.ticket(slot);
  if (!is_posted(next_arrival_)) {  // its message is here already
    const Early early = early_[op.sequence % kPlaces];
    deliver(op, Immediate::eager, early.mark, early.bytes);
    settle();
    if (!failed_ && next_receive_ - told_consumed_ >= kTellAfter) {
      post_credit(op);
      flush_due();
    }
  } else if (lost_) {
    check_lost();
  } else {
    if (!is_short(capacity) || on_device(region)) {  // the others come by an eager place
      op.memory = source_of(region, data, capacity);
    }
    hold(op);
  }
  return failed_ ? Io::failed : Io::done;
}

// Whether the receive of this message was posted.
bool VerbsConnection::is_posted(uint32_t sequence) const {
  return static_cast<int32_t>(next_receive_ - sequence) > 0;
}

// What fits into an eager place comes without being told where to; credits of others go several in
// one write, while the other end has enough to go on with.
void VerbsConnection::hold(RecvOp& op) {
  const bool brief = is_short(op.capacity);
  const bool waits = brief
                         ? next_arrival_ - told_consumed_ < kTellAfter
                         : has_enough_credits() && held_long_ + 1 < static_cast<int>(kMostCredits);
  op.held = true;
  ++held_;
  held_long_ += brief ? 0 : 1;
  if (!waits) {
    tell_held();
  }
}

bool VerbsConnection::has_enough_credits() const {
  return static_cast<int32_t>(next_receive_ - next_arrival_) - held_ > kEnoughOut;
}

void VerbsConnection::post_credit(const RecvOp& op) {
  Credit c;
  c.sequence = op.sequence;
  c.consumed = is_posted(next_arrival_) ? next_arrival_ : next_receive_;
  c.capacity = op.capacity;
  put_place(op.memory, op.data, &c);
  told_consumed_ = c.consumed;
  push_due(Control::credit, c.sequence, encode(c));
}

// The other end may have a message for such a receive that is too long for it, or that asks.
void VerbsConnection::tell_held() {
  for (uint32_t s = next_arrival_; held_ > 0 && s != next_receive_; ++s) {
    RecvOp& op = receives_[receive_order_[s % kPlaces]];
    if (op.held) {
      unhold(op);
      post_credit(op);
    }
  }
  flush_due();
}

void VerbsConnection::unhold(RecvOp& op) {
  if (std::exchange(op.held, false)) {
    --held_;
    held_long_ -= is_short(op.capacity) ? 0 : 1;
  }
}

void VerbsConnection::put_place(const Source& memory, const std::byte* data, Credit* credit) const {
  if (!memory) {
    return;
  }
  credit->address = reinterpret_cast<uint64_t>(data);
  for (size_t i = 0; i < parts_.rails.size(); ++i) {
    credit->keys[i] = memory->remote_key(parts_.rails[i].index);
  }
}

void VerbsConnection::on_notice(uint32_t place) {
  Notice notice;
  if (place >= kPlaces ||
      !decode(std::span<const std::byte>(parts_.board->notice(place), kRecordBytes)
                  .first<kRecordBytes>(),
              &notice) ||
      notice.sequence % kPlaces != place) {
    break_protocol("a notice that cannot be read");
    return;
  }
  if (notice.kind == Notice::ask) {
    on_ask(notice);
    return;
  }
  if (notice.sequence != next_arrival_ || !is_posted(notice.sequence)) {
    break_protocol("a message out of its turn");
    return;
  }
  if (notice.kind == Notice::arrived) {
    on_message(Immediate::direct, notice.mark, notice.bytes, notice.stripes);
    return;
  }
  break_too_long(notice.bytes, receives_[receive_order_[place]]);
}

void VerbsConnection::break_too_long(uint64_t bytes, const RecvOp& op) {
  break_with(Code::mismatch,
             strf("a message of %zu bytes came for a receive of %zu bytes: both ends must agree "
                  "on sizes",
                  static_cast<size_t>(bytes), op.capacity));
}

// Where such a message goes; nullptr: nowhere, and the connection is broken.
std::byte* VerbsConnection::target_of(RecvOp& op, Mark mark, uint64_t bytes) {
  if ((mark & kAside) != 0) {
    const Aside::Room room = op.aside == nullptr ? Aside::Room{} : op.aside->room(bytes);
    if (room.memory == nullptr) {
      break_with(Code::mismatch,
                 strf("a message of %zu bytes came that goes aside, and the receive has %s",
                      static_cast<size_t>(bytes),
                      op.aside == nullptr ? "no place for such" : "no room for so many"));
    }
    op.memory = source_of(room.region, room.memory, bytes);
    return static_cast<std::byte*>(room.memory);
  }
  if (bytes > op.capacity) {
    break_too_long(bytes, op);
    return nullptr;
  }
  return op.data;
}

void VerbsConnection::on_ask(const Notice& notice) {
  const bool posted =
      is_posted(next_arrival_) && notice.sequence - next_arrival_ < next_receive_ - next_arrival_;
  RecvOp* op = posted ? &receives_[receive_order_[notice.sequence % kPlaces]] : nullptr;
  if (op == nullptr || op->granted || (notice.mark & kAside) == 0 || op->received > 0 ||
      is_eager(notice.bytes, parts_.own)) {
    break_protocol("a question about no receive");
    return;
  }
  std::byte* into = target_of(*op, notice.mark, notice.bytes);
  if (failed_) {
    return;
  }
  op->granted = true;
  op->message = notice.bytes;
  op->aside_data = into;
  Credit c;
  c.sequence = notice.sequence;
  c.consumed = next_arrival_;
  c.capacity = notice.bytes;
  c.kind = Credit::granted;
  put_place(op->memory, into, &c);
  told_consumed_ = c.consumed;
  push_due(Control::credit, c.sequence, encode(c));
  flush_due();
}

// Pieces come in their order, and only for a receive whose credit named no memory.
void VerbsConnection::on_piece(Mark mark, uint32_t value) {
  const uint32_t bytes = value & (kLastPiece - 1);
  RecvOp* op =
      is_posted(next_arrival_) ? &receives_[receive_order_[next_arrival_ % kPlaces]] : nullptr;
  const bool aside = (mark & kAside) != 0;
  if (op == nullptr || op->granted != aside || op->memory || bytes > kPieceBytes || bytes == 0) {
    break_protocol("a piece of no message");
    return;
  }
  const size_t limit = aside ? op->message : op->capacity;
  if (bytes > limit - op->received) {
    break_too_long(op->received + bytes, *op);
    return;
  }
  std::byte* into = (aside ? op->aside_data : op->data) + op->received;
  std::memcpy(into, parts_.board->ring(pieces_seen_), bytes);
  op->received += bytes;
  ++pieces_seen_;
  if (pieces_seen_ - told_pieces_ >= kPieces / 4) {
    told_pieces_ = pieces_seen_;
    push_due(Control::taken, pieces_seen_, {});
    flush_due();
  }
  if ((value & kLastPiece) != 0) {
    on_message(Immediate::piece, mark, op->received, 0);
  }
}

void VerbsConnection::on_stripe(uint32_t place) {
  if (place >= kPlaces || stripes_[place] + size_t{1} >= lanes_.size()) {
    break_protocol("a part of no message");
    return;
  }
  ++stripes_[place];
  settle();
}

// What most messages are: one in its place, or in an eager one, for a receive that waits, behind
// whole ones. false: another, or not a good one.
bool VerbsConnection::take_whole(const Immediate& i) {
  const uint32_t sequence = next_arrival_;
  if ((i.mark & kAside) != 0 || !is_posted(sequence) || next_whole_ != sequence) {
    return false;
  }
  RecvOp& op = receives_[receive_order_[sequence % kPlaces]];
  const bool eager = i.kind == Immediate::eager;
  const bool by_host = eager && i.value <= kEagerBytes && !(op.memory && op.memory->on_device());
  if (i.value > op.capacity || op.granted || op.received > 0 ||
      !(by_host || (i.kind == Immediate::direct && op.memory))) {
    return false;
  }
  unhold(op);
  if (eager && i.value > 0) {
    std::memcpy(op.data, parts_.board->eager(sequence), i.value);
  }
  op.message = i.value;
  op.mark = i.mark;
  op.arrived = op.done = true;
  if (op.memory) {
    op.memory.reset();
  }
  next_whole_ = ++next_arrival_;
  return true;
}

void VerbsConnection::on_message(Immediate::Kind kind, Mark mark, uint64_t bytes,
                                 uint16_t stripes) {
  const uint32_t sequence = next_arrival_;
  if (is_posted(sequence)) {
    RecvOp& op = receives_[receive_order_[sequence % kPlaces]];
    if (stripes >= lanes_.size()) {
      break_protocol("a message of more parts than there are queue pairs");
      return;
    }
    ++next_arrival_;
    op.stripes = stripes;
    deliver(op, kind, mark, bytes);
    settle();
    return;
  }
  if (kind != Immediate::eager || bytes > kEagerBytes || sequence - next_receive_ >= kPlaces) {
    break_protocol("a message that no receive was posted for");
    return;
  }
  early_[sequence % kPlaces] = {static_cast<uint32_t>(bytes), mark};
  ++next_arrival_;
}

void VerbsConnection::deliver(RecvOp& op, Immediate::Kind kind, Mark mark, uint64_t bytes) {
  unhold(op);
  const bool aside = (mark & kAside) != 0;
  if (kind == Immediate::eager) {
    if (bytes > kEagerBytes || op.granted || op.received > 0) {
      break_protocol("a message in the wrong place");
      return;
    }
    std::byte* into = target_of(op, mark, bytes);
    if (failed_) {
      return;
    }
    if (op.memory && op.memory->on_device() && bytes > 0) {
      break_with(Code::unsupported,
                 strf("a message of %zu bytes came by way of host memory, and its receive is into "
                      "device memory: open the transport for such",
                      static_cast<size_t>(bytes)));
      return;
    }
    if (bytes > 0) {
      std::memcpy(into, parts_.board->eager(op.sequence), bytes);
    }
  } else if (op.granted != aside || (op.granted ? bytes != op.message : bytes > op.capacity) ||
             (kind == Immediate::direct && bytes > 0 && (!op.memory || op.received > 0))) {
    break_protocol("a message of another size than it had said");
    return;
  }
  op.message = bytes;
  op.mark = mark;
  op.arrived = true;
}

// Messages are done in their order, each with all its stripes.
void VerbsConnection::settle() {
  while (!failed_ && next_whole_ != next_arrival_ && is_posted(next_whole_)) {
    const uint32_t place = next_whole_ % kPlaces;
    RecvOp& op = receives_[receive_order_[place]];
    if (!op.arrived || stripes_[place] < op.stripes) {
      return;
    }
    stripes_[place] = 0;
    op.done = true;
    op.memory.reset();
    ++next_whole_;
  }
}

}  // namespace prunex::transport::verbs

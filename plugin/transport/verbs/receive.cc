// SPDX-License-Identifier: Apache-2.0
// The receiving half of a connection.
#include <algorithm>
#include <cstring>

#include "plugin/transport/verbs/connection.h"

namespace prunex::transport::verbs {
namespace {

constexpr uint32_t kTellAfter = 16;  // messages that went without a credit

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
    if (!failed_ && next_receive_ - told_consumed_ >= kTellAfter) {
      post_credit(op);
    }
  } else if (lost_) {
    check_lost();
  } else {
    op.memory = source_of(region, data, capacity);
    post_credit(op);
  }
  return failed_ ? Io::failed : Io::done;
}

// Whether the receive of this message was posted.
bool VerbsConnection::is_posted(uint32_t sequence) const {
  return static_cast<int32_t>(next_receive_ - sequence) > 0;
}

void VerbsConnection::post_credit(const RecvOp& op) {
  Credit c;
  c.sequence = op.sequence;
  c.consumed = is_posted(next_arrival_) ? next_arrival_ : next_receive_;
  c.capacity = op.capacity;
  if (op.memory) {
    c.address = reinterpret_cast<uint64_t>(op.data);
    c.key = op.memory->remote_key();
  }
  told_consumed_ = c.consumed;
  push_due(Immediate::credit, c.sequence, encode(c));
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
    on_message(Immediate::direct, notice.mark, notice.bytes);
    return;
  }
  const RecvOp& op = receives_[receive_order_[place]];
  break_with(Code::mismatch,
             strf("a message of %zu bytes came for a receive of %zu bytes: both ends must agree "
                  "on sizes",
                  static_cast<size_t>(notice.bytes), op.capacity));
}

// Where such a message goes; nullptr: nowhere, and the connection is broken.
std::byte* VerbsConnection::target_of(const RecvOp& op, Mark mark, uint64_t bytes) {
  if ((mark & kAside) != 0) {
    void* room = op.aside == nullptr ? nullptr : op.aside->room(bytes).memory;
    if (room == nullptr) {
      break_with(Code::mismatch,
                 strf("a message of %zu bytes came that goes aside, and the receive has %s",
                      static_cast<size_t>(bytes),
                      op.aside == nullptr ? "no place for such" : "no room for so many"));
    }
    return static_cast<std::byte*>(room);
  }
  if (bytes > op.capacity) {
    break_with(Code::mismatch,
               strf("a message of %zu bytes came for a receive of %zu bytes: both ends must agree "
                    "on sizes",
                    static_cast<size_t>(bytes), op.capacity));
    return nullptr;
  }
  return op.data;
}

void VerbsConnection::on_ask(const Notice& notice) {
  const bool posted =
      is_posted(next_arrival_) && notice.sequence - next_arrival_ < next_receive_ - next_arrival_;
  RecvOp* op = posted ? &receives_[receive_order_[notice.sequence % kPlaces]] : nullptr;
  const bool aside = (notice.mark & kAside) != 0;
  if (op == nullptr || op->granted || (!aside && op->memory) || notice.bytes <= kEagerBytes) {
    break_protocol("a question about no receive");
    return;
  }
  std::byte* into = target_of(*op, notice.mark, notice.bytes);
  if (failed_) {
    return;
  }
  auto memory = Memory::open(parts_.device, into, notice.bytes);
  if (!memory) {
    break_with(memory.error().code, memory.error().text);
    return;
  }
  op->memory = *std::move(memory);
  op->granted = true;
  op->message = notice.bytes;
  Credit c;
  c.sequence = notice.sequence;
  c.consumed = next_arrival_;
  c.address = reinterpret_cast<uint64_t>(into);
  c.capacity = notice.bytes;
  c.key = op->memory->remote_key();
  c.kind = Credit::granted;
  told_consumed_ = c.consumed;
  push_due(Immediate::credit, c.sequence, encode(c));
}

void VerbsConnection::on_message(Immediate::Kind kind, Mark mark, uint64_t bytes) {
  const uint32_t sequence = next_arrival_;
  if (is_posted(sequence)) {
    ++next_arrival_;
    deliver(receives_[receive_order_[sequence % kPlaces]], kind, mark, bytes);
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
  if (kind == Immediate::eager) {
    if (bytes > kEagerBytes || op.granted) {
      break_protocol("a message in the wrong place");
      return;
    }
    std::byte* into = target_of(op, mark, bytes);
    if (failed_) {
      return;
    }
    if (bytes > 0) {
      std::memcpy(into, parts_.board->eager(op.sequence), bytes);
    }
  } else if (op.granted
                 ? bytes != op.message
                 : (mark & kAside) != 0 || bytes > op.capacity || (bytes > 0 && !op.memory)) {
    break_protocol("a message of another size than it had said");
    return;
  }
  op.message = bytes;
  op.mark = mark;
  op.done = true;
  op.memory.reset();
}

}  // namespace prunex::transport::verbs

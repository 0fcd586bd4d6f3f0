// SPDX-License-Identifier: Apache-2.0
// The sending half of a connection, and the records of both.
#include <algorithm>
#include <cstring>

#include "plugin/base/sockets.h"
#include "plugin/transport/verbs/connection.h"

namespace prunex::transport::verbs {
namespace {

constexpr uint64_t kControlId = uint64_t{1} << 62;
constexpr uint32_t kForRecords = 16;  // places of the send queue that messages leave alone

}  // namespace

Io VerbsConnection::isend(const void* data, size_t bytes, const Region* region, Ticket* out,
                          Mark mark) {
  if (failed_ || lost_) {
    break_with(Code::peer_lost, strf("cannot send: %s", reason_.text.c_str()));
    return Io::failed;
  }
  const int slot = sends_.take();
  if (slot < 0) {
    return Io::again;
  }
  SendOp& op = sends_[slot];
  op.data = static_cast<const std::byte*>(data);
  op.bytes = bytes;
  op.mark = mark;
  op.sequence = next_send_;
  op.memory = source_of(region, data, bytes);
  send_order_[next_send_ % kPlaces] = static_cast<uint8_t>(slot);
  ++next_send_;
  ++unsent_;
  *out = sends_.ticket(slot);
  ask(op);
  push_sends();
  return Io::done;
}

void VerbsConnection::push_sends() {
  while (!failed_ && next_to_post_ != next_send_) {
    if (!post_message(send_order_[next_to_post_ % kPlaces])) {
      return;
    }
    has_credit_[next_to_post_ % kPlaces] = false;
    ++next_to_post_;
  }
}

const Credit* VerbsConnection::credit_of(uint32_t sequence) const {
  return has_credit_[sequence % kPlaces] ? &credits_[sequence % kPlaces] : nullptr;
}

// true: all of it is posted.
bool VerbsConnection::post_message(int slot) {
  SendOp& op = sends_[slot];
  if (!op.has_place) {
    const Credit* credit = credit_of(op.sequence);
    const bool aside = (op.mark & kAside) != 0;
    if (credit != nullptr && !aside) {
      op.capacity = credit->capacity;
      if (op.bytes > credit->capacity) {
        return post_too_long(slot);
      }
      op.has_place = credit->address != 0 || op.bytes == 0;
      op.address = credit->address;
      op.key = credit->key;
    }
  }
  if (op.has_place) {
    return post_direct(slot);
  }
  if (op.bytes <= kEagerBytes && op.sequence - peer_consumed_ < kPlaces) {
    return post_eager(slot);
  }
  ask(op);
  return false;
}

// A message that needs an answer first asks as soon as it can, before its turn.
void VerbsConnection::ask(SendOp& op) {
  const Credit* credit = credit_of(op.sequence);
  const bool aside = (op.mark & kAside) != 0;
  if (op.asked || op.has_place || credit == nullptr || op.bytes <= kEagerBytes ||
      (!aside && (credit->address != 0 || op.bytes > credit->capacity)) ||
      due_count_ > kDuePlaces / 2) {
    return;
  }
  op.asked = true;
  push_due(Immediate::notice, op.sequence,
           encode(Notice{op.sequence, op.bytes, op.mark, Notice::ask}));
}

// Makes sure that the device may read the data. false: broken.
bool VerbsConnection::make_source(int slot) {
  SendOp& op = sends_[slot];
  if (op.memory || op.bytes <= parts_.pair->max_inline()) {
    return true;
  }
  if (op.bytes <= kEagerBytes) {
    std::byte* copy = parts_.board->bounce(slot);
    if (op.data != copy) {
      std::memcpy(copy, op.data, op.bytes);
      op.data = copy;
    }
    return true;
  }
  auto memory = Memory::open(parts_.device, const_cast<std::byte*>(op.data), op.bytes);
  if (!memory) {
    break_with(memory.error().code, memory.error().text);
    return false;
  }
  op.memory = *std::move(memory);
  return true;
}

bool VerbsConnection::post_write(const QueuePair::Write& write, int slot) {
  QueuePair::Write w = write;
  w.id = slot == kControl ? kControlId : static_cast<uint64_t>(slot);
  const int error = parts_.pair->post(w);
  if (error != 0) {
    break_with(Code::system, strf("%s takes no work of %u bytes: %s", parts_.own.device.c_str(),
                                  write.bytes, errno_text(error).c_str()));
    return false;
  }
  if (slot != kControl) {
    ++sends_[slot].unfinished;
  }
  return true;
}

bool VerbsConnection::post_direct(int slot) {
  if (!make_source(slot)) {
    return false;
  }
  SendOp& op = sends_[slot];
  const bool short_news = op.bytes <= kMaxImmediateBytes;
  const Memory& memory = op.memory ? *op.memory : parts_.board->memory();
  while (op.posted < op.bytes || op.bytes == 0) {
    if (parts_.pair->send_room() <= kForRecords) {
      return false;
    }
    QueuePair::Write w;
    w.data = op.data + op.posted;
    w.bytes = static_cast<uint32_t>(std::min<uint64_t>(chunk_, op.bytes - op.posted));
    w.local_key = memory.local_key();
    w.address = op.bytes == 0 ? 0 : op.address + op.posted;
    w.key = op.bytes == 0 ? 0 : op.key;
    op.placed = short_news && op.posted + w.bytes == op.bytes;
    if (op.placed) {
      w.announces = true;
      w.immediate = pack({Immediate::direct, op.mark, static_cast<uint32_t>(op.bytes)});
    }
    op.posted += w.bytes;
    if (!post_write(w, slot)) {
      return false;
    }
    if (op.bytes == 0) {
      return true;
    }
  }
  if (!short_news) {
    if (parts_.pair->send_room() <= kForRecords) {
      return false;
    }
    op.placed = true;
    return post_record(Immediate::notice, op.sequence,
                       encode(Notice{op.sequence, op.bytes, op.mark, Notice::arrived}), slot);
  }
  return true;
}

bool VerbsConnection::post_eager(int slot) {
  if (parts_.pair->send_room() <= kForRecords || !make_source(slot)) {
    return false;
  }
  SendOp& op = sends_[slot];
  QueuePair::Write w;
  w.data = op.data;
  w.bytes = static_cast<uint32_t>(op.bytes);
  w.local_key = (op.memory ? *op.memory : parts_.board->memory()).local_key();
  w.address = parts_.peer.board + kEagerAt + op.sequence % kPlaces * kEagerBytes;
  w.key = parts_.peer.board_key;
  w.announces = true;
  w.immediate = pack({Immediate::eager, op.mark, w.bytes});
  op.placed = true;
  return post_write(w, slot);
}

bool VerbsConnection::post_too_long(int slot) {
  if (parts_.pair->send_room() <= kForRecords) {
    return false;
  }
  SendOp& op = sends_[slot];
  op.placed = op.too_long = true;
  return post_record(Immediate::notice, op.sequence,
                     encode(Notice{op.sequence, op.bytes, op.mark, Notice::too_long}), slot);
}

void VerbsConnection::on_sent(uint64_t id) {
  if (id == kControlId) {
    return;
  }
  SendOp& op = sends_[static_cast<int>(id)];
  --op.unfinished;
  if (!op.is_done()) {
    return;
  }
  --unsent_;
  op.memory.reset();
  if (op.too_long) {
    break_with(Code::mismatch,
               strf("a message of %zu bytes was sent to a receive of %zu bytes: both ends must "
                    "agree on sizes",
                    op.bytes, static_cast<size_t>(op.capacity)));
  }
}

void VerbsConnection::on_credit(uint32_t place) {
  Credit credit;
  if (place >= kPlaces ||
      !decode(std::span<const std::byte>(parts_.board->credit(place), kRecordBytes)
                  .first<kRecordBytes>(),
              &credit) ||
      credit.sequence % kPlaces != place) {
    break_protocol("a credit that cannot be read");
    return;
  }
  if (next_to_post_ - credit.consumed > kPlaces) {
    break_protocol("a credit that speaks of messages which were never sent");
    return;
  }
  if (static_cast<int32_t>(credit.consumed - peer_consumed_) > 0) {
    peer_consumed_ = credit.consumed;
  }
  if (credit.kind == Credit::granted) {
    on_grant(credit);
    return;
  }
  const auto ahead = static_cast<int32_t>(credit.sequence - next_to_post_);
  if (ahead < 0) {
    return;  // that message went ahead without it
  }
  if (static_cast<uint32_t>(ahead) >= kPlaces) {
    break_protocol("a credit far ahead of its turn");
    return;
  }
  credits_[place] = credit;
  has_credit_[place] = true;
  if (static_cast<int32_t>(next_send_ - credit.sequence) > 0) {
    ask(sends_[send_order_[place]]);
  }
}

void VerbsConnection::on_grant(const Credit& credit) {
  const bool known = credit.sequence - next_to_post_ < next_send_ - next_to_post_;
  SendOp* op = known ? &sends_[send_order_[credit.sequence % kPlaces]] : nullptr;
  if (op == nullptr || !op->asked || op->has_place || credit.capacity < op->bytes ||
      credit.address == 0) {
    break_protocol("an answer to no question");
    return;
  }
  op->has_place = true;
  op->address = credit.address;
  op->key = credit.key;
}

void VerbsConnection::push_due(Immediate::Kind kind, uint32_t sequence, const RecordBytes& record) {
  if (lost_) {
    return;
  }
  if (due_count_ == kDuePlaces) {
    break_with(Code::internal, "too many records wait to be sent");
    return;
  }
  due_[(due_head_ + due_count_++) % kDuePlaces] = {kind, sequence, record};
  flush_due();
}

void VerbsConnection::flush_due() {
  while (due_count_ > 0 && !failed_ && !lost_ && parts_.pair->send_room() > 0) {
    const Due& d = due_[due_head_];
    if (!post_record(d.kind, d.sequence, d.record, kControl)) {
      return;
    }
    due_head_ = (due_head_ + 1) % kDuePlaces;
    --due_count_;
  }
}

bool VerbsConnection::post_record(Immediate::Kind kind, uint32_t sequence,
                                  const RecordBytes& record, int slot) {
  std::byte* from = parts_.board->outbox();
  std::memcpy(from, record.data(), record.size());
  const uint32_t place = sequence % kPlaces;
  QueuePair::Write w;
  w.data = from;
  w.bytes = kRecordBytes;
  w.local_key = parts_.board->memory().local_key();
  w.address = parts_.peer.board + (kind == Immediate::credit ? kCreditsAt : kNoticesAt) +
              place * kPlaceBytes;
  w.key = parts_.peer.board_key;
  w.announces = true;
  w.immediate = pack({kind, 0, place});
  return post_write(w, slot);
}

}  // namespace prunex::transport::verbs

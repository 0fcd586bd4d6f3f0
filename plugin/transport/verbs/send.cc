// SPDX-License-Identifier: Apache-2.0
// The sending half of a connection.
#include <algorithm>
#include <cstring>

#include "plugin/base/sockets.h"
#include "plugin/transport/verbs/connection.h"
#include "plugin/transport/verbs/rails.h"

namespace prunex::transport::verbs {
namespace {

// In the id of a write, beside what queue_pair.h and parts.h have there: from the out ring. The
// rest is the send's slot.
constexpr uint64_t kFromRing = uint64_t{1} << 61;
constexpr uint64_t kSlotBits = 0xFFFF;
constexpr uint32_t kForRecords = 16;  // places of the first lane's send queue left to records

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
  send_order_[next_send_ % kPlaces] = static_cast<uint8_t>(slot);
  ++unsent_;
  *out = sends_.ticket(slot);
  ++next_send_;
  if (!post_at_once(slot, region)) {
    op.memory = source_of(region, data, bytes);
    ask(op);
    push_sends();
  }
  return Io::done;
}

// A message in its turn that one write of the first lane brings, from where it is: what most are.
// false: another.
bool VerbsConnection::post_at_once(int slot, const Region* region) {
  SendOp& op = sends_[slot];
  const Credit* const credit = (op.mark & kAside) == 0 ? credit_of(op.sequence) : nullptr;
  const bool direct = credit != nullptr && credit->address != 0 && op.bytes > kShortBytes &&
                      op.bytes <= most_at_once_;
  const bool eager = is_eager(op.bytes, parts_.peer) && op.sequence - peer_consumed_ < kPlaces;
  if (next_to_post_ != op.sequence || !(direct || eager) || !has_room(0) ||
      (credit != nullptr && op.bytes > credit->capacity)) {
    return false;
  }
  QueuePair::Write w;
  w.may_inline = op.bytes <= lanes_.front().pair->max_inline() && !on_device(region);
  if (!w.may_inline) {
    op.memory = source_of(region, op.data, op.bytes);
    if (!op.memory) {
      return false;
    }
    w.local_key = op.memory->local_key(parts_.rails[lanes_.front().rail].index);
  }
  w.data = op.data;
  w.bytes = static_cast<uint32_t>(op.bytes);
  w.id = static_cast<uint64_t>(slot);
  if (direct) {
    w.address = credit->address;
    w.key = credit->keys[lanes_.front().rail];
    w.announces = true;
    w.immediate = pack({Immediate::direct, op.mark, w.bytes});
  } else {
    aim_at_eager(op, &w);
  }
  op.placed = post_write(w, 0);
  has_credit_[op.sequence % kPlaces] = false;
  ++next_to_post_;
  return true;
}

void VerbsConnection::aim_at_eager(const SendOp& op, QueuePair::Write* write) const {
  write->address = parts_.peer.board + kEagerAt + op.sequence % kPlaces * kEagerBytes;
  write->key = parts_.rails.front().peer.board_key;
  write->announces = true;
  write->immediate = pack({Immediate::eager, op.mark, write->bytes});
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

bool VerbsConnection::has_room(size_t lane) const {
  return lanes_[lane].pair->send_room() > (lane == 0 ? kForRecords : 0);
}

// true: all of it is posted.
bool VerbsConnection::post_message(int slot) {
  SendOp& op = sends_[slot];
  if (!op.has_place && !op.in_pieces) {
    find_place(op);
  }
  if (op.too_long) {
    return post_news(slot, Notice::too_long);
  }
  if (op.has_place) {
    return post_direct(slot);
  }
  if (op.in_pieces) {
    return post_pieces(slot);
  }
  if (is_eager(op.bytes, parts_.peer) && op.sequence - peer_consumed_ < kPlaces) {
    return post_eager(slot);
  }
  ask(op);
  return false;
}

// Where the receive's credit wants the message, if there is one and it says so.
void VerbsConnection::find_place(SendOp& op) {
  const Credit* credit = credit_of(op.sequence);
  if (credit == nullptr || (op.mark & kAside) != 0) {
    return;
  }
  op.capacity = credit->capacity;
  op.too_long = op.bytes > credit->capacity;
  op.has_place = credit->address != 0 || op.bytes == 0;
  op.in_pieces = !op.has_place && !is_eager(op.bytes, parts_.peer);
  op.address = credit->address;
  op.keys = credit->keys;
}

// A message that needs an answer first asks as soon as it can, before its turn.
void VerbsConnection::ask(SendOp& op) {
  if (op.asked || (op.mark & kAside) == 0 || is_eager(op.bytes, parts_.peer) ||
      credit_of(op.sequence) == nullptr || due_count_ > kDuePlaces / 2) {
    return;
  }
  op.asked = true;
  Notice notice;
  notice.sequence = op.sequence;
  notice.bytes = op.bytes;
  notice.mark = op.mark;
  notice.kind = Notice::ask;
  push_due(Control::notice, op.sequence, encode(notice));
  flush_due();
}

// From where the device reads the next bytes of a message: no more than `bytes`, for the lane.
// false: there is no room for a copy now.
bool VerbsConnection::source(int slot, size_t lane, size_t bytes, QueuePair::Write* write) {
  SendOp& op = sends_[slot];
  const std::byte* data = op.data + op.posted;
  const Memory& own = parts_.board->memory();
  const size_t rail = parts_.rails[lanes_[lane].rail].index;
  write->data = data;
  write->bytes = static_cast<uint32_t>(bytes);
  write->id = static_cast<uint64_t>(slot);
  write->local_key = (op.memory ? *op.memory : own).local_key(rail);
  write->may_inline = !op.memory || !op.memory->on_device();
  if (op.memory || op.bytes <= lanes_[lane].pair->max_inline()) {
    return true;
  }
  if (op.bytes <= kEagerBytes) {
    write->data = parts_.board->bounce(slot);
    std::memcpy(parts_.board->bounce(slot) + op.posted, data, bytes);
    return true;
  }
  if (out_busy_ == kPieces) {
    return false;
  }
  std::byte* copy = parts_.board->out_ring(out_next_);
  write->bytes = static_cast<uint32_t>(std::min(bytes, kPieceBytes));
  write->data = copy;
  write->id |= kFromRing;
  std::memcpy(copy, data, write->bytes);
  return true;
}

bool VerbsConnection::post_write(const QueuePair::Write& write, size_t lane) {
  const uint64_t id = write.id;
  const int error = lanes_[lane].pair->post(write);
  if (error != 0) {
    break_with(Code::system, strf("%s takes no work of %u bytes: %s",
                                  parts_.rails[lanes_[lane].rail].own.device.c_str(), write.bytes,
                                  errno_text(error).c_str()));
    return false;
  }
  if ((id & kControlId) == 0) {
    ++sends_[static_cast<int>(id & kSlotBits)].unfinished;
  }
  if ((id & kFromRing) != 0) {
    ++out_next_;
    ++out_busy_;
  }
  return true;
}

// What is copied goes by the first lane alone: its ring is in order then.
bool VerbsConnection::post_direct(int slot) {
  SendOp& op = sends_[slot];
  const bool split = lanes_.size() > 1 && op.memory && op.bytes >= split_from_;
  const size_t lanes = split ? lanes_.size() : 1;
  const bool short_news = !split && op.bytes <= kMaxImmediateBytes;
  for (; op.lane < lanes; ++op.lane) {
    const uint64_t end = split ? stripe_begin(op.bytes, weights_, op.lane + 1) : op.bytes;
    if (!post_stripe(slot, op.lane, end, op.lane > 0 || short_news)) {
      return false;
    }
  }
  op.placed = short_news;
  return short_news || post_news(slot, Notice::arrived);
}

// The message's bytes up to `end`; those before op.posted are out. A message of no bytes goes too.
bool VerbsConnection::post_stripe(int slot, size_t lane, uint64_t end, bool announces) {
  SendOp& op = sends_[slot];
  const size_t key = lanes_[lane].rail;
  while (op.posted < end || (op.bytes == 0 && announces)) {
    QueuePair::Write w;
    if (!has_room(lane) || !source(slot, lane, std::min(chunk_, end - op.posted), &w)) {
      return false;
    }
    w.address = op.bytes == 0 ? 0 : op.address + op.posted;
    w.key = op.bytes == 0 ? 0 : op.keys[key];
    w.announces = announces && op.posted + w.bytes == end;
    w.immediate = lane > 0 ? pack({Immediate::control, static_cast<uint8_t>(Control::stripe),
                                   static_cast<uint32_t>(op.sequence % kPlaces)})
                           : pack({Immediate::direct, op.mark, static_cast<uint32_t>(op.bytes)});
    if (!post_write(w, lane)) {
      return false;
    }
    op.posted += w.bytes;
    op.stripes = static_cast<uint16_t>(op.stripes + (lane > 0 && w.announces ? 1 : 0));
    if (op.bytes == 0) {
      break;
    }
  }
  return true;
}

// About a message whose own writes cannot say it.
bool VerbsConnection::post_news(int slot, Notice::Kind kind) {
  if (!has_room(0)) {
    return false;
  }
  SendOp& op = sends_[slot];
  op.placed = true;
  Notice notice;
  notice.sequence = op.sequence;
  notice.bytes = op.bytes;
  notice.mark = op.mark;
  notice.kind = kind;
  notice.stripes = op.stripes;
  return post_record(Control::notice, op.sequence, encode(notice), static_cast<uint64_t>(slot));
}

bool VerbsConnection::post_pieces(int slot) {
  SendOp& op = sends_[slot];
  while (op.posted < op.bytes) {
    QueuePair::Write w;
    if (!has_room(0) || pieces_sent_ - pieces_taken_ == kPieces ||
        !source(slot, 0, std::min(op.bytes - op.posted, kPieceBytes), &w)) {
      return false;
    }
    w.address = parts_.peer.board + kRingAt + pieces_sent_ % kPieces * kPieceBytes;
    w.key = parts_.rails.front().peer.board_key;
    w.announces = true;
    const bool last = op.posted + w.bytes == op.bytes;
    w.immediate = pack({Immediate::piece, op.mark, w.bytes | (last ? kLastPiece : 0)});
    op.placed = last;
    if (!post_write(w, 0)) {
      return false;
    }
    ++pieces_sent_;
    op.posted += w.bytes;
  }
  return true;
}

bool VerbsConnection::post_eager(int slot) {
  SendOp& op = sends_[slot];
  QueuePair::Write w;
  if (!has_room(0) || !source(slot, 0, op.bytes, &w)) {
    return false;
  }
  aim_at_eager(op, &w);
  op.placed = true;
  return post_write(w, 0);
}

void VerbsConnection::on_sent(uint64_t id) {
  if ((id & kControlId) != 0) {
    return;
  }
  if ((id & kFromRing) != 0) {
    --out_busy_;
  }
  SendOp& op = sends_[static_cast<int>(id & kSlotBits)];
  --op.unfinished;
  if (!op.is_out()) {
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
  if (op == nullptr || !op->asked || op->has_place || op->in_pieces ||
      credit.capacity < op->bytes) {
    break_protocol("an answer to no question");
    return;
  }
  op->has_place = credit.address != 0;
  op->in_pieces = credit.address == 0;
  op->address = credit.address;
  op->keys = credit.keys;
}

// Told modulo 2^22; there are never more than a few out.
void VerbsConnection::on_taken(uint32_t count) {
  const uint32_t ahead = (count - pieces_taken_) & kMaxImmediateBytes;
  if (ahead > pieces_sent_ - pieces_taken_) {
    break_protocol("word of pieces that were never sent");
    return;
  }
  pieces_taken_ += ahead;
}

}  // namespace prunex::transport::verbs

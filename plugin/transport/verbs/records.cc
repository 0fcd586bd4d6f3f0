// SPDX-License-Identifier: Apache-2.0
// The small writes between the ends: credits, notices, word of pieces.
#include <algorithm>
#include <cstring>

#include "plugin/transport/verbs/connection.h"

namespace prunex::transport::verbs {

void VerbsConnection::push_due(Control kind, uint32_t sequence, const RecordBytes& record) {
  if (lost_) {
    return;
  }
  if (due_count_ == kDuePlaces) {
    break_with(Code::internal, "too many records wait to be sent");
    return;
  }
  due_[(due_head_ + due_count_++) % kDuePlaces] = {kind, sequence, record};
}

void VerbsConnection::flush_due() {
  while (due_count_ > 0 && !failed_ && !lost_ && lanes_.front().pair->send_room() > 0) {
    const Due& d = due_[due_head_];
    const size_t n = d.kind == Control::credit ? credits_in_row() : 1;
    if (n > 1 ? !post_credits(n) : !post_record(d.kind, d.sequence, d.record, kControlId)) {
      return;
    }
    due_head_ = (due_head_ + n) % kDuePlaces;
    due_count_ -= n;
  }
}

// How many of those that wait are neighbours where the other end has them.
size_t VerbsConnection::credits_in_row() const {
  const uint32_t first = due_[due_head_].sequence;
  size_t n = 1;
  while (n < std::min(due_count_, kMostCredits)) {
    const Due& d = due_[(due_head_ + n) % kDuePlaces];
    if (d.kind != Control::credit || d.sequence != first + n || d.sequence % kPlaces == 0) {
      break;
    }
    ++n;
  }
  return n;
}

bool VerbsConnection::post_credits(size_t n) {
  std::byte* from = parts_.board->outbox(n);
  for (size_t i = 0; i < n; ++i) {
    const RecordBytes& record = due_[(due_head_ + i) % kDuePlaces].record;
    std::memcpy(from + i * kPlaceBytes, record.data(), record.size());
  }
  const uint32_t place = due_[due_head_].sequence % kPlaces;
  const Rail& rail = parts_.rails.front();
  QueuePair::Write w;
  w.data = from;
  w.bytes = static_cast<uint32_t>(n * kPlaceBytes);
  w.local_key = parts_.board->memory().local_key(rail.index);
  w.address = parts_.peer.board + kCreditsAt + place * kPlaceBytes;
  w.key = rail.peer.board_key;
  w.announces = true;
  w.immediate = pack({Immediate::control, static_cast<uint8_t>(Control::credit),
                      pack_credits(place, static_cast<uint32_t>(n))});
  w.id = kControlId;
  return post_write(w, 0);
}

bool VerbsConnection::post_record(Control kind, uint32_t sequence, const RecordBytes& record,
                                  uint64_t id) {
  QueuePair::Write w;
  w.announces = true;
  w.id = id;
  if (kind == Control::taken) {
    w.immediate = pack({Immediate::control, static_cast<uint8_t>(kind), sequence});
    return post_write(w, 0);
  }
  std::byte* from = parts_.board->outbox();
  std::memcpy(from, record.data(), record.size());
  const uint32_t place = sequence % kPlaces;
  const Rail& rail = parts_.rails.front();
  w.data = from;
  w.bytes = kRecordBytes;
  w.local_key = parts_.board->memory().local_key(rail.index);
  w.address =
      parts_.peer.board + (kind == Control::credit ? kCreditsAt : kNoticesAt) + place * kPlaceBytes;
  w.key = rail.peer.board_key;
  w.immediate = pack({Immediate::control, static_cast<uint8_t>(kind), place});
  return post_write(w, 0);
}

}  // namespace prunex::transport::verbs

// SPDX-License-Identifier: Apache-2.0
// Sending device memory: packed by the device where a mask or zeros make a message smaller, else
// copied to its shadow and sent from there.
#include "plugin/nccl/net/comm.h"

namespace prunex::nccl {

// Everything that waits is given to the device at once, in order; what may teach the peer a mask
// lets nothing overtake it.
void SendComm::start_on_device() {
  for (size_t i = 0; i < waiting_.size(); ++i) {
    Send& s = *waiting_.at(i);
    if (s.lane == nullptr) {
      return;
    }
    const bool front = i == 0;
    if (s.stage == Stage::undecided) {
      decide(s);
    }
    const bool teaches = s.piece && !encoder_.peer_has(*s.piece->mask);
    if (s.stage == Stage::placing && (front || !teaches)) {
      place(s);
    }
    if (s.stage == Stage::undecided || s.stage == Stage::placing || teaches) {
      return;
    }
  }
}

// The message pays, or may.
void SendComm::decide_on_device(Send& s) {
  if (s.piece) {
    s.plan = device::MaskPlans::instance().find(*s.piece->mask, s.lane->device());
    s.stage = s.plan != nullptr ? Stage::placing : s.stage;
  } else if (s.bytes <= codec::kMaxPiece) {
    s.stage = Stage::placing;
  }
  if (s.stage != Stage::placing || room_on_device(s) > DeviceLane::kStagingBytes) {
    s.plan = nullptr;
    copy_from_device(s, false);
  }
}

size_t SendComm::room_on_device(const Send& s) {
  return s.piece ? DevicePacking::masked_room(encoder_.laid_out_size(*s.piece, s.bytes), s.bytes)
                 : DevicePacking::blocks_room(s.bytes);
}

// Stays `placing` while the lane's memory is full of messages that are on their way.
void SendComm::place(Send& s) {
  const size_t room = room_on_device(s);
  s.staged = s.lane->take(room);
  if (s.staged == nullptr) {
    return;
  }
  const std::span<std::byte> memory(s.staged, room);
  const bool good = s.piece ? s.packing.pack_masked(*s.lane, encoder_, std::move(s.plan), *s.piece,
                                                    s.origin, s.bytes, memory)
                            : s.packing.pack_blocks(*s.lane, s.origin, s.bytes, memory);
  s.stage = Stage::packing;
  if (!good || !s.lane->mark(slot_of(s))) {
    (void)broken(s.lane->error());
  }
}

// A message that goes as it is may not need the copy.
void SendComm::copy_from_device(Send& s, bool as_it_is) {
  if (as_it_is && s.direct != nullptr) {
    s.data = s.origin;
    s.region = s.direct;
    s.kind = WireKind::raw;
    s.stage = Stage::ready;
    stats().device.direct.message(s.bytes);
    return;
  }
  s.stage = Stage::copying;
  s.as_it_is = as_it_is;
  s.kind = WireKind::raw;
  if (!s.lane->start(slot_of(s), const_cast<std::byte*>(s.data), s.origin, s.bytes)) {
    (void)broken(s.lane->error());
  }
}

// Its bytes are in host memory.
bool SendComm::arrived_from_device(Send& s) {
  switch (s.lane->state(slot_of(s))) {
    case LaneState::done:
      s.stage = s.as_it_is ? Stage::ready : Stage::copied;
      stats().device.staged.message(s.bytes);
      return true;
    case LaneState::failed:
      (void)broken(s.lane->error());
      return false;
    case LaneState::busy:
      break;
  }
  return false;
}

// The kernels are done: the message goes as they packed it, or as it is.
bool SendComm::packed_by_device(Send& s) {
  const LaneState state = s.lane->state(slot_of(s));
  if (state == LaneState::failed) {
    (void)broken(s.lane->error());
  }
  if (state != LaneState::done) {
    return false;
  }
  const DevicePacking::Verdict verdict = s.packing.finish();
  stats().device.packed.message(s.bytes);
  if (verdict == DevicePacking::Verdict::packed) {
    s.encoded = s.packing.encoded();
    s.kind = s.piece ? WireKind::masked : WireKind::zero_block;
    s.stage = Stage::ready;
    s.piece ? s.counts->message(s.bytes, s.encoded.size()) : backoff_.paid();
    return true;
  }
  verdict == DevicePacking::Verdict::violated ? count_violation(s) : backoff_.did_not_pay();
  free_staged(s);
  copy_from_device(s, true);
  return true;
}

void SendComm::free_staged(Send& s) {
  s.lane->give(s.staged);
  s.staged = nullptr;
}

}  // namespace prunex::nccl

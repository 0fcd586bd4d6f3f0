// SPDX-License-Identifier: Apache-2.0
// Sending device memory: packed by the device where a mask or zeros make a message smaller, else
// from where it is, or copied.
#include <algorithm>

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

// A mask without a plan on this device is none: what it drops still leaves as blocks of zeros.
bool SendComm::find_plan(Send& s) {
  s.plan = device::MaskPlans::instance().find(*s.piece->mask, s.lane->device());
  return s.plan != nullptr;
}

void SendComm::decide_on_device(Send& s, bool may_pay) {
  s.way = !may_pay ? Way::raw : s.piece ? Way::masked : Way::blocks;
  // More the other end would have no room for, nor this one.
  if (s.way != Way::raw && room_on_device(s) > s.lane->most_message() + kSideSlack) {
    s.way = Way::raw;
    s.plan = nullptr;
    s.piece.reset();
  }
  s.stage = Stage::placing;
  if (s.way == Way::raw && s.direct) {
    send_direct(s);
  }
}

// All that the message may come to need, so that it never waits for those behind it: it may turn
// out that it goes as it is.
size_t SendComm::room_on_device(const Send& s) {
  const size_t as_it_is = s.direct ? 0 : s.bytes;
  switch (s.way) {
    case Way::masked:
      return std::max(
          as_it_is, DevicePacking::masked_room(encoder_.laid_out_size(*s.piece, s.bytes), s.bytes));
    case Way::blocks:
      return std::max(as_it_is, DevicePacking::blocks_room(s.bytes));
    case Way::raw:
      break;
  }
  return as_it_is;
}

// Stays `placing` while the lane's memory is full of messages that are on their way.
void SendComm::place(Send& s) {
  const size_t room = room_on_device(s);
  s.staged = s.lane->take(room);
  if (s.staged == nullptr) {
    return;
  }
  if (s.way == Way::raw) {
    copy_from_device(s);
    return;
  }
  const std::span<std::byte> memory(s.staged, room);
  const bool good = s.way == Way::masked
                        ? s.packing.pack_masked(*s.lane, encoder_, std::move(s.plan), *s.piece,
                                                s.origin, s.bytes, memory)
                        : s.packing.pack_blocks(*s.lane, s.origin, s.bytes, memory);
  s.stage = Stage::packing;
  if (!good || !s.lane->mark(slot_of(s))) {
    (void)broken(s.lane->error());
  }
}

void SendComm::send_direct(Send& s) {
  s.data = s.origin;
  s.kind = WireKind::raw;
  s.stage = Stage::ready;
  stats().device.direct.message(s.bytes);
}

// Into its piece of the lane's memory.
void SendComm::copy_from_device(Send& s) {
  s.data = s.staged;
  s.kind = WireKind::raw;
  s.stage = Stage::copying;
  if (!s.lane->start(slot_of(s), s.staged, s.origin, s.bytes)) {
    (void)broken(s.lane->error());
  }
}

// What was enqueued for it.
LaneState SendComm::state_on_device(Send& s) {
  const LaneState state = s.lane->state(slot_of(s));
  if (state == LaneState::failed) {
    (void)broken(s.lane->error());
  }
  return state;
}

bool SendComm::arrived_from_device(Send& s) {
  if (state_on_device(s) != LaneState::done) {
    return false;
  }
  s.stage = Stage::ready;
  stats().device.staged.message(s.bytes);
  return true;
}

// The kernels are done: the message goes as they packed it, or as it is.
bool SendComm::packed_by_device(Send& s) {
  if (state_on_device(s) != LaneState::done) {
    return false;
  }
  const DevicePacking::Verdict verdict = s.packing.finish();
  if (verdict == DevicePacking::Verdict::failed ||
      (verdict == DevicePacking::Verdict::more && !s.lane->mark(slot_of(s)))) {
    (void)broken(s.lane->error());
    return false;
  }
  if (verdict == DevicePacking::Verdict::more) {
    return false;
  }
  stats().device.packed.message(s.bytes);
  if (verdict == DevicePacking::Verdict::packed) {
    s.encoded = s.packing.encoded();
    s.kind = s.way == Way::masked ? WireKind::masked : WireKind::zero_block;
    s.stage = Stage::ready;
    s.way == Way::masked ? s.counts->message(s.bytes, s.encoded.size()) : backoff_.paid();
    return true;
  }
  verdict == DevicePacking::Verdict::violated ? count_violation(s) : backoff_.did_not_pay();
  if (!s.direct) {
    copy_from_device(s);
    return true;
  }
  free_staged(s);
  send_direct(s);
  return true;
}

void SendComm::free_staged(Send& s) {
  s.lane->give(s.staged);
  s.staged = nullptr;
}

}  // namespace prunex::nccl

// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/net/device_codec.h"

#include <algorithm>
#include <cstring>

#include "kernels/exact.h"

namespace prunex::nccl {
namespace {

using cuda::AuditRecord;

static_assert(DeviceLane::kMostBlocks * kZeroBlock == codec::kMaxPiece);
constexpr size_t kFactsBytes = sizeof(uint64_t) + kZeroBlock;
constexpr size_t kMostOfFrame = DeviceLane::kMostBlocks;
constexpr size_t kVector = 16;  // kernels store blocks in pieces of as many bytes

constexpr size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }
// Where the last `bytes` of a room begin that kernels write words to: it is as long as the message
// at least, which may be any length.
constexpr size_t last_of(std::span<std::byte> room, size_t bytes) {
  return (room.size() - bytes) / 8 * 8;
}
static_assert(alignof(AuditRecord) <= 8 && sizeof(AuditRecord) % 8 == 0);
constexpr size_t frames_of(size_t bytes) {
  return (bytes + codec::kMaxPiece - 1) / codec::kMaxPiece;
}

constexpr size_t frame_at(size_t at, size_t bytes) {
  return std::min(codec::kMaxPiece, bytes - at);
}

// Of the tensor that `at` lies in, `offset` bytes from its begin: the kernels count from there, and
// touch what the call's range holds.
void* first_element(const std::byte* at, uint64_t offset) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(at) - offset);
}

}  // namespace

size_t DevicePacking::masked_room(size_t encoded, size_t bytes) {
  return padded(encoded) + frames_of(bytes) * sizeof(AuditRecord);
}

size_t DevicePacking::blocks_room(size_t bytes) {
  const size_t frames = frames_of(bytes);
  return padded(bytes) +
         padded(frames * (codec::kFrameBytes + 8 + codec::block_map_bytes(kMostOfFrame)) + kVector +
                kFactsBytes);
}

bool DevicePacking::pack_masked(DeviceLane& lane, MessageEncoder& encoder,
                                std::shared_ptr<const device::MaskPlan> plan,
                                const MaskedPiece& piece, const std::byte* from, size_t bytes,
                                std::span<std::byte> room) {
  lane_ = &lane;
  frames_ = frames_of(bytes);
  const size_t behind = last_of(room, frames_ * sizeof(AuditRecord));
  auto* const records = reinterpret_cast<AuditRecord*>(room.data() + behind);
  bool good = true;
  size_t frame = 0;
  encoder.lay_out(piece, bytes, room.first(behind), [&](const PayloadPlace& place) {
    const uint64_t begin = (piece.offset + place.at) / piece.element_size;
    cuda::MoveCall call = plan->call(*piece.mask, piece.element_size, begin,
                                     begin + place.length / piece.element_size);
    call.from = first_element(from, piece.offset);
    call.to = place.payload;
    call.record = records + frame++;
    good = good && lane.pack(call);
  });
  plan_ = std::move(plan);
  encoded_ = room.first(encoder.size());
  records_ = records;
  block_facts_ = nullptr;
  return good;
}

bool DevicePacking::pack_blocks(DeviceLane& lane, const std::byte* from, size_t bytes,
                                std::span<std::byte> room) {
  lane_ = &lane;
  from_ = from;
  bytes_ = bytes;
  at_ = size_ = 0;
  records_ = nullptr;
  plan_ = nullptr;
  const size_t facts = last_of(room, kFactsBytes);
  block_facts_ = room.data() + facts;
  // The kernels store the first frame's blocks aligned; those of the others are copied.
  const size_t map = codec::block_map_bytes(frame_at(0, bytes) / kZeroBlock);
  const size_t lead = (kVector - (codec::kFrameBytes + map) % kVector) % kVector;
  encoded_ = room.subspan(lead, facts - lead);
  return pack_frame();
}

std::byte* DevicePacking::payload() const { return encoded_.data() + size_ + codec::kFrameBytes; }

bool DevicePacking::pack_frame() {
  const size_t length = frame_at(at_, bytes_), tail = length % kZeroBlock;
  const size_t blocks = length / kZeroBlock, map = codec::block_map_bytes(blocks);
  const std::byte* const from = from_ + at_;
  stores_ = false;
  cuda::BlockCall call{};
  call.from = from;
  call.blocks = blocks;
  call.bits = reinterpret_cast<uint64_t*>(lane_->block_room().data());
  call.packed = payload() + map;
  call.packed_blocks = reinterpret_cast<uint64_t*>(block_facts_);
  return lane_->pack_blocks(call) && lane_->copy(payload(), call.bits, map) &&
         (tail == 0 ||
          lane_->copy(block_facts_ + sizeof(uint64_t), from + blocks * kZeroBlock, tail));
}

DevicePacking::Verdict DevicePacking::finish() {
  plan_ = nullptr;
  if (block_facts_ != nullptr) {
    return finish_blocks();
  }
  const bool clean = std::all_of(records_, records_ + frames_, [](const AuditRecord& record) {
    return record.lossless + record.projected == 0;
  });
  return clean ? Verdict::packed : Verdict::violated;
}

// A frame that gets no smaller may have neighbours that do.
DevicePacking::Verdict DevicePacking::finish_blocks() {
  const size_t length = frame_at(at_, bytes_), tail = length % kZeroBlock;
  const size_t blocks = length / kZeroBlock;
  codec::FrameHeader header;
  header.logical = static_cast<uint32_t>(length);
  if (stores_) {
    header.kind = codec::FrameKind::stored;
    header.payload = header.logical;
  } else {
    uint64_t present = 0;
    std::memcpy(&present, block_facts_, sizeof present);
    const size_t body =
        codec::block_map_bytes(blocks) + std::min<uint64_t>(present, blocks) * kZeroBlock;
    if (body + tail > codec::paying_size(length)) {
      if (length == bytes_) {
        return Verdict::does_not_pay;
      }
      stores_ = true;
      return lane_->copy(payload(), from_ + at_, length) ? Verdict::more : Verdict::failed;
    }
    header.kind = codec::FrameKind::zero_block;
    header.payload = static_cast<uint32_t>(body + tail);
    std::memcpy(payload() + body, block_facts_ + sizeof present, tail);
  }
  codec::encode(header, encoded_.subspan(size_).first<codec::kFrameBytes>());
  size_ += padded(codec::kFrameBytes + header.payload);
  at_ += length;
  if (size_ > codec::paying_size(bytes_)) {
    return Verdict::does_not_pay;
  }
  if (at_ < bytes_) {
    return pack_frame() ? Verdict::more : Verdict::failed;
  }
  encoded_ = encoded_.first(size_);
  return Verdict::packed;
}

void DeviceUnpacking::begin(DeviceLane& lane, std::byte* target) {
  lane_ = &lane;
  target_ = target;
  plan_ = nullptr;
  by_kernels_ = 0;
}

bool DeviceUnpacking::take(const Frame& frame) {
  switch (frame.kind) {
    case codec::FrameKind::masked:
      return unpack_masked(frame);
    case codec::FrameKind::zero_block:
      unpack_blocks(frame);
      return true;
    case codec::FrameKind::stored:
      (void)lane_->copy(target_ + frame.at, frame.payload.data(), frame.length);
      return true;
    case codec::FrameKind::mask_definition:
      break;
  }
  return false;
}

void DeviceUnpacking::expanded(size_t at, size_t length) {
  (void)lane_->copy_from_place(target_ + at, length);
}

// A mask that was not registered here has no plan: the host expands it.
bool DeviceUnpacking::unpack_masked(const Frame& frame) {
  auto plan = device::MaskPlans::instance().find(*frame.mask, lane_->device());
  if (plan == nullptr || (plan_ != nullptr && plan_ != plan)) {
    return false;
  }
  const uint64_t begin = frame.offset / frame.element_size;
  cuda::MoveCall call =
      plan->call(*frame.mask, frame.element_size, begin, begin + frame.length / frame.element_size);
  call.from = frame.payload.data();
  call.to = first_element(target_ + frame.at, frame.offset);
  plan_ = std::move(plan);
  ++by_kernels_;
  (void)lane_->unpack(call);
  return true;
}

void DeviceUnpacking::unpack_blocks(const Frame& frame) {
  const size_t blocks = frame.length / kZeroBlock, map = codec::block_map_bytes(blocks);
  const size_t tail = frame.length % kZeroBlock;
  // Into the device's memory first, where the blocks are aligned.
  std::byte* const room = lane_->block_room().data() + map % kVector;
  cuda::BlockCall call{};
  call.from = target_ + frame.at;
  call.blocks = blocks;
  call.bits = reinterpret_cast<uint64_t*>(room);
  call.packed = room + map;
  ++by_kernels_;
  const bool good = lane_->copy(room, frame.payload.data(), frame.payload.size() - tail) &&
                    lane_->unpack_blocks(call);
  if (good && tail > 0) {
    (void)lane_->copy(target_ + frame.at + blocks * kZeroBlock,
                      frame.payload.data() + frame.payload.size() - tail, tail);
  }
}

}  // namespace prunex::nccl

// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/codec/frame.h"

#include <algorithm>

#include "plugin/base/wire.h"

namespace prunex::nccl::codec {
namespace {

constexpr uint32_t kMagic = 0x464e5850;  // "PXNF"
constexpr uint8_t kVersion = 1;

bool lengths_fit(const FrameHeader& h, size_t behind) {
  // Only a masked piece may have nothing behind the header: all of it is dropped.
  if (h.payload != behind || (h.payload == 0 && h.kind != FrameKind::masked)) {
    return false;
  }
  if (h.kind == FrameKind::mask_definition) {
    return h.logical == 0 && h.payload <= kMaxMaskDefinition;
  }
  return h.logical > 0 && h.logical <= kMaxPiece && h.payload <= h.logical &&
         (h.kind != FrameKind::stored || h.payload == h.logical);
}

bool mask_fits(const FrameHeader& h) {
  if (h.kind == FrameKind::zero_block || h.kind == FrameKind::stored) {
    return h.slot == 0 && h.element_size == 0 && h.mask_digest == 0 && h.offset == 0;
  }
  if (h.slot >= kMaxMaskSlots || !valid_element_size(h.element_size)) {
    return false;
  }
  if (h.kind == FrameKind::mask_definition) {
    return h.offset == 0;
  }
  return h.offset <= kMaxTensorBytes - h.logical && h.offset % h.element_size == 0 &&
         h.logical % h.element_size == 0;
}

}  // namespace

const char* text_of(FrameStatus status) {
  switch (status) {
    case FrameStatus::ok:
      return "no fault";
    case FrameStatus::truncated:
      return "shorter than a frame's header";
    case FrameStatus::wrong_magic:
      return "not the start of a frame";
    case FrameStatus::wrong_version:
      return "a frame of another version";
    case FrameStatus::unknown_kind:
      return "a frame of no known kind";
    case FrameStatus::wrong_length:
      return "lengths that contradict each other or the limits";
    case FrameStatus::wrong_mask:
      return "a mask slot, element size or offset out of range";
    case FrameStatus::reserved_set:
      return "reserved bits that are not 0";
  }
  return "?";
}

void encode(const FrameHeader& header, std::span<std::byte, kFrameBytes> out) {
  WireWriter w(out);
  w.put(kMagic);
  w.put(kVersion);
  w.put(static_cast<uint8_t>(header.kind));
  w.put(header.element_size);
  w.zero(1);
  w.put(header.logical);
  w.put(header.payload);
  w.put(header.slot);
  w.zero(4);
  w.put(header.mask_digest);
  w.put(header.offset);
}

FrameStatus decode_first(std::span<const std::byte> frames, FrameHeader* header, size_t* length) {
  if (frames.size() < kFrameBytes) {
    return FrameStatus::truncated;
  }
  constexpr size_t kPayloadAt = 12;
  WireReader r(frames.subspan(kPayloadAt));
  const size_t wanted = kFrameBytes + r.get<uint32_t>();
  const FrameStatus status = decode(frames.first(std::min(wanted, frames.size())), header);
  if (status == FrameStatus::ok) {
    *length = wanted;
  }
  return status;
}

FrameStatus decode(std::span<const std::byte> frame, FrameHeader* out) {
  if (frame.size() < kFrameBytes) {
    return FrameStatus::truncated;
  }
  WireReader r(frame);
  if (r.get<uint32_t>() != kMagic) {
    return FrameStatus::wrong_magic;
  }
  if (r.get<uint8_t>() != kVersion) {
    return FrameStatus::wrong_version;
  }
  const auto kind = r.get<uint8_t>();
  if (kind < static_cast<uint8_t>(FrameKind::zero_block) ||
      kind > static_cast<uint8_t>(FrameKind::stored)) {
    return FrameStatus::unknown_kind;
  }
  FrameHeader h;
  h.kind = static_cast<FrameKind>(kind);
  h.element_size = r.get<uint8_t>();
  uint32_t reserved = r.get<uint8_t>();
  h.logical = r.get<uint32_t>();
  h.payload = r.get<uint32_t>();
  h.slot = r.get<uint32_t>();
  reserved |= r.get<uint32_t>();
  h.mask_digest = r.get<uint64_t>();
  h.offset = r.get<uint64_t>();
  if (reserved != 0) {
    return FrameStatus::reserved_set;
  }
  if (!lengths_fit(h, r.left())) {
    return FrameStatus::wrong_length;
  }
  if (!mask_fits(h)) {
    return FrameStatus::wrong_mask;
  }
  *out = h;
  return FrameStatus::ok;
}

}  // namespace prunex::nccl::codec

// SPDX-License-Identifier: Apache-2.0
// What stands at the start of a side buffer: a piece of a message that travels encoded, or a mask.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace prunex::nccl::codec {

inline constexpr size_t kFrameBytes = 40;
inline constexpr size_t kMaxPiece = size_t{1} << 20;             // logical bytes of one frame
inline constexpr size_t kMaxMaskDefinition = size_t{256} << 10;  // payload of a mask
inline constexpr uint32_t kMaxMaskSlots = 64;                    // masks of one connection
inline constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 60;   // so that no sum overflows

enum class FrameKind : uint8_t {
  zero_block = 1,       // zero_block.h
  masked = 2,           // masked.h; the mask came before, in the same slot
  mask_definition = 3,  // mask_wire.h; no bytes of a message
  stored = 4,           // the piece as it is: others of its message are worth encoding
};

// Fields that a kind does not use are 0.
struct FrameHeader {
  FrameKind kind = FrameKind::zero_block;
  uint32_t logical = 0;      // bytes of the piece: 1 to kMaxPiece; mask_definition: 0
  uint32_t payload = 0;      // bytes behind the header
  uint32_t slot = 0;         // of the mask, below kMaxMaskSlots
  uint8_t element_size = 0;  // of the masked tensor: 1, 2, 4, 8
  uint64_t mask_digest = 0;
  uint64_t offset = 0;  // masked: of the piece within the tensor, in bytes
  [[nodiscard]] bool operator==(const FrameHeader&) const = default;
};

enum class FrameStatus : uint8_t {
  ok = 0,
  truncated,
  wrong_magic,
  wrong_version,
  unknown_kind,
  wrong_length,  // logical or payload against the limits and the bytes that arrived
  wrong_mask,    // slot, element size or offset
  reserved_set,
};
[[nodiscard]] const char* text_of(FrameStatus status);

[[nodiscard]] constexpr bool valid_element_size(uint64_t bytes) {
  return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
}

// Little-endian: magic u32, version u8, kind u8, element size u8, 0 u8, logical u32, payload u32,
// slot u32, 0 u32, digest u64, offset u64.
void encode(const FrameHeader& header, std::span<std::byte, kFrameBytes> out);

// The first of several frames: *length is that of header and payload together, at most what there
// is. *header and *length are written only when the answer is ok.
[[nodiscard]] FrameStatus decode_first(std::span<const std::byte> frames, FrameHeader* header,
                                       size_t* length);

// `frame`: all that arrived; the payload is everything behind the header. *out is written only
// when the answer is ok.
[[nodiscard]] FrameStatus decode(std::span<const std::byte> frame, FrameHeader* out);

}  // namespace prunex::nccl::codec

// SPDX-License-Identifier: Apache-2.0
// A whole message in its encoded form: frames of at most 1 MiB each, one after the other, padded to
// 8 bytes. What arrives is byte for byte what was sent; a message that would not get smaller, or
// that breaks its mask's promise, is not encoded at all.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/mask.h"
#include "plugin/base/result.h"
#include "plugin/nccl/codec/frame.h"
#include "plugin/nccl/codec/mask_wire.h"
#include "plugin/nccl/codec/masked.h"
#include "plugin/nccl/codec/step.h"
#include "plugin/nccl/codec/zero_block.h"
#include "plugin/nccl/stats.h"

namespace prunex::nccl {

inline constexpr size_t kLeastEncoded = codec::kLeastScanned;
inline constexpr size_t kMostEncoded = size_t{64} << 20;  // longer messages go as they are
// What a message may need beside its own length: headers, a mask.
inline constexpr size_t kSideSlack = codec::kMaxMaskDefinition + (size_t{64} << 10);

// Whether to look at a message at all: every look that did not pay is followed by twice as many
// messages that are not looked at, up to kLongest.
class Backoff {
 public:
  static constexpr uint32_t kLongest = 63;
  [[nodiscard]] bool look() {
    if (left_ > 0) {
      --left_;
      return false;
    }
    return true;
  }
  void paid() { length_ = 0; }
  void did_not_pay() {
    length_ = length_ >= kLongest ? kLongest : 2 * length_ + 1;
    left_ = length_;
  }

 private:
  uint32_t length_ = 0, left_ = 0;
};

// A piece of a registered tensor.
struct MaskedPiece {
  std::shared_ptr<const CompiledMask> mask;
  size_t element_size = 0;
  uint64_t offset = 0;  // bytes, of the message in the tensor
};

// Known before any byte is touched.
[[nodiscard]] bool pays_masked(const MaskedPiece& piece, size_t bytes);

class MessageEncoder {
 public:
  // Whether a mask can cross this connection: one that takes too many bytes cannot.
  [[nodiscard]] bool carries(const CompiledMask& mask);

  // src and room stay until the last step; a piece's mask is one that carries() accepted. Without a
  // piece, zero blocks are left out.
  void begin(std::span<const std::byte> src, std::span<std::byte> room,
             const std::optional<MaskedPiece>& piece);
  // Handles up to *budget bytes and takes them off it.
  [[nodiscard]] codec::Encoding step(size_t* budget);
  [[nodiscard]] size_t size() const { return size_; }
  // The message is on its way: the peer will know its mask.
  void sent();

 private:
  bool begin_frame();
  [[nodiscard]] codec::Encoding step_frame(size_t budget);
  [[nodiscard]] codec::Encoding store(size_t budget);
  [[nodiscard]] std::optional<uint32_t> slot_of(uint64_t digest) const;
  void define_mask();
  [[nodiscard]] codec::Encoding end_frame();

  std::span<const std::byte> src_;
  std::span<std::byte> room_;
  std::optional<MaskedPiece> piece_;
  size_t at_ = 0, size_ = 0;       // of src_, of room_
  size_t frame_ = 0, length_ = 0;  // where the frame's header is; logical bytes of the frame
  size_t limit_ = 0;               // of size_, for the message to pay
  size_t stored_ = 0;              // bytes of the frame that is stored
  bool open_ = false, stores_ = false;
  codec::Encoding state_ = codec::Encoding::does_not_pay;
  codec::ZeroBlockEncoder zero_;
  codec::MaskedEncoder masked_;

  // Masks that the peer holds, by slot; used again in turn.
  std::array<uint64_t, codec::kMaxMaskSlots> slots_{};
  std::array<bool, codec::kMaxMaskSlots> slot_used_{};
  uint32_t next_slot_ = 0, slot_ = 0;
  bool defines_ = false;  // this message brings its mask
  // The last mask that carries() looked at: its bytes, none when it is too long.
  std::optional<std::vector<std::byte>> definition_;
  uint64_t defined_digest_ = 0;
  bool looked_ = false;
};

class MessageDecoder {
 public:
  // Writes to the first *logical() bytes of dst, in ascending order.
  void begin(std::span<const std::byte> in, std::span<std::byte> dst);
  [[nodiscard]] codec::Decoding step(size_t* budget);
  [[nodiscard]] size_t logical() const { return at_; }
  [[nodiscard]] WireKind kind() const { return kind_; }
  [[nodiscard]] const std::string& fault() const { return fault_; }  // after corrupt

 private:
  [[nodiscard]] bool begin_frame();
  codec::Decoding corrupt(std::string why);

  std::span<const std::byte> in_;
  std::span<std::byte> dst_;
  [[nodiscard]] codec::Decoding step_frame(size_t budget);

  size_t read_ = 0, at_ = 0, length_ = 0;
  bool open_ = false;
  codec::FrameHeader frame_;           // the one that is open
  std::span<const std::byte> stored_;  // what is left of a stored frame
  WireKind kind_ = WireKind::zero_block;
  codec::Decoding state_ = codec::Decoding::corrupt;
  std::string fault_;
  codec::ZeroBlockDecoder zero_;
  codec::MaskedDecoder masked_;
  codec::MaskDefinitionDecoder definition_;
  struct Held {
    std::shared_ptr<const CompiledMask> mask;
    size_t element_size = 0;
  };
  std::array<Held, codec::kMaxMaskSlots> masks_;
};

}  // namespace prunex::nccl

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

// Which messages to pass over without a look: every look that did not pay is followed by twice as
// many messages that are not looked at, up to kLongest.
class Backoff {
 public:
  static constexpr uint32_t kLongest = 63;
  [[nodiscard]] bool skips() {
    if (left_ > 0) {
      --left_;
      return true;
    }
    return false;
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

// Where the payload of one frame of a masked message belongs.
struct PayloadPlace {
  size_t at, length;  // logical bytes of the message
  std::byte* payload;
};

class MessageEncoder {
 public:
  MessageEncoder() { definition_.reserve(codec::kMaskRoom); }
  // Whether a mask can cross this connection: one that takes too many bytes cannot.
  [[nodiscard]] bool carries(const CompiledMask& mask);
  // Whether the peer has it; if not, the next message that needs it brings it.
  [[nodiscard]] bool peer_has(const CompiledMask& mask) const {
    return slot_of(mask.digest).has_value();
  }

  // For messages that something else packs: all of the message but its payloads, each of which is
  // to be written by whoever gets its place. Room is laid_out_size(), which size() then is too; the
  // message must not break its mask's promise, and none that brings a mask may be followed by
  // another before it was sent() or given up.
  [[nodiscard]] size_t laid_out_size(const MaskedPiece& piece, size_t bytes);
  template <class Visit>  // of a PayloadPlace
  void lay_out(const MaskedPiece& piece, size_t bytes, std::span<std::byte> room, Visit&& visit) {
    begin({}, room, piece);
    while (at_ < bytes) {
      visit(lay_out_frame(bytes));
    }
  }

  // What begin() needs, for a mask that carries() accepted.
  [[nodiscard]] size_t room_for(const std::optional<MaskedPiece>& piece, size_t bytes) const;
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
  PayloadPlace lay_out_frame(size_t bytes);
  bool begin_frame();
  [[nodiscard]] codec::Encoding step_frame(size_t budget);
  [[nodiscard]] codec::Encoding store(size_t budget);
  [[nodiscard]] std::optional<uint32_t> slot_of(uint64_t digest) const;
  void define_mask();
  [[nodiscard]] codec::FrameHeader masked_header(size_t payload) const;
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
  // The last mask that carries() looked at: its bytes, unless it is too long.
  std::vector<std::byte> definition_;
  uint64_t defined_digest_ = 0;
  bool looked_ = false, fits_ = false;
};

// Takes frames that the host need not expand itself, and says where it expands the others to: none
// of the message's own memory is written.
class FrameSink {
 public:
  struct Frame {
    codec::FrameKind kind;
    std::span<const std::byte> payload;  // stays until the message is given back; it is valid
    size_t at, length;                   // logical bytes of the message
    const CompiledMask* mask;            // masked
    size_t element_size;
    uint64_t offset;
  };
  virtual ~FrameSink() = default;
  virtual bool take(const Frame& frame) = 0;  // false: the host is to expand it
  virtual std::byte* place() = 0;  // codec::kMaxPiece bytes for that, of one frame at a time
  virtual bool ready() = 0;        // whether the place may be written now
  virtual void expanded(size_t at, size_t length) = 0;  // by the host, to the place
};

class MessageDecoder {
 public:
  // A mask with that digest, if there is one already; the bytes of it that come are left alone
  // then.
  using Known = std::shared_ptr<const CompiledMask> (*)(uint64_t digest);
  explicit MessageDecoder(Known known = nullptr) : known_(known) {}

  // Writes to the first *logical() bytes of dst, in ascending order; with a sink, to its place.
  void begin(std::span<const std::byte> in, std::span<std::byte> dst, FrameSink* sink = nullptr);
  [[nodiscard]] codec::Decoding step(size_t* budget);
  [[nodiscard]] size_t logical() const { return at_; }
  [[nodiscard]] WireKind kind() const { return kind_; }
  [[nodiscard]] const std::string& fault() const { return fault_; }  // after corrupt

 private:
  [[nodiscard]] bool begin_frame();
  void begin_definition(std::span<const std::byte> payload);
  void offer(std::span<const std::byte> payload);
  codec::Decoding corrupt(std::string why);

  std::span<const std::byte> in_;
  std::span<std::byte> dst_;
  [[nodiscard]] codec::Decoding step_frame(size_t budget);

  size_t read_ = 0, at_ = 0, length_ = 0;
  FrameSink* sink_ = nullptr;
  std::byte* into_ = nullptr;  // where the open frame is expanded to
  bool open_ = false, taken_ = false;
  codec::FrameHeader frame_;           // the one that is open
  std::span<const std::byte> stored_;  // what is left of a stored frame
  WireKind kind_ = WireKind::zero_block;
  codec::Decoding state_ = codec::Decoding::corrupt;
  std::string fault_;
  codec::ZeroBlockDecoder zero_;
  codec::MaskedDecoder masked_;
  codec::MaskDefinitionDecoder definition_;
  const Known known_;
  struct Held {
    std::shared_ptr<const CompiledMask> mask;
    size_t element_size = 0;
  };
  std::array<Held, codec::kMaxMaskSlots> masks_;
};

}  // namespace prunex::nccl

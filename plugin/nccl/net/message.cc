// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/net/message.h"

#include <algorithm>
#include <cstring>

namespace prunex::nccl {
namespace {

using codec::Decoding;
using codec::Encoding;

constexpr size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

// Pieces end at whole elements, whatever the element size.
static_assert(codec::kMaxPiece % 8 == 0);
constexpr size_t kTakenCost = size_t{16} << 10;  // of a step's budget: work for others, not for us
size_t piece_at(size_t at, size_t bytes) { return std::min(codec::kMaxPiece, bytes - at); }

size_t frames_size(const MaskedPiece& piece, size_t bytes) {
  size_t total = 0;
  for (size_t at = 0; at < bytes; at += piece_at(at, bytes)) {
    total +=
        codec::kFrameBytes + padded(codec::masked_size(*piece.mask, piece.element_size,
                                                       piece.offset + at, piece_at(at, bytes)));
  }
  return total;
}

}  // namespace

bool pays_masked(const MaskedPiece& piece, size_t bytes) {
  return codec::masked_applies(*piece.mask, piece.element_size, piece.offset, bytes) &&
         frames_size(piece, bytes) <= codec::paying_size(bytes);
}

void MessageEncoder::begin(std::span<const std::byte> src, std::span<std::byte> room,
                           const std::optional<MaskedPiece>& piece) {
  src_ = src;
  room_ = room;
  piece_ = piece;
  at_ = size_ = 0;
  limit_ = codec::paying_size(src.size());
  open_ = defines_ = false;
  state_ = Encoding::more;
  if (piece_) {
    define_mask();
  }
}

std::optional<uint32_t> MessageEncoder::slot_of(uint64_t digest) const {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slot_used_[i] && slots_[i] == digest) {
      return i;
    }
  }
  return std::nullopt;
}

bool MessageEncoder::carries(const CompiledMask& mask) {
  if (slot_of(mask.digest)) {
    return true;
  }
  if (!looked_ || defined_digest_ != mask.digest) {
    fits_ = codec::encode_mask(mask, &definition_);
    defined_digest_ = mask.digest;
    looked_ = true;
  }
  return fits_;
}

size_t MessageEncoder::room_for(const std::optional<MaskedPiece>& piece, size_t bytes) const {
  const size_t frames = (bytes + codec::kMaxPiece - 1) / codec::kMaxPiece;
  const bool teaches = piece && !peer_has(*piece->mask);
  return bytes + frames * padded(codec::kFrameBytes + 7) +
         (teaches ? padded(codec::kFrameBytes + definition_.size()) : 0);
}

// The mask goes before the first message that needs it.
void MessageEncoder::define_mask() {
  const uint64_t digest = piece_->mask->digest;
  if (const auto known = slot_of(digest)) {
    slot_ = *known;
    return;
  }
  if (!carries(*piece_->mask)) {
    state_ = Encoding::does_not_pay;
    return;
  }
  slot_ = next_slot_;
  codec::FrameHeader header;
  header.kind = codec::FrameKind::mask_definition;
  header.payload = static_cast<uint32_t>(definition_.size());
  header.slot = slot_;
  header.element_size = static_cast<uint8_t>(piece_->element_size);
  header.mask_digest = digest;
  codec::encode(header, room_.first<codec::kFrameBytes>());
  std::memcpy(room_.data() + codec::kFrameBytes, definition_.data(), definition_.size());
  size_ = padded(codec::kFrameBytes + definition_.size());
  limit_ += size_;  // sent once: not this message's to pay for
  defines_ = true;
}

void MessageEncoder::sent() {
  if (defines_) {
    slots_[slot_] = piece_->mask->digest;
    slot_used_[slot_] = true;
    next_slot_ = (next_slot_ + 1) % codec::kMaxMaskSlots;
    defines_ = false;
  }
}

bool MessageEncoder::begin_frame() {
  frame_ = size_;
  length_ = piece_at(at_, src_.size());
  const auto piece = src_.subspan(at_, length_);
  const auto out = room_.subspan(std::min(room_.size(), frame_ + codec::kFrameBytes));
  if (out.size() < length_) {
    return false;
  }
  stores_ = false;
  stored_ = 0;
  if (piece_) {
    masked_.begin(*piece_->mask, piece_->element_size, piece_->offset + at_, piece.data(),
                  piece.size(), out);
  } else {
    zero_.begin(piece.data(), piece.size(), out);
  }
  open_ = true;
  return true;
}

Encoding MessageEncoder::step_frame(size_t budget) {
  if (stores_) {
    return store(budget);
  }
  const Encoding result = piece_ ? masked_.step(budget) : zero_.step(budget);
  // A piece that does not get smaller may have neighbours that do.
  if (result == Encoding::does_not_pay && !piece_ && length_ < src_.size()) {
    stores_ = true;
    return Encoding::more;
  }
  return result;
}

Encoding MessageEncoder::store(size_t budget) {
  const size_t n = std::min(budget, length_ - stored_);
  std::memcpy(room_.data() + frame_ + codec::kFrameBytes + stored_, src_.data() + at_ + stored_, n);
  stored_ += n;
  return stored_ == length_ ? Encoding::done : Encoding::more;
}

// Of the frame that begins at at_.
codec::FrameHeader MessageEncoder::masked_header(size_t payload) const {
  codec::FrameHeader header;
  header.kind = codec::FrameKind::masked;
  header.logical = static_cast<uint32_t>(length_);
  header.payload = static_cast<uint32_t>(payload);
  header.slot = slot_;
  header.element_size = static_cast<uint8_t>(piece_->element_size);
  header.mask_digest = piece_->mask->digest;
  header.offset = piece_->offset + at_;
  return header;
}

size_t MessageEncoder::laid_out_size(const MaskedPiece& piece, size_t bytes) {
  size_t size = frames_size(piece, bytes);
  if (!peer_has(*piece.mask) && carries(*piece.mask)) {
    size += padded(codec::kFrameBytes + definition_.size());
  }
  return size;
}

PayloadPlace MessageEncoder::lay_out_frame(size_t bytes) {
  const size_t at = at_;
  length_ = piece_at(at_, bytes);
  const size_t payload =
      codec::masked_size(*piece_->mask, piece_->element_size, piece_->offset + at_, length_);
  codec::encode(masked_header(payload), room_.subspan(size_).first<codec::kFrameBytes>());
  std::byte* const place = room_.data() + size_ + codec::kFrameBytes;
  size_ = padded(size_ + codec::kFrameBytes + payload);
  at_ += length_;
  return {at, length_, place};
}

Encoding MessageEncoder::end_frame() {
  codec::FrameHeader header;
  header.logical = static_cast<uint32_t>(length_);
  if (stores_) {
    header.kind = codec::FrameKind::stored;
    header.payload = header.logical;
  } else if (piece_) {
    header = masked_header(masked_.size());
  } else {
    header.kind = codec::FrameKind::zero_block;
    header.payload = static_cast<uint32_t>(zero_.size());
  }
  codec::encode(header, room_.subspan(frame_).first<codec::kFrameBytes>());
  size_ = padded(frame_ + codec::kFrameBytes + header.payload);
  at_ += length_;
  open_ = false;
  if (size_ > limit_) {
    return Encoding::does_not_pay;
  }
  return at_ == src_.size() ? Encoding::done : Encoding::more;
}

Encoding MessageEncoder::step(size_t* budget) {
  while (state_ == Encoding::more && *budget > 0) {
    if (!open_ && !begin_frame()) {
      state_ = Encoding::does_not_pay;
      break;
    }
    const Encoding result = step_frame(*budget);
    *budget -= std::min(*budget, length_);
    if (result == Encoding::done) {
      state_ = end_frame();
    } else if (result != Encoding::more) {
      state_ = result;
    }
  }
  return state_;
}

void MessageDecoder::begin(std::span<const std::byte> in, std::span<std::byte> dst,
                           FrameSink* sink) {
  in_ = in;
  dst_ = dst;
  sink_ = sink;
  read_ = at_ = 0;
  open_ = false;
  kind_ = WireKind::zero_block;
  state_ = Decoding::more;
  fault_.clear();
}

Decoding MessageDecoder::corrupt(std::string why) {
  fault_ = std::move(why);
  return Decoding::corrupt;
}

// false: it is corrupt.
bool MessageDecoder::begin_frame() {
  size_t bytes = 0;
  const codec::FrameStatus status = codec::decode_first(in_.subspan(read_), &frame_, &bytes);
  if (status != codec::FrameStatus::ok) {
    (void)corrupt(strf("frame at byte %zu: %s", read_, codec::text_of(status)));
    return false;
  }
  const auto payload = in_.subspan(read_ + codec::kFrameBytes, frame_.payload);
  const auto dst = dst_.subspan(at_);  // with a sink, its length counts alone
  read_ = std::min(in_.size(), padded(read_ + bytes));
  length_ = frame_.logical;
  if (length_ > dst.size()) {
    (void)corrupt(strf("it is longer than the receive of %zu bytes", dst_.size()));
    return false;
  }
  into_ = sink_ != nullptr ? sink_->place() : dst.data();
  const Held& held = masks_[frame_.slot];
  switch (frame_.kind) {
    case codec::FrameKind::stored:
      stored_ = payload;
      break;
    case codec::FrameKind::zero_block:
      zero_.begin(payload, length_, into_, length_);
      break;
    case codec::FrameKind::masked:
      if (held.mask == nullptr || held.mask->digest != frame_.mask_digest ||
          held.element_size != frame_.element_size) {
        (void)corrupt(strf("it uses the mask in slot %u, which holds another one", frame_.slot));
        return false;
      }
      kind_ = WireKind::masked;
      masked_.begin(*held.mask, held.element_size, frame_.offset, payload, into_, length_);
      break;
    case codec::FrameKind::mask_definition:
      begin_definition(payload);
      break;
  }
  open_ = true;
  offer(payload);
  return true;
}

// A mask that both ends have needs no copy, whose making takes memory.
void MessageDecoder::begin_definition(std::span<const std::byte> payload) {
  Held& held = masks_[frame_.slot];
  held = {known_ != nullptr ? known_(frame_.mask_digest) : nullptr, frame_.element_size};
  if (held.mask == nullptr) {
    definition_.begin(payload, frame_.mask_digest);
  }
}

void MessageDecoder::offer(std::span<const std::byte> payload) {
  const bool masked = frame_.kind == codec::FrameKind::masked;
  taken_ = sink_ != nullptr && frame_.kind != codec::FrameKind::mask_definition &&
           !(masked && masked_.refused()) &&
           !(frame_.kind == codec::FrameKind::zero_block && zero_.refused()) &&
           sink_->take({frame_.kind, payload, at_, length_,
                        masked ? masks_[frame_.slot].mask.get() : nullptr, frame_.element_size,
                        frame_.offset});
}

Decoding MessageDecoder::step_frame(size_t budget) {
  if (taken_) {
    return Decoding::done;
  }
  switch (frame_.kind) {
    case codec::FrameKind::zero_block:
      return zero_.step(budget);
    case codec::FrameKind::masked:
      return masked_.step(budget);
    case codec::FrameKind::mask_definition: {
      Held& held = masks_[frame_.slot];
      if (held.mask != nullptr) {
        return Decoding::done;
      }
      const Decoding result = definition_.step(budget);
      if (result == Decoding::done) {
        held.mask = std::make_shared<const CompiledMask>(definition_.take());
      }
      return result;
    }
    case codec::FrameKind::stored:
      break;
  }
  const size_t n = std::min(budget, stored_.size());
  std::memcpy(into_ + length_ - stored_.size(), stored_.data(), n);
  stored_ = stored_.subspan(n);
  return stored_.empty() ? Decoding::done : Decoding::more;
}

Decoding MessageDecoder::step(size_t* budget) {
  while (state_ == Decoding::more && *budget > 0) {
    if (!open_) {
      if (read_ == in_.size()) {
        return state_ = Decoding::done;
      }
      if (!begin_frame()) {
        return state_ = Decoding::corrupt;
      }
      continue;
    }
    if (sink_ != nullptr && !taken_ && length_ > 0 && !sink_->ready()) {
      *budget = 0;
      break;
    }
    const size_t asked = *budget;
    const Decoding result = step_frame(asked);
    *budget -= std::min(asked, taken_ ? kTakenCost : std::max<size_t>(length_, frame_.payload));
    if (result == Decoding::corrupt) {
      return state_ = corrupt(frame_.kind == codec::FrameKind::mask_definition
                                  ? definition_.fault()
                                  : "its payload and its header do not fit together");
    }
    if (result == Decoding::done) {
      if (sink_ != nullptr && !taken_ && length_ > 0) {
        sink_->expanded(at_, length_);
      }
      at_ += length_;
      open_ = false;
    }
  }
  return state_;
}

}  // namespace prunex::nccl

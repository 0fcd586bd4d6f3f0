// SPDX-License-Identifier: Apache-2.0
// A piece of a message that lies inside a registered tensor, without what its mask drops. The mask
// only says where zeros are expected: the encoder tests every dropped byte in the pass that packs
// the others, and one that has any bit set (so has -0.0) ends it with `violated`.
//
// Payload: the kept elements of the piece in ascending order, as they are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/mask.h"
#include "plugin/nccl/codec/step.h"

namespace prunex::nccl::codec {

// Whole elements of the tensor that `mask` describes: bytes [offset, offset + bytes) of it. The
// functions below are only for pieces of which this is true.
[[nodiscard]] bool masked_applies(const CompiledMask& mask, size_t element_size, uint64_t offset,
                                  size_t bytes);

// Bytes of the payload. O(log panels), reads no data.
[[nodiscard]] size_t masked_size(const CompiledMask& mask, size_t element_size, uint64_t offset,
                                 size_t bytes);

// Both keep a pointer to the mask until the last step.
class MaskedEncoder {
 public:
  // `src`: the piece. Writes to out only, at most masked_size() of it; does_not_pay when out is
  // smaller or masked_applies() is false.
  void begin(const CompiledMask& mask, size_t element_size, uint64_t offset, const void* src,
             size_t bytes, std::span<std::byte> out);
  [[nodiscard]] Encoding step(size_t budget);
  [[nodiscard]] size_t size() const { return size_; }  // of the payload, known from the begin

 private:
  const CompiledMask* mask_ = nullptr;
  const std::byte* src_ = nullptr;  // element at_
  std::byte* out_ = nullptr;        // its place
  std::byte* out_end_ = nullptr;
  uint64_t at_ = 0, end_ = 0;  // elements of the tensor
  size_t size_ = 0;
  unsigned shift_ = 0;  // log2 of the element size
  Encoding state_ = Encoding::does_not_pay;
};

class MaskedDecoder {
 public:
  // `bytes` at dst are the piece. Corrupt, before anything is written, when masked_applies() is
  // false or the payload has another length than the mask asks for. Afterwards all of the piece is
  // written, zeros included, in ascending order.
  void begin(const CompiledMask& mask, size_t element_size, uint64_t offset,
             std::span<const std::byte> in, void* dst, size_t bytes);
  [[nodiscard]] bool refused() const { return state_ == Decoding::corrupt; }  // by begin()
  [[nodiscard]] Decoding step(size_t budget);

 private:
  const CompiledMask* mask_ = nullptr;
  const std::byte* in_ = nullptr;
  const std::byte* in_end_ = nullptr;
  std::byte* dst_ = nullptr;
  uint64_t at_ = 0, end_ = 0;
  unsigned shift_ = 0;
  Decoding state_ = Decoding::corrupt;
};

}  // namespace prunex::nccl::codec

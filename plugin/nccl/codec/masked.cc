// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/codec/masked.h"

#include <algorithm>
#include <bit>

#include "kernels/exact.h"
#include "plugin/nccl/codec/frame.h"

namespace prunex::nccl::codec {

bool masked_applies(const CompiledMask& mask, size_t element_size, uint64_t offset, size_t bytes) {
  if (!valid_element_size(element_size) || offset % element_size != 0 ||
      bytes % element_size != 0) {
    return false;
  }
  const uint64_t begin = offset / element_size;
  return begin <= mask.count && bytes / element_size <= mask.count - begin;
}

size_t masked_size(const CompiledMask& mask, size_t element_size, uint64_t offset, size_t bytes) {
  const uint64_t begin = offset / element_size;
  const uint64_t end = begin + bytes / element_size;
  return (kept_before(mask, end) - kept_before(mask, begin)) * element_size;
}

void MaskedEncoder::begin(const CompiledMask& mask, size_t element_size, uint64_t offset,
                          const void* src, size_t bytes, std::span<std::byte> out) {
  state_ = Encoding::does_not_pay;
  size_ = 0;
  if (!masked_applies(mask, element_size, offset, bytes)) {
    return;
  }
  const size_t size = masked_size(mask, element_size, offset, bytes);
  if (size > out.size()) {
    return;
  }
  mask_ = &mask;
  src_ = static_cast<const std::byte*>(src);
  out_ = out.data();
  out_end_ = out.data() + size;
  at_ = offset / element_size;
  end_ = at_ + bytes / element_size;
  size_ = size;
  shift_ = static_cast<unsigned>(std::countr_zero(element_size));
  state_ = Encoding::more;
}

Encoding MaskedEncoder::step(size_t budget) {
  if (state_ != Encoding::more) {
    return state_;
  }
  const uint64_t n = std::min<uint64_t>(std::max<size_t>(budget >> shift_, 1), end_ - at_);
  const ExactPack got = pack_exact(*mask_, shift_, at_, at_ + n, src_, out_, out_end_);
  if (got.nonzero != 0) {
    return state_ = Encoding::violated;
  }
  at_ += n;
  src_ += n << shift_;
  out_ += got.packed;
  if (at_ == end_) {
    state_ = Encoding::done;
  }
  return state_;
}

void MaskedDecoder::begin(const CompiledMask& mask, size_t element_size, uint64_t offset,
                          std::span<const std::byte> in, void* dst, size_t bytes) {
  state_ = Decoding::corrupt;
  if (!masked_applies(mask, element_size, offset, bytes) ||
      masked_size(mask, element_size, offset, bytes) != in.size()) {
    return;
  }
  mask_ = &mask;
  in_ = in.data();
  in_end_ = in.data() + in.size();
  dst_ = static_cast<std::byte*>(dst);
  at_ = offset / element_size;
  end_ = at_ + bytes / element_size;
  shift_ = static_cast<unsigned>(std::countr_zero(element_size));
  state_ = Decoding::more;
}

Decoding MaskedDecoder::step(size_t budget) {
  if (state_ != Decoding::more) {
    return state_;
  }
  const uint64_t n = std::min<uint64_t>(std::max<size_t>(budget >> shift_, 1), end_ - at_);
  in_ += unpack_exact(*mask_, shift_, at_, at_ + n, in_, in_end_, dst_);
  at_ += n;
  dst_ += n << shift_;
  if (at_ == end_) {
    state_ = Decoding::done;
  }
  return state_;
}

}  // namespace prunex::nccl::codec

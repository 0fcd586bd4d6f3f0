// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/codec/zero_block.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/exact.h"

namespace prunex::nccl::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "bitmaps are little-endian words");

constexpr size_t kProbes = 32;
constexpr size_t kZeroProbes = 2;  // one in 16: fewer zero blocks do not pay
constexpr size_t kWordBits = 64;

constexpr size_t words_of(size_t blocks) { return (blocks + kWordBits - 1) / kWordBits; }

uint64_t load_word(const std::byte* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

size_t ones(uint64_t word) { return static_cast<size_t>(std::popcount(word)); }

// Where in its share of the message each probe looks, in 1/256: anything but a plain stride, which
// rows of a tensor could hit always in the same place.
constexpr std::array<uint8_t, kProbes> kJitter = [] {
  std::array<uint8_t, kProbes> jitter{};
  uint32_t v = 0x9e3779b9;
  for (uint8_t& j : jitter) {
    v = v * 0x85ebca6b + 0xc2b2ae35;
    j = static_cast<uint8_t>(v >> 24);
  }
  return jitter;
}();

}  // namespace

bool worth_scanning(const void* src, size_t bytes) {
  if (bytes < kLeastScanned) {
    return false;
  }
  const auto* const from = static_cast<const std::byte*>(src);
  const size_t blocks = bytes / kZeroBlock;
  // First one word of each, all at once in flight; seldom does a dense block start with zeros.
  std::array<const std::byte*, kProbes> candidates{};
  size_t num = 0;
  for (size_t i = 0; i < kProbes; ++i) {
    const size_t begin = i * blocks / kProbes;
    const size_t share = (i + 1) * blocks / kProbes - begin;
    const std::byte* block = from + (begin + share * kJitter[i] / 256) * kZeroBlock;
    candidates[num] = block;
    num += load_word(block) == 0 ? 1 : 0;
  }
  size_t zeros = 0;
  for (size_t i = 0; i < num && zeros < kZeroProbes; ++i) {
    zeros += all_zero(candidates[i], kZeroBlock) ? 1 : 0;
  }
  return zeros >= kZeroProbes;
}

void ZeroBlockEncoder::begin(const void* src, size_t bytes, std::span<std::byte> out) {
  src_ = static_cast<const std::byte*>(src);
  out_ = out.data();
  bytes_ = bytes;
  blocks_ = bytes / kZeroBlock;
  at_ = 0;
  size_ = block_map_bytes(blocks_);
  word_ = 0;
  const size_t tail = bytes % kZeroBlock;
  const size_t most = std::min(out.size(), paying_size(bytes));
  state_ = bytes > 0 && size_ + tail <= most ? Encoding::more : Encoding::does_not_pay;
  limit_ = state_ == Encoding::more ? most - tail : 0;
}

Encoding ZeroBlockEncoder::step(size_t budget) {
  if (state_ == Encoding::more) {
    state_ = run(std::max<size_t>(budget / kZeroBlock, 1));
  }
  return state_;
}

// At most `left` blocks.
Encoding ZeroBlockEncoder::run(size_t left) {
  while (at_ < blocks_ && left > 0) {
    const size_t bit = at_ % kWordBits;
    size_t n = std::min({kWordBits - bit, blocks_ - at_, left});
    const std::byte* from = src_ + at_ * kZeroBlock;
    const size_t room = (limit_ - size_) / kZeroBlock;
    if (room > 0) {
      n = std::min(n, room);
      const uint64_t bits = pack_blocks(from, n, out_ + size_);
      word_ |= bits << bit;
      size_ += ones(bits) * kZeroBlock;
    } else if (!all_zero(from, n * kZeroBlock)) {
      return Encoding::does_not_pay;
    }
    at_ += n;
    left -= n;
    if (at_ % kWordBits == 0 || at_ == blocks_) {
      std::memcpy(out_ + (at_ - 1) / kWordBits * sizeof word_, &word_, sizeof word_);
      word_ = 0;
    }
  }
  return at_ < blocks_ ? Encoding::more : finish();
}

Encoding ZeroBlockEncoder::finish() {
  const size_t tail = bytes_ % kZeroBlock;
  std::memcpy(out_ + size_, src_ + blocks_ * kZeroBlock, tail);
  size_ += tail;
  return Encoding::done;
}

void ZeroBlockDecoder::begin(std::span<const std::byte> in, size_t logical, void* dst,
                             size_t capacity) {
  state_ = Decoding::corrupt;
  blocks_ = logical / kZeroBlock;
  const size_t words = words_of(blocks_);
  const size_t bitmap = block_map_bytes(blocks_);
  if (logical > capacity || bitmap > in.size()) {
    return;
  }
  size_t present = 0;
  for (size_t w = 0; w < words; ++w) {
    present += ones(load_word(in.data() + w * sizeof(uint64_t)));
  }
  if (blocks_ % kWordBits != 0 &&
      load_word(in.data() + bitmap - sizeof(uint64_t)) >> (blocks_ % kWordBits) != 0) {
    return;
  }
  if (bitmap + present * kZeroBlock + logical % kZeroBlock != in.size()) {
    return;
  }
  bitmap_ = in.data();
  in_ = in.data() + bitmap;
  dst_ = static_cast<std::byte*>(dst);
  logical_ = logical;
  at_ = 0;
  state_ = Decoding::more;
}

Decoding ZeroBlockDecoder::step(size_t budget) {
  if (state_ != Decoding::more) {
    return state_;
  }
  for (size_t left = std::max<size_t>(budget / kZeroBlock, 1); at_ < blocks_ && left > 0;) {
    const size_t bit = at_ % kWordBits;
    const size_t n = std::min({kWordBits - bit, blocks_ - at_, left});
    uint64_t bits = load_word(bitmap_ + at_ / kWordBits * sizeof(uint64_t)) >> bit;
    if (n < kWordBits) {
      bits &= (uint64_t{1} << n) - 1;
    }
    unpack_blocks(bits, n, in_, dst_ + at_ * kZeroBlock);
    in_ += ones(bits) * kZeroBlock;
    at_ += n;
    left -= n;
  }
  if (at_ == blocks_) {
    if (const size_t tail = logical_ % kZeroBlock; tail > 0) {
      std::memcpy(dst_ + blocks_ * kZeroBlock, in_, tail);
    }
    state_ = Decoding::done;
  }
  return state_;
}

}  // namespace prunex::nccl::codec

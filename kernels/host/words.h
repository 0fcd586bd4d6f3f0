// SPDX-License-Identifier: Apache-2.0
// The word policy of the vector instruction sets, made from lanes L:
//   kWidth, kLanes, kBytes   bytes of an element, elements and bytes of one step
//   Vec                      one step's elements
//   load, store              kBytes at any alignment
//   load_first, store_first  the first n < kLanes elements; no other byte is touched
//   compress(k, v)           lanes whose bit is set in k, moved to the front; the rest is anything
//   expand(k, v)             the first lanes of v to those whose bit is set; +0 elsewhere
//   nonzero(v, value_bits)   bit per lane
//   count, copy, zero        over contiguous memory
//   stream                   store past the caches, at a multiple of kBytes within a line
//   stream_line, stream_zeros  64 bytes of a copy, or of zeros, to the begin of a line
// Internal linkage: included by every instruction set's file, each with its own flags.
#pragma once
#include "kernels/host/rows.h"

namespace prunex::host {
namespace {

inline size_t ones(uint64_t word) { return static_cast<size_t>(__builtin_popcountll(word)); }

constexpr size_t kStreamLeast = 256;  // bytes; less has hardly a whole line

template <class L>
struct VectorWords {
  static constexpr size_t kWidth = L::kWidth;
  static constexpr size_t kSteps = 64 / L::kLanes;
  static constexpr uint64_t kLaneBits =
      L::kLanes == 64 ? ~uint64_t{0} : (uint64_t{1} << (L::kLanes % 64)) - 1;

  // Read from memory: one load where shifting the word would take two instructions.
  static uint64_t lanes_of(const uint64_t* word, size_t step) {
    if constexpr (L::kLanes == 64) {
      return *word;
    } else if constexpr (L::kLanes < 8) {
      const auto byte = reinterpret_cast<const uint8_t*>(word)[step * L::kLanes / 8];
      return (static_cast<uint64_t>(byte) >> (step * L::kLanes % 8)) & kLaneBits;
    } else {
      uint64_t k = 0;
      __builtin_memcpy(&k, reinterpret_cast<const uint8_t*>(word) + step * L::kLanes / 8,
                       L::kLanes / 8);
      return k;
    }
  }
  static uint64_t next(uint64_t word) {
    if constexpr (L::kLanes == 64) {
      return 0;
    } else {
      return word >> L::kLanes;
    }
  }

  // The packed elements of 64 columns; whole vectors are stored where there is room, so what lies
  // between the result and packed_end is overwritten (later words put their elements there).
  template <bool kAudit>
  static std::byte* compress(const std::byte* src, const uint64_t* word, std::byte* packed,
                             const std::byte* packed_end, uint64_t value_bits, uint64_t& nonzero) {
    if (!kAudit && *word == 0) {
      return packed;
    }
    if (static_cast<size_t>(packed_end - packed) < 64 * kWidth) [[unlikely]] {
      return compress_part<kAudit>(src, *word, 64, packed, packed_end, value_bits, nonzero);
    }
#pragma GCC unroll 16
    for (size_t s = 0; s < kSteps; ++s) {
      const uint64_t k = lanes_of(word, s);
      const auto v = L::load(src + s * L::kBytes);
      L::store(packed, L::compress(k, v));
      if constexpr (kAudit) {
        nonzero += ones(L::nonzero(v, value_bits) & ~k);
      }
      packed += ones(k) * kWidth;
    }
    return packed;
  }

  static uint64_t count_dropped(const std::byte* src, uint64_t word, size_t n,
                                uint64_t value_bits) {
    uint64_t nonzero = 0;
    for (; n >= L::kLanes; n -= L::kLanes, src += L::kBytes, word = next(word)) {
      nonzero += ones(L::nonzero(L::load(src), value_bits) & ~word);
    }
    if (n > 0) {
      nonzero += ones(L::nonzero(L::load_first(src, n), value_bits) & ~word);
    }
    return nonzero;
  }

  static const std::byte* expand(const std::byte* packed, const std::byte* packed_end,
                                 const uint64_t* word, std::byte* dst) {
    if (static_cast<size_t>(packed_end - packed) < 64 * kWidth) [[unlikely]] {
      return expand_part(packed, packed_end, *word, 64, dst);
    }
#pragma GCC unroll 16
    for (size_t s = 0; s < kSteps; ++s) {
      const uint64_t k = lanes_of(word, s);
      L::store(dst + s * L::kBytes, L::expand(k, L::load(packed)));
      packed += ones(k) * kWidth;
    }
    return packed;
  }

  // dst: at the begin of a line.
  static const std::byte* expand_stream(const std::byte* packed, const std::byte* packed_end,
                                        uint64_t word, std::byte* dst) {
    if (static_cast<size_t>(packed_end - packed) < 64 * kWidth) [[unlikely]] {
      return expand_part(packed, packed_end, word, 64, dst);
    }
#pragma GCC unroll 16
    for (size_t s = 0; s < kSteps; ++s) {
      const uint64_t k = lanes_of(&word, s);
      L::stream(dst + s * L::kBytes, L::expand(k, L::load(packed)));
      packed += ones(k) * kWidth;
    }
    return packed;
  }

  static uint64_t count(const std::byte* src, size_t n, uint64_t value_bits) {
    return L::count(src, n, value_bits);
  }
  static void copy(std::byte* dst, const std::byte* src, size_t bytes) { L::copy(dst, src, bytes); }
  static void zero(std::byte* dst, size_t bytes) { L::zero(dst, bytes); }

  static void copy_stream(std::byte* dst, const std::byte* src, size_t bytes) {
    if (bytes < kStreamLeast) {
      return L::copy(dst, src, bytes);
    }
    const size_t head = (0 - reinterpret_cast<uintptr_t>(dst)) % 64;
    L::copy(dst, src, head);
    size_t at = head;
    for (; bytes - at >= 64; at += 64) {
      L::stream_line(dst + at, src + at);
    }
    L::copy(dst + at, src + at, bytes - at);
  }
  static void zero_stream(std::byte* dst, size_t bytes) {
    if (bytes < kStreamLeast) {
      return L::zero(dst, bytes);
    }
    const size_t head = (0 - reinterpret_cast<uintptr_t>(dst)) % 64;
    L::zero(dst, head);
    size_t at = head;
    for (; bytes - at >= 64; at += 64) {
      L::stream_zeros(dst + at);
    }
    L::zero(dst + at, bytes - at);
  }

  // Fewer than 64 columns, or close to the end of the packed elements.
  template <bool kAudit>
  static std::byte* compress_part(const std::byte* src, uint64_t word, size_t n, std::byte* packed,
                                  const std::byte* packed_end, uint64_t value_bits,
                                  uint64_t& nonzero) {
    while (n > 0) {
      const size_t lanes = lesser(n, L::kLanes);
      const uint64_t k = word & kLaneBits;
      const auto v = lanes == L::kLanes ? L::load(src) : L::load_first(src, lanes);
      const size_t kept = ones(k);
      if (static_cast<size_t>(packed_end - packed) >= L::kBytes) {
        L::store(packed, L::compress(k, v));
      } else if (kept > 0) {
        L::store_first(packed, L::compress(k, v), kept);
      }
      if constexpr (kAudit) {
        nonzero += ones(L::nonzero(v, value_bits) & ~k);
      }
      packed += kept * kWidth;
      src += lanes * kWidth;
      word = next(word);
      n -= lanes;
    }
    return packed;
  }

  static const std::byte* expand_part(const std::byte* packed, const std::byte* packed_end,
                                      uint64_t word, size_t n, std::byte* dst) {
    while (n > 0) {
      const size_t lanes = lesser(n, L::kLanes);
      const uint64_t k = word & kLaneBits;
      const size_t kept = ones(k);
      const bool room = static_cast<size_t>(packed_end - packed) >= L::kBytes;
      const auto v = L::expand(k, room ? L::load(packed) : L::load_first(packed, kept));
      if (lanes == L::kLanes) {
        L::store(dst, v);
      } else {
        L::store_first(dst, v, lanes);
      }
      packed += kept * kWidth;
      dst += lanes * kWidth;
      word = next(word);
      n -= lanes;
    }
    return packed;
  }
};

}  // namespace
}  // namespace prunex::host

// SPDX-License-Identifier: Apache-2.0
// AVX-512: loads, stores and what works on contiguous memory.
#pragma once
#include <immintrin.h>

#include "kernels/host/words.h"

namespace prunex::host {
namespace {

inline __m512i load64(const std::byte* p) { return _mm512_loadu_si512(p); }
inline void store64(std::byte* p, __m512i v) { _mm512_storeu_si512(p, v); }

inline __mmask64 first_bytes(size_t n) { return _cvtu64_mask64(low_bits(n)); }
inline __m512i load_bytes(const std::byte* p, size_t bytes) {
  return _mm512_maskz_loadu_epi8(first_bytes(bytes), p);
}
inline void store_bytes(std::byte* p, __m512i v, size_t bytes) {
  _mm512_mask_storeu_epi8(p, first_bytes(bytes), v);
}
inline __m512i broadcast(uint64_t value_bits) {
  return _mm512_set1_epi64(static_cast<long long>(value_bits));
}

template <size_t kWidth>
inline uint64_t nonzero_lanes(__m512i v, uint64_t value_bits) {
  const __m512i value = broadcast(value_bits);
  if constexpr (kWidth == 1) {
    return _cvtmask64_u64(_mm512_test_epi8_mask(v, value));
  } else if constexpr (kWidth == 2) {
    return _cvtmask32_u32(_mm512_test_epi16_mask(v, value));
  } else if constexpr (kWidth == 4) {
    return _cvtmask16_u32(_mm512_test_epi32_mask(v, value));
  } else {
    return _cvtmask8_u32(_mm512_test_epi64_mask(v, value));
  }
}

constexpr size_t kLongCopy = 4096;  // bytes from which libc's copy is the better one

template <size_t kElementWidth>
struct Avx512Common {
  static constexpr size_t kWidth = kElementWidth;

  static uint64_t count(const std::byte* src, size_t n, uint64_t value_bits) {
    const size_t bytes = n * kWidth;
    uint64_t nonzero = 0;
    size_t at = 0;
    for (; at + 64 <= bytes; at += 64) {
      nonzero += ones(nonzero_lanes<kWidth>(load64(src + at), value_bits));
    }
    if (at < bytes) {
      nonzero += ones(nonzero_lanes<kWidth>(load_bytes(src + at, bytes - at), value_bits));
    }
    return nonzero;
  }

  static void copy(std::byte* dst, const std::byte* src, size_t bytes) {
    if (bytes >= kLongCopy) {
      __builtin_memcpy(dst, src, bytes);
      return;
    }
    size_t at = 0;
    for (; at + 64 <= bytes; at += 64) {
      store64(dst + at, load64(src + at));
    }
    if (at < bytes) {
      store_bytes(dst + at, load_bytes(src + at, bytes - at), bytes - at);
    }
  }

  static void stream_line(std::byte* dst, const std::byte* src) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), load64(src));
  }
  static void stream_zeros(std::byte* dst) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), _mm512_setzero_si512());
  }

  static void zero(std::byte* dst, size_t bytes) {
    if (bytes >= kLongCopy) {
      __builtin_memset(dst, 0, bytes);
      return;
    }
    size_t at = 0;
    for (; at + 64 <= bytes; at += 64) {
      store64(dst + at, _mm512_setzero_si512());
    }
    if (at < bytes) {
      store_bytes(dst + at, _mm512_setzero_si512(), bytes - at);
    }
  }
};

}  // namespace
}  // namespace prunex::host

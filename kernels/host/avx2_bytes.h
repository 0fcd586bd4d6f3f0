// SPDX-License-Identifier: Apache-2.0
// AVX2: moves of a few bytes and what works on contiguous memory.
#pragma once
#include <immintrin.h>

#include "kernels/host/rows.h"

namespace prunex::host {
namespace {

// `bytes` < 16 in the low end; reads nothing else.
inline __m128i load_bytes(const std::byte* p, size_t bytes) {
  uint64_t halves[2] = {0, 0};
  if (bytes & 8) {
    __builtin_memcpy(&halves[0], p, 8);
    p += 8;
  }
  uint64_t& rest = halves[bytes / 8];
  unsigned shift = 0;
  if (bytes & 4) {
    uint32_t v;
    __builtin_memcpy(&v, p, 4);
    rest = v;
    shift = 32;
    p += 4;
  }
  if (bytes & 2) {
    uint16_t v;
    __builtin_memcpy(&v, p, 2);
    rest |= uint64_t{v} << shift;
    shift += 16;
    p += 2;
  }
  if (bytes & 1) {
    rest |= uint64_t{static_cast<uint8_t>(*p)} << shift;
  }
  return _mm_set_epi64x(static_cast<long long>(halves[1]), static_cast<long long>(halves[0]));
}

inline void store_bytes(std::byte* p, __m128i v, size_t bytes) {
  uint64_t word = static_cast<uint64_t>(_mm_cvtsi128_si64(v));
  if (bytes & 8) {
    __builtin_memcpy(p, &word, 8);
    word = static_cast<uint64_t>(_mm_extract_epi64(v, 1));
    p += 8;
  }
  if (bytes & 4) {
    __builtin_memcpy(p, &word, 4);
    word >>= 32;
    p += 4;
  }
  if (bytes & 2) {
    __builtin_memcpy(p, &word, 2);
    word >>= 16;
    p += 2;
  }
  if (bytes & 1) {
    __builtin_memcpy(p, &word, 1);
  }
}

inline __m256i load32(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline void store32(std::byte* p, __m256i v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}
inline __m128i load16(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline void store16(std::byte* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }

inline __m128i indices8(const int8_t* row) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row));
}
inline __m128i indices16(const int8_t* row) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(row));
}
inline __m256i indices32(const int32_t* row) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(row));
}

inline __m256i broadcast(uint64_t value_bits) {
  return _mm256_set1_epi64x(static_cast<long long>(value_bits));
}

// Bytes under 32 by two moves that overlap.
inline void copy_small(std::byte* dst, const std::byte* src, size_t bytes) {
  if (bytes >= 16) {
    const __m128i head = load16(src);
    const __m128i tail = load16(src + bytes - 16);
    store16(dst, head);
    store16(dst + bytes - 16, tail);
  } else {
    store_bytes(dst, load_bytes(src, bytes), bytes);
  }
}

constexpr size_t kLongCopy = 4096;  // bytes from which libc's copy is the better one

inline void copy_avx2(std::byte* dst, const std::byte* src, size_t bytes) {
  if (bytes < 32) {
    copy_small(dst, src, bytes);
  } else if (bytes >= kLongCopy) {
    __builtin_memcpy(dst, src, bytes);
  } else {
    const __m256i tail = load32(src + bytes - 32);
    for (size_t at = 0; at + 32 < bytes; at += 32) {
      store32(dst + at, load32(src + at));
    }
    store32(dst + bytes - 32, tail);
  }
}

inline void zero_avx2(std::byte* dst, size_t bytes) {
  if (bytes < 32) {
    if (bytes >= 16) {
      store16(dst, _mm_setzero_si128());
      store16(dst + bytes - 16, _mm_setzero_si128());
    } else {
      store_bytes(dst, _mm_setzero_si128(), bytes);
    }
  } else if (bytes >= kLongCopy) {
    __builtin_memset(dst, 0, bytes);
  } else {
    for (size_t at = 0; at + 32 < bytes; at += 32) {
      store32(dst + at, _mm256_setzero_si256());
    }
    store32(dst + bytes - 32, _mm256_setzero_si256());
  }
}

template <size_t kWidth>
inline __m256i equal_zero(__m256i v) {
  const __m256i zero = _mm256_setzero_si256();
  if constexpr (kWidth == 1) {
    return _mm256_cmpeq_epi8(v, zero);
  } else if constexpr (kWidth == 2) {
    return _mm256_cmpeq_epi16(v, zero);
  } else if constexpr (kWidth == 4) {
    return _mm256_cmpeq_epi32(v, zero);
  } else {
    return _mm256_cmpeq_epi64(v, zero);
  }
}

template <size_t kWidth>
inline uint64_t count_avx2(const std::byte* src, size_t n, uint64_t value_bits) {
  const __m256i value = broadcast(value_bits);
  const size_t bytes = n * kWidth;
  uint64_t zero_bytes = 0;
  size_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    const __m256i zero = equal_zero<kWidth>(_mm256_and_si256(load32(src + at), value));
    zero_bytes +=
        static_cast<unsigned>(_mm_popcnt_u32(static_cast<unsigned>(_mm256_movemask_epi8(zero))));
  }
  uint64_t nonzero = (at - zero_bytes) / kWidth;
  for (; at < bytes; at += kWidth) {
    uint64_t v = 0;
    __builtin_memcpy(&v, src + at, kWidth);
    nonzero += (v & value_bits) != 0 ? 1 : 0;
  }
  return nonzero;
}

}  // namespace
}  // namespace prunex::host

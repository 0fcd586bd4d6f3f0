// SPDX-License-Identifier: Apache-2.0
// Lanes of 32, 16 and 8 bytes for AVX2: compress and expand by a table of shuffles. See words.h.
#pragma once
#include <immintrin.h>

#include "kernels/host/words.h"

namespace prunex::host {
namespace {

// For each mask of lanes, the shuffle that compresses or expands them. Expand has all bits set
// where a lane is dropped. Whole indices, not packed ones: unpacking them would cost the shuffle
// port as much as the shuffle itself, and one table (4 or 8 KiB) at a time stays in the first-level
// cache.
template <class Index, size_t kMasks, size_t kIndices, size_t kPerLane>
struct ShuffleTables {
  alignas(64) Index compress[kMasks][kIndices];
  alignas(64) Index expand[kMasks][kIndices];
};

// kPerLane indices move one lane.
template <class Index, size_t kMasks, size_t kIndices, size_t kPerLane>
constexpr ShuffleTables<Index, kMasks, kIndices, kPerLane> make_shuffle_tables() {
  ShuffleTables<Index, kMasks, kIndices, kPerLane> t{};
  for (size_t mask = 0; mask < kMasks; ++mask) {
    size_t rank = 0;
    for (size_t lane = 0; lane < kIndices / kPerLane; ++lane) {
      const bool kept = ((mask >> lane) & 1) != 0;
      for (size_t i = 0; i < kPerLane; ++i) {
        t.expand[mask][lane * kPerLane + i] =
            kept ? static_cast<Index>(rank * kPerLane + i) : static_cast<Index>(-1);
        if (kept) {
          t.compress[mask][rank * kPerLane + i] = static_cast<Index>(lane * kPerLane + i);
        }
      }
      rank += kept ? 1 : 0;
    }
  }
  return t;
}

constexpr auto kShuffles1 = make_shuffle_tables<int8_t, 256, 8, 1>();
constexpr auto kShuffles2 = make_shuffle_tables<int8_t, 256, 16, 2>();
constexpr auto kShuffles4 = make_shuffle_tables<int32_t, 256, 8, 1>();
constexpr auto kShuffles8 = make_shuffle_tables<int32_t, 16, 8, 2>();

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

template <size_t kElementWidth>
struct Avx2Common {
  static constexpr size_t kWidth = kElementWidth;
  static uint64_t count(const std::byte* src, size_t n, uint64_t value_bits) {
    return count_avx2<kWidth>(src, n, value_bits);
  }
  static void copy(std::byte* dst, const std::byte* src, size_t bytes) {
    copy_avx2(dst, src, bytes);
  }
  static void zero(std::byte* dst, size_t bytes) { zero_avx2(dst, bytes); }
  static void stream_line(std::byte* dst, const std::byte* src) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), load32(src));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + 32), load32(src + 32));
  }
  static void stream_zeros(std::byte* dst) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), _mm256_setzero_si256());
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + 32), _mm256_setzero_si256());
  }
};

struct Avx2Lanes4 : Avx2Common<4> {
  static constexpr size_t kLanes = 8, kBytes = 32;
  static __m256i load(const std::byte* p) { return load32(p); }
  static void store(std::byte* p, __m256i v) { store32(p, v); }
  static void stream(std::byte* p, __m256i v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), v);
  }
  static __m256i first(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m256i load_first(const std::byte* p, size_t n) {
    return _mm256_maskload_epi32(reinterpret_cast<const int*>(p), first(n));
  }
  static void store_first(std::byte* p, __m256i v, size_t n) {
    _mm256_maskstore_epi32(reinterpret_cast<int*>(p), first(n), v);
  }
  static __m256i compress(uint64_t k, __m256i v) {
    return _mm256_permutevar8x32_epi32(v, indices32(kShuffles4.compress[k]));
  }
  static __m256i expand(uint64_t k, __m256i v) {
    const __m256i from = indices32(kShuffles4.expand[k]);
    return _mm256_andnot_si256(_mm256_srai_epi32(from, 31), _mm256_permutevar8x32_epi32(v, from));
  }
  static uint64_t nonzero(__m256i v, uint64_t value_bits) {
    const __m256i zero = equal_zero<4>(_mm256_and_si256(v, broadcast(value_bits)));
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(zero))) ^ 0xffu;
  }
};

struct Avx2Lanes8 : Avx2Common<8> {
  static constexpr size_t kLanes = 4, kBytes = 32;
  static __m256i load(const std::byte* p) { return load32(p); }
  static void store(std::byte* p, __m256i v) { store32(p, v); }
  static void stream(std::byte* p, __m256i v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), v);
  }
  static __m256i first(size_t n) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(static_cast<long long>(n)),
                              _mm256_setr_epi64x(0, 1, 2, 3));
  }
  static __m256i load_first(const std::byte* p, size_t n) {
    return _mm256_maskload_epi64(reinterpret_cast<const long long*>(p), first(n));
  }
  static void store_first(std::byte* p, __m256i v, size_t n) {
    _mm256_maskstore_epi64(reinterpret_cast<long long*>(p), first(n), v);
  }
  static __m256i compress(uint64_t k, __m256i v) {
    return _mm256_permutevar8x32_epi32(v, indices32(kShuffles8.compress[k]));
  }
  static __m256i expand(uint64_t k, __m256i v) {
    const __m256i from = indices32(kShuffles8.expand[k]);
    return _mm256_andnot_si256(_mm256_srai_epi32(from, 31), _mm256_permutevar8x32_epi32(v, from));
  }
  static uint64_t nonzero(__m256i v, uint64_t value_bits) {
    const __m256i zero = equal_zero<8>(_mm256_and_si256(v, broadcast(value_bits)));
    return static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(zero))) ^ 0xfu;
  }
};

struct Avx2Lanes2 : Avx2Common<2> {
  static constexpr size_t kLanes = 8, kBytes = 16;
  static __m128i load(const std::byte* p) { return load16(p); }
  static void store(std::byte* p, __m128i v) { store16(p, v); }
  static void stream(std::byte* p, __m128i v) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), v);
  }
  static __m128i load_first(const std::byte* p, size_t n) { return load_bytes(p, 2 * n); }
  static void store_first(std::byte* p, __m128i v, size_t n) { store_bytes(p, v, 2 * n); }
  static __m128i compress(uint64_t k, __m128i v) {
    return _mm_shuffle_epi8(v, indices16(kShuffles2.compress[k]));
  }
  static __m128i expand(uint64_t k, __m128i v) {
    return _mm_shuffle_epi8(v, indices16(kShuffles2.expand[k]));
  }
  static uint64_t nonzero(__m128i v, uint64_t value_bits) {
    const __m128i value = _mm_set1_epi64x(static_cast<long long>(value_bits));
    const __m128i zero = _mm_cmpeq_epi16(_mm_and_si128(v, value), _mm_setzero_si128());
    return (static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi16(zero, zero))) & 0xffu) ^ 0xffu;
  }
};

struct Avx2Lanes1 : Avx2Common<1> {
  static constexpr size_t kLanes = 8, kBytes = 8;
  static __m128i load(const std::byte* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  }
  static void store(std::byte* p, __m128i v) { _mm_storel_epi64(reinterpret_cast<__m128i*>(p), v); }
  static void stream(std::byte* p, __m128i v) {
    _mm_stream_si64(reinterpret_cast<long long*>(p), _mm_cvtsi128_si64(v));
  }
  static __m128i load_first(const std::byte* p, size_t n) { return load_bytes(p, n); }
  static void store_first(std::byte* p, __m128i v, size_t n) { store_bytes(p, v, n); }
  static __m128i compress(uint64_t k, __m128i v) {
    return _mm_shuffle_epi8(v, indices8(kShuffles1.compress[k]));
  }
  static __m128i expand(uint64_t k, __m128i v) {
    return _mm_shuffle_epi8(v, indices8(kShuffles1.expand[k]));
  }
  static uint64_t nonzero(__m128i v, uint64_t value_bits) {
    const __m128i value = _mm_set1_epi64x(static_cast<long long>(value_bits));
    const __m128i zero = _mm_cmpeq_epi8(_mm_and_si128(v, value), _mm_setzero_si128());
    return (static_cast<unsigned>(_mm_movemask_epi8(zero)) & 0xffu) ^ 0xffu;
  }
};

}  // namespace
}  // namespace prunex::host

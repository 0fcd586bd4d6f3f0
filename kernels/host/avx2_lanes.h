// SPDX-License-Identifier: Apache-2.0
// Lanes of 32, 16 and 8 bytes for AVX2: compress and expand by a table of shuffles. See words.h.
#pragma once
#include <immintrin.h>

#include "kernels/host/avx2_bytes.h"
#include "kernels/host/avx2_shuffles.h"
#include "kernels/host/words.h"

namespace prunex::host {
namespace {

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

// SPDX-License-Identifier: Apache-2.0
// Lanes of 64 bytes for AVX-512 F, BW, VL and DQ. Compress goes to a register and a plain store:
// the compressing store to memory is microcoded on some CPUs. See words.h.
#pragma once
#include <immintrin.h>

#include "kernels/host/avx512_bytes.h"
#include "kernels/host/words.h"

namespace prunex::host {
namespace {

// Elements that have a compress of their own.
template <size_t kElementWidth>
struct Avx512Whole : Avx512Common<kElementWidth> {
  static constexpr size_t kBytes = 64, kLanes = 64 / kElementWidth;
  static __m512i load(const std::byte* p) { return load64(p); }
  static void store(std::byte* p, __m512i v) { store64(p, v); }
  static void stream(std::byte* p, __m512i v) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), v);
  }
  static __m512i load_first(const std::byte* p, size_t n) {
    return load_bytes(p, n * kElementWidth);
  }
  static void store_first(std::byte* p, __m512i v, size_t n) {
    store_bytes(p, v, n * kElementWidth);
  }
  static uint64_t nonzero(__m512i v, uint64_t value_bits) {
    return nonzero_lanes<kElementWidth>(v, value_bits);
  }
};

struct Avx512Lanes4 : Avx512Whole<4> {
  static __m512i compress(uint64_t k, __m512i v) {
    return _mm512_maskz_compress_epi32(static_cast<__mmask16>(k), v);
  }
  static __m512i expand(uint64_t k, __m512i v) {
    return _mm512_maskz_expand_epi32(static_cast<__mmask16>(k), v);
  }
};

struct Avx512Lanes8 : Avx512Whole<8> {
  static __m512i compress(uint64_t k, __m512i v) {
    return _mm512_maskz_compress_epi64(static_cast<__mmask8>(k), v);
  }
  static __m512i expand(uint64_t k, __m512i v) {
    return _mm512_maskz_expand_epi64(static_cast<__mmask8>(k), v);
  }
};

#if defined(__AVX512VBMI2__)
struct Avx512Lanes2 : Avx512Whole<2> {
  static __m512i compress(uint64_t k, __m512i v) {
    return _mm512_maskz_compress_epi16(static_cast<__mmask32>(k), v);
  }
  static __m512i expand(uint64_t k, __m512i v) {
    return _mm512_maskz_expand_epi16(static_cast<__mmask32>(k), v);
  }
};

struct Avx512Lanes1 : Avx512Whole<1> {
  static __m512i compress(uint64_t k, __m512i v) {
    return _mm512_maskz_compress_epi8(_cvtu64_mask64(k), v);
  }
  static __m512i expand(uint64_t k, __m512i v) {
    return _mm512_maskz_expand_epi8(_cvtu64_mask64(k), v);
  }
};
#else
// Sixteen elements, each widened to 32 bits while in the register.
template <size_t kElementWidth>
struct Avx512Widened : Avx512Common<kElementWidth> {
  static constexpr size_t kLanes = 16, kBytes = 16 * kElementWidth;
  static __m512i compress(uint64_t k, __m512i v) {
    return _mm512_maskz_compress_epi32(static_cast<__mmask16>(k), v);
  }
  static __m512i expand(uint64_t k, __m512i v) {
    return _mm512_maskz_expand_epi32(static_cast<__mmask16>(k), v);
  }
  static uint64_t nonzero(__m512i v, uint64_t value_bits) {
    const auto bits = static_cast<uint32_t>(value_bits & low_bits(8 * kElementWidth));
    return _cvtmask16_u32(_mm512_test_epi32_mask(v, _mm512_set1_epi32(static_cast<int>(bits))));
  }
};

struct Avx512Lanes2 : Avx512Widened<2> {
  static __m512i load(const std::byte* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void store(std::byte* p, __m512i v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v));
  }
  static void stream(std::byte* p, __m512i v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v));
  }
  static __m512i load_first(const std::byte* p, size_t n) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(static_cast<__mmask16>(low_bits(n)), p));
  }
  static void store_first(std::byte* p, __m512i v, size_t n) {
    _mm256_mask_storeu_epi16(p, static_cast<__mmask16>(low_bits(n)), _mm512_cvtepi32_epi16(v));
  }
};

struct Avx512Lanes1 : Avx512Widened<1> {
  static __m512i load(const std::byte* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void store(std::byte* p, __m512i v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
  }
  static void stream(std::byte* p, __m512i v) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
  }
  static __m512i load_first(const std::byte* p, size_t n) {
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(static_cast<__mmask16>(low_bits(n)), p));
  }
  static void store_first(std::byte* p, __m512i v, size_t n) {
    _mm_mask_storeu_epi8(p, static_cast<__mmask16>(low_bits(n)), _mm512_cvtepi32_epi8(v));
  }
};
#endif

}  // namespace
}  // namespace prunex::host

// SPDX-License-Identifier: Apache-2.0
// Element types of reductions, their accumulators and the operations, on bits where floats would
// differ between instruction sets. Internal linkage, see reduce_blocks.h.
#pragma once
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "kernels/host/half_bits.h"
#include "kernels/host/table.h"

namespace prunex::host {
namespace {

// Element types: what lies in memory and what it is accumulated in.
template <class MemoryT, class WideT>
struct Plain {
  using Memory = MemoryT;
  using Wide = WideT;
};
struct F32 : Plain<float, float> {};
struct F64 : Plain<double, double> {};
struct F16 : Plain<uint16_t, float> {};
struct BF16 : Plain<uint16_t, float> {};
struct F8E4M3 : Plain<uint8_t, float> {};
struct F8E5M2 : Plain<uint8_t, float> {};
struct I8 : Plain<int8_t, int32_t> {};
struct U8 : Plain<uint8_t, int32_t> {};
struct I32 : Plain<int32_t, int64_t> {};
struct I64 : Plain<int64_t, int64_t> {};
struct U32 : Plain<uint32_t, int64_t> {};
struct U64 : Plain<uint64_t, uint64_t> {};

template <class T, class U>
inline constexpr bool kSame = __is_same(T, U);

template <class M>
inline M load_at(const std::byte* p, size_t i) {
  M v;
  __builtin_memcpy(&v, p + i * sizeof v, sizeof v);
  return v;
}
template <class M>
inline void store_at(std::byte* p, size_t i, M v) {
  __builtin_memcpy(p + i * sizeof v, &v, sizeof v);
}

inline int32_t bits_of(float v) { return __builtin_bit_cast(int32_t, v); }
inline int64_t bits_of(double v) { return __builtin_bit_cast(int64_t, v); }
inline float float_of(int32_t b) { return __builtin_bit_cast(float, b); }
inline double float_of(int64_t b) { return __builtin_bit_cast(double, b); }

// NaN tests on bits: no comparison that could trap or be folded, and the loops stay vectorisable.
inline bool is_nan(int32_t b) { return (b & 0x7fffffff) > 0x7f800000; }
inline bool is_nan(int64_t b) { return (b & 0x7fffffffffffffff) > 0x7ff0000000000000; }
inline int32_t canonical(int32_t b) { return is_nan(b) ? static_cast<int32_t>(kNanF32) : b; }
inline int64_t canonical(int64_t b) { return is_nan(b) ? static_cast<int64_t>(kNanF64) : b; }
// Signed integers in the order of the floats, -0 below +0.
inline int32_t order(int32_t b) { return b ^ ((b >> 31) & 0x7fffffff); }
inline int64_t order(int64_t b) { return b ^ ((b >> 63) & 0x7fffffffffffffff); }

inline uint32_t wrapping(int32_t v) { return static_cast<uint32_t>(v); }
inline uint64_t wrapping(int64_t v) { return static_cast<uint64_t>(v); }
inline uint64_t wrapping(uint64_t v) { return v; }

struct Sum {
  static float apply(float a, float b) { return a + b; }
  static double apply(double a, double b) { return a + b; }
  template <class I>
  static I apply(I a, I b) {
    return static_cast<I>(wrapping(a) + wrapping(b));
  }
};
struct Prod {
  static float apply(float a, float b) { return a * b; }
  static double apply(double a, double b) { return a * b; }
  template <class I>
  static I apply(I a, I b) {
    return static_cast<I>(wrapping(a) * wrapping(b));
  }
};
template <bool kMax>
struct Extreme {
  template <class F>
  static F of_floats(F a, F b) {
    const auto x = bits_of(a);
    const auto y = bits_of(b);
    const bool second = kMax ? order(x) < order(y) : order(x) > order(y);
    auto result = second ? y : x;
    result = is_nan(x) ? x : result;
    result = is_nan(y) ? y : result;
    return float_of(result);
  }
  static float apply(float a, float b) { return of_floats(a, b); }
  static double apply(double a, double b) { return of_floats(a, b); }
  template <class I>
  static I apply(I a, I b) {
    return (kMax ? a < b : a > b) ? b : a;
  }
};
using Max = Extreme<true>;
using Min = Extreme<false>;

template <class T>
inline typename T::Wide widen(const std::byte* p, size_t i) {
  const auto v = load_at<typename T::Memory>(p, i);
  if constexpr (kSame<T, F16>) {
    return float_of(static_cast<int32_t>(f32_bits_of_f16(v)));
  } else if constexpr (kSame<T, BF16>) {
    return float_of(static_cast<int32_t>(static_cast<uint32_t>(v) << 16));
  } else if constexpr (kSame<T, F8E4M3>) {
    return float_of(static_cast<int32_t>(f32_bits_of_e4m3(v)));
  } else if constexpr (kSame<T, F8E5M2>) {
    return float_of(static_cast<int32_t>(f32_bits_of_e5m2(v)));
  } else {
    return v;
  }
}

// Accumulated value to element, NaN canonical.
template <class T, class A>
inline void narrow(std::byte* p, size_t i, A v) {
  if constexpr (kSame<T, F16>) {
    store_at(p, i, f16_of_f32_bits(static_cast<uint32_t>(bits_of(v))));
  } else if constexpr (kSame<T, BF16>) {
    store_at(p, i, bf16_of_f32_bits(static_cast<uint32_t>(bits_of(v))));
  } else if constexpr (kSame<T, F8E4M3>) {
    store_at(p, i, e4m3_of_f32_bits(static_cast<uint32_t>(bits_of(v))));
  } else if constexpr (kSame<T, F8E5M2>) {
    store_at(p, i, e5m2_of_f32_bits(static_cast<uint32_t>(bits_of(v))));
  } else if constexpr (kSame<T, F32> || kSame<T, F64>) {
    store_at(p, i, float_of(canonical(bits_of(v))));
  } else {
    store_at(p, i, static_cast<typename T::Memory>(v));
  }
}

#if defined(__F16C__)
inline __m256 widen8(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void narrow8(std::byte* p, __m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  const __m256i number =
      _mm256_blendv_epi8(bits, _mm256_set1_epi32(static_cast<int>(kNanF32)), nan);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm256_cvtps_ph(_mm256_castsi256_ps(number), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#endif

}  // namespace
}  // namespace prunex::host

// SPDX-License-Identifier: Apache-2.0
// The block functions of reductions. The loops are plain so that the compiler vectorises them for
// each instruction set; all of them compute the same bits. Internal linkage: included by every
// instruction set's file, each with its own flags.
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
struct I8 : Plain<int8_t, int32_t> {};
struct U8 : Plain<uint8_t, int32_t> {};
struct I32 : Plain<int32_t, int64_t> {};
struct I64 : Plain<int64_t, int64_t> {};

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

struct First {};

template <class Combine, class A>
inline A merge([[maybe_unused]] A acc, A v) {
  if constexpr (kSame<Combine, First>) {
    return v;
  } else {
    return Combine::apply(acc, v);
  }
}

template <class T, class Combine>
void take(void* accumulator, const void* source, size_t n) {
  auto* __restrict acc = static_cast<typename T::Wide*>(__builtin_assume_aligned(accumulator, 64));
  const auto* __restrict src = static_cast<const std::byte*>(source);
  size_t done = 0;
#if defined(__F16C__)
  if constexpr (kSame<T, F16>) {
    done = n & ~size_t{7};
    for (size_t i = 0; i < done; i += 8) {
      alignas(32) float wide[8];
      _mm256_store_ps(wide, widen8(src + 2 * i));
      for (size_t j = 0; j < 8; ++j) {
        acc[i + j] = merge<Combine>(acc[i + j], wide[j]);
      }
    }
  }
#endif
  for (size_t i = done; i < n; ++i) {
    acc[i] = merge<Combine>(acc[i], widen<T>(src, i));
  }
}

template <class A>
void divide(void* accumulator, size_t n, uint64_t divisor) {
  auto* acc = static_cast<A*>(__builtin_assume_aligned(accumulator, 64));
  if constexpr (kSame<A, int32_t>) {
    // The quotient of two integers below 2^53 never rounds up to the next integer in fp64.
    const double by = static_cast<double>(divisor);
    for (size_t i = 0; i < n; ++i) {
      acc[i] = static_cast<int32_t>(static_cast<double>(acc[i]) / by);
    }
  } else if constexpr (kSame<A, int64_t>) {
    const int64_t by = divisor > INT64_MAX ? INT64_MAX : static_cast<int64_t>(divisor);
    for (size_t i = 0; i < n; ++i) {
      acc[i] /= by;
    }
  } else {
    const A by = static_cast<A>(divisor);
    for (size_t i = 0; i < n; ++i) {
      acc[i] /= by;
    }
  }
}

template <class A, class T>
void put(void* destination, const void* accumulator, size_t n) {
  const auto* __restrict acc = static_cast<const A*>(__builtin_assume_aligned(accumulator, 64));
  auto* __restrict dst = static_cast<std::byte*>(destination);
  size_t done = 0;
#if defined(__F16C__)
  if constexpr (kSame<T, F16>) {
    done = n & ~size_t{7};
    for (size_t i = 0; i < done; i += 8) {
      narrow8(dst + 2 * i, _mm256_load_ps(acc + i));
    }
  }
#endif
  for (size_t i = done; i < n; ++i) {
    narrow<T>(dst, i, acc[i]);
  }
}

template <class T>
constexpr void fill_takes(TakeBlock (&row)[kNumTakes]) {
  row[static_cast<size_t>(Take::first)] = take<T, First>;
  row[static_cast<size_t>(Take::sum)] = take<T, Sum>;
  row[static_cast<size_t>(Take::max)] = take<T, Max>;
  row[static_cast<size_t>(Take::min)] = take<T, Min>;
  row[static_cast<size_t>(Take::prod)] = take<T, Prod>;
}

template <class A, class T>
constexpr void fill_put(Table& t, Acc acc, DType type) {
  t.put[static_cast<size_t>(acc)][static_cast<size_t>(type)] = put<A, T>;
}

constexpr void fill_reductions(Table& t) {
  fill_takes<F32>(t.take[static_cast<size_t>(DType::f32)]);
  fill_takes<F64>(t.take[static_cast<size_t>(DType::f64)]);
  fill_takes<F16>(t.take[static_cast<size_t>(DType::f16)]);
  fill_takes<BF16>(t.take[static_cast<size_t>(DType::bf16)]);
  fill_takes<I8>(t.take[static_cast<size_t>(DType::i8)]);
  fill_takes<U8>(t.take[static_cast<size_t>(DType::u8)]);
  fill_takes<I32>(t.take[static_cast<size_t>(DType::i32)]);
  fill_takes<I64>(t.take[static_cast<size_t>(DType::i64)]);
  t.divide[static_cast<size_t>(Acc::f32)] = divide<float>;
  t.divide[static_cast<size_t>(Acc::f64)] = divide<double>;
  t.divide[static_cast<size_t>(Acc::i32)] = divide<int32_t>;
  t.divide[static_cast<size_t>(Acc::i64)] = divide<int64_t>;
  fill_put<float, F32>(t, Acc::f32, DType::f32);
  fill_put<float, F16>(t, Acc::f32, DType::f16);
  fill_put<float, BF16>(t, Acc::f32, DType::bf16);
  fill_put<double, F64>(t, Acc::f64, DType::f64);
  fill_put<int32_t, I8>(t, Acc::i32, DType::i8);
  fill_put<int32_t, U8>(t, Acc::i32, DType::u8);
  fill_put<int32_t, I32>(t, Acc::i32, DType::i32);
  fill_put<int64_t, I8>(t, Acc::i64, DType::i8);
  fill_put<int64_t, U8>(t, Acc::i64, DType::u8);
  fill_put<int64_t, I32>(t, Acc::i64, DType::i32);
  fill_put<int64_t, I64>(t, Acc::i64, DType::i64);
}

}  // namespace
}  // namespace prunex::host

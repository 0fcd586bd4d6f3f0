// SPDX-License-Identifier: Apache-2.0
// A scalar model of reductions in every type, written apart from the kernels.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/half.h"
#include "plugin/base/dtype.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {

inline constexpr Op kAllOps[] = {Op::sum, Op::avg, Op::max, Op::min, Op::prod};
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// How each type is read, accumulated and written.
template <class MemoryT, class WideT>
struct Type {
  using Memory = MemoryT;
  using Wide = WideT;
};
struct F32 : Type<float, float> {
  static constexpr DType kType = DType::f32;
  static float read(float v) { return v; }
  static float write(float v) { return std::isnan(v) ? kNan : v; }
};
struct F64 : Type<double, double> {
  static constexpr DType kType = DType::f64;
  static double read(double v) { return v; }
  static double write(double v) { return std::isnan(v) ? static_cast<double>(kNan) : v; }
};
struct F16 : Type<uint16_t, float> {
  static constexpr DType kType = DType::f16;
  static float read(uint16_t v) { return half_to_float(v); }
  static uint16_t write(float v) { return float_to_half(v); }
};
struct BF16 : Type<uint16_t, float> {
  static constexpr DType kType = DType::bf16;
  static float read(uint16_t v) { return bfloat_to_float(v); }
  static uint16_t write(float v) { return float_to_bfloat(v); }
};
struct F8E4M3 : Type<uint8_t, float> {
  static constexpr DType kType = DType::f8e4m3;
  static float read(uint8_t v) { return e4m3_to_float(v); }
  static uint8_t write(float v) { return float_to_e4m3(v); }
};
struct F8E5M2 : Type<uint8_t, float> {
  static constexpr DType kType = DType::f8e5m2;
  static float read(uint8_t v) { return e5m2_to_float(v); }
  static uint8_t write(float v) { return float_to_e5m2(v); }
};
template <class T, DType kDType>
struct Integer : Type<T, __int128> {
  static constexpr DType kType = kDType;
  static __int128 read(T v) { return v; }
  static T write(__int128 v) { return static_cast<T>(v); }
};
using I8 = Integer<int8_t, DType::i8>;
using U8 = Integer<uint8_t, DType::u8>;
using I32 = Integer<int32_t, DType::i32>;
using I64 = Integer<int64_t, DType::i64>;
using U32 = Integer<uint32_t, DType::u32>;
using U64 = Integer<uint64_t, DType::u64>;

template <class W>
W combine(Op op, W a, W b) {
  if constexpr (std::is_floating_point_v<W>) {
    if ((op == Op::max || op == Op::min) && (std::isnan(a) || std::isnan(b))) {
      return std::numeric_limits<W>::quiet_NaN();
    }
    if ((op == Op::max || op == Op::min) && a == b) {
      return std::signbit(a) == (op == Op::min) ? a : b;
    }
  }
  switch (op) {
    case Op::sum:
    case Op::avg:
      return a + b;
    case Op::max:
      return a > b ? a : b;
    case Op::min:
      return a < b ? a : b;
    case Op::prod:
      if constexpr (std::is_same_v<W, __int128>) {
        // Modulo 2^64, which every narrower type's product agrees with.
        return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      } else {
        return a * b;
      }
  }
  return a;
}

template <class M>
using Sources = std::vector<std::vector<M>>;

template <class In, class Out>
std::vector<typename Out::Memory> model(const Sources<typename In::Memory>& src, Op op,
                                        uint64_t divisor) {
  std::vector<typename Out::Memory> out(src[0].size());
  for (size_t i = 0; i < out.size(); ++i) {
    auto acc = In::read(src[0][i]);
    for (size_t s = 1; s < src.size(); ++s) {
      acc = combine(op, acc, In::read(src[s][i]));
    }
    if (divisor > 1) {
      acc /= static_cast<typename In::Wide>(divisor);
    }
    out[i] = Out::write(static_cast<typename Out::Wide>(acc));
  }
  return out;
}

template <class M>
std::vector<const void*> pointers(const Sources<M>& src) {
  std::vector<const void*> p;
  for (const auto& s : src) {
    p.push_back(s.data());
  }
  return p;
}

template <class M>
M random_value(Rng& rng, DType type) {
  switch (type) {
    case DType::f32:
    case DType::f64: {
      const double v = std::ldexp(std::uniform_real_distribution<double>(-1, 1)(rng),
                                  static_cast<int>(below(rng, 40)) - 20);
      return static_cast<M>(v);
    }
    default:
      return static_cast<M>(rng());  // any bits: halves of all sizes, NaN and Inf, any integer
  }
}

template <class In>
Sources<typename In::Memory> random_sources(Rng& rng, size_t num, size_t count) {
  Sources<typename In::Memory> src(num, std::vector<typename In::Memory>(count));
  for (auto& s : src) {
    for (auto& v : s) {
      v = random_value<typename In::Memory>(rng, In::kType);
    }
  }
  return src;
}

template <class M>
bool same_bits(const M* a, const std::vector<M>& b) {
  return b.empty() || std::memcmp(a, b.data(), b.size() * sizeof(M)) == 0;
}

}  // namespace prunex::test

// SPDX-License-Identifier: Apache-2.0
// Reduction arithmetic of one element: the host kernels' results bit for bit. 16-bit floats add in
// fp32, integers in 64 bits (which wrap to the same narrower integers), and each is rounded once.
#pragma once
#include <type_traits>

#include "kernels/cuda/element.h"
#include "kernels/cuda/memory.h"

namespace prunex::cuda {

enum class Accumulator : uint8_t { f32, f64, i64, u64 };

[[nodiscard]] constexpr Accumulator accumulator_of(DType in) {
  switch (in) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return Accumulator::f32;
    case DType::f64:
      return Accumulator::f64;
    case DType::u64:
      return Accumulator::u64;
    default:
      return Accumulator::i64;
  }
}

// The types that a reduction may read and write together: equal ones, and the wide and narrow pairs
// of partial_type.
[[nodiscard]] constexpr bool reducible(DType in, DType out) {
  return in == out || partial_type(in, Op::avg) == out || partial_type(out, Op::avg) == in;
}

template <class A>
[[nodiscard]] PRUNEX_HD A load_as(DType type, const std::byte* p, uint64_t i) {
  if constexpr (std::is_same_v<A, float>) {
    switch (type) {
      case DType::f16:
        return float_of_half(load<uint16_t>(p + i * 2));
      case DType::bf16:
        return float_of_bfloat(load<uint16_t>(p + i * 2));
      default:
        return load<float>(p + i * 4);
    }
  } else if constexpr (std::is_same_v<A, int64_t>) {
    switch (type) {
      case DType::i8:
        return load<int8_t>(p + i);
      case DType::u8:
        return load<uint8_t>(p + i);
      case DType::i32:
        return load<int32_t>(p + i * 4);
      case DType::u32:
        return load<uint32_t>(p + i * 4);
      default:
        return load<int64_t>(p + i * 8);
    }
  } else {
    return load<A>(p + i * 8);
  }
}

template <class A>
PRUNEX_HD void store_as(DType type, std::byte* p, uint64_t i, A v) {
  if constexpr (std::is_same_v<A, float>) {
    const auto bits = bits_as<uint32_t>(v);
    switch (type) {
      case DType::f16:
        return store(p + i * 2, half_of_float(v));
      case DType::bf16:
        return store(p + i * 2, bfloat_of_float(v));
      default:
        return store(p + i * 4, (bits & 0x7fffffffu) > kInfinity32 ? kNan32 : bits);
    }
  } else if constexpr (std::is_same_v<A, double>) {
    const auto bits = bits_as<uint64_t>(v);
    store(p + i * 8, (bits & ~kSign64) > kInfinity64 ? kNan64 : bits);
  } else {
    switch (size_of(type)) {
      case 1:
        return store(p + i, static_cast<uint8_t>(v));
      case 4:
        return store(p + i * 4, static_cast<uint32_t>(v));
      default:
        return store(p + i * 8, v);
    }
  }
}

// Greater in the order of the floats, -0 below +0, without regard to NaN.
[[nodiscard]] PRUNEX_HD bool above(float a, float b) {
  const auto order = [](float v) {
    const auto x = bits_as<int32_t>(v);
    return x ^ ((x >> 31) & 0x7fffffff);
  };
  return order(a) > order(b);
}
[[nodiscard]] PRUNEX_HD bool above(double a, double b) {
  const auto order = [](double v) {
    const auto x = bits_as<int64_t>(v);
    return x ^ ((x >> 63) & 0x7fffffffffffffff);
  };
  return order(a) > order(b);
}
[[nodiscard]] PRUNEX_HD bool above(int64_t a, int64_t b) { return a > b; }
[[nodiscard]] PRUNEX_HD bool above(uint64_t a, uint64_t b) { return a > b; }

[[nodiscard]] PRUNEX_HD bool is_nan(float v) {
  return (bits_as<uint32_t>(v) & 0x7fffffffu) > kInfinity32;
}
[[nodiscard]] PRUNEX_HD bool is_nan(double v) {
  return (bits_as<uint64_t>(v) & ~kSign64) > kInfinity64;
}
[[nodiscard]] PRUNEX_HD bool is_nan(int64_t) { return false; }
[[nodiscard]] PRUNEX_HD bool is_nan(uint64_t) { return false; }

template <class A>
[[nodiscard]] PRUNEX_HD A combine(Op op, A a, A b) {
  if (op == Op::max || op == Op::min) {
    const bool second = op == Op::max ? above(b, a) : above(a, b);
    const A chosen = second ? b : a;
    return is_nan(b) ? b : is_nan(a) ? a : chosen;
  }
  if constexpr (std::is_same_v<A, int64_t>) {  // signed overflow wraps
    const auto x = static_cast<uint64_t>(a);
    const auto y = static_cast<uint64_t>(b);
    return static_cast<int64_t>(op == Op::prod ? x * y : x + y);
  } else {
    return op == Op::prod ? a * b : a + b;
  }
}

template <class A>
[[nodiscard]] PRUNEX_HD A divide(A v, uint64_t divisor) {
  if constexpr (std::is_same_v<A, int64_t>) {
    const uint64_t most = ~kSign64;
    return v / static_cast<int64_t>(divisor > most ? most : divisor);
  } else {
    return v / static_cast<A>(divisor);
  }
}

}  // namespace prunex::cuda

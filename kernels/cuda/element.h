// SPDX-License-Identifier: Apache-2.0
// Elements as values, on bits where floats could differ between processors: the same results as the
// host kernels', NaN canonical, 16-bit floats rounded to nearest even.
#pragma once
#include "kernels/cuda/device.h"
#include "plugin/base/dtype.h"

namespace prunex::cuda {

template <class To, class From>
[[nodiscard]] PRUNEX_HD To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// Bits that make a value differ from zero: the sign of a float does not.
[[nodiscard]] constexpr uint64_t value_bits(DType type) {
  const uint64_t all = ~uint64_t{0} >> (64 - 8 * size_of(type));
  return is_float(type) ? all >> 1 : all;
}

// The same where elements are bytes without a type: every bit counts.
[[nodiscard]] constexpr uint64_t audited_bits(DType type, bool exact) {
  return exact ? ~uint64_t{0} >> (64 - 8 * size_of(type)) : value_bits(type);
}

[[nodiscard]] PRUNEX_HD uint32_t leading_zeros(uint32_t v) {  // v != 0
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__clz(static_cast<int>(v)));
#else
  return static_cast<uint32_t>(std::countl_zero(v));
#endif
}

inline constexpr uint32_t kNan32 = 0x7fc00000;
inline constexpr uint64_t kNan64 = 0x7ff8000000000000;
inline constexpr uint32_t kInfinity32 = 0x7f800000;
inline constexpr uint64_t kInfinity64 = 0x7ff0000000000000;
inline constexpr uint64_t kSign64 = uint64_t{1} << 63;

[[nodiscard]] PRUNEX_HD float float_of_half(uint32_t h) {
  const uint32_t sign = (h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t fraction = h & 0x3ffu;
  uint32_t bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  if (exponent == 31) {
    bits = fraction != 0 ? kNan32 : sign | kInfinity32;
  } else if (exponent == 0) {
    // Subnormal, fraction * 2^-24: the leading one becomes the hidden bit.
    const uint32_t up = fraction != 0 ? leading_zeros(fraction) - 21 : 0;
    bits = fraction != 0 ? sign | ((113 - up) << 23) | (((fraction << up) & 0x3ffu) << 13) : sign;
  }
  return bits_as<float>(bits);
}

[[nodiscard]] PRUNEX_HD uint16_t half_of_float(float value) {
  const auto f = bits_as<uint32_t>(value);
  const uint32_t sign = (f >> 16) & 0x8000u;
  const uint32_t size = f & 0x7fffffffu;
  if (size > kInfinity32) {
    return 0x7e00;
  }
  if (size >= 0x477ff000u) {  // 65520, half way between the largest half and 2^16
    return static_cast<uint16_t>(sign | 0x7c00u);
  }
  if (size >= 0x38800000u) {  // 2^-14, normal in both
    const uint32_t rounded = size + 0xfffu + ((size >> 13) & 1u);
    return static_cast<uint16_t>(sign | (rounded - (112u << 23)) >> 13);
  }
  if (size <= 0x33000000u) {  // 2^-25, half of the smallest half, and below
    return static_cast<uint16_t>(sign);
  }
  const uint32_t significand = (size & 0x7fffffu) | 0x800000u;
  const uint32_t down = 126 - (size >> 23);  // to units of 2^-24
  const uint32_t rounded = significand + (1u << (down - 1)) - 1 + ((significand >> down) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> down));
}

[[nodiscard]] PRUNEX_HD float float_of_bfloat(uint32_t b) { return bits_as<float>(b << 16); }

[[nodiscard]] PRUNEX_HD uint16_t bfloat_of_float(float value) {
  auto f = bits_as<uint32_t>(value);
  f = (f & 0x7fffffffu) > kInfinity32 ? kNan32 : f;
  return static_cast<uint16_t>((f + 0x7fffu + ((f >> 16) & 1u)) >> 16);
}

// An element's bits as a double: exact but for 64-bit integers.
[[nodiscard]] PRUNEX_HD double number_of(DType type, uint64_t bits) {
  switch (type) {
    case DType::f32:
      return static_cast<double>(bits_as<float>(static_cast<uint32_t>(bits)));
    case DType::f64:
      return bits_as<double>(bits);
    case DType::f16:
      return static_cast<double>(float_of_half(static_cast<uint32_t>(bits)));
    case DType::bf16:
      return static_cast<double>(float_of_bfloat(static_cast<uint32_t>(bits)));
    case DType::i8:
      return static_cast<double>(static_cast<int8_t>(bits));
    case DType::i32:
      return static_cast<double>(static_cast<int32_t>(bits));
    case DType::i64:
      return static_cast<double>(static_cast<int64_t>(bits));
    case DType::u8:
    case DType::u32:
    case DType::u64:
    case DType::f8e4m3:  // only CollNet has these, in host memory
    case DType::f8e5m2:
      break;
  }
  return static_cast<double>(bits);
}

[[nodiscard]] PRUNEX_HD bool is_finite(double v) {
  return (bits_as<uint64_t>(v) & kInfinity64) != kInfinity64;
}

}  // namespace prunex::cuda

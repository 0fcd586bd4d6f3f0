// SPDX-License-Identifier: Apache-2.0
// 16-bit float conversions on bits alone, so that no rounding mode or flush-to-zero setting of the
// host process reaches them. Internal linkage: included by files with different instruction sets.
#pragma once
#include <cstdint>

namespace prunex::host {
namespace {

constexpr uint32_t kNanF32 = 0x7fc00000;
constexpr uint64_t kNanF64 = 0x7ff8000000000000;
constexpr uint16_t kNanF16 = 0x7e00;

[[maybe_unused]] inline uint32_t f32_bits_of_f16(uint32_t h) {
  const uint32_t sign = (h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31;
  const uint32_t fraction = h & 0x3ff;
  if (exponent == 31) {
    return fraction != 0 ? kNanF32 : sign | 0x7f800000u;
  }
  if (exponent != 0) {
    return sign | ((exponent + 112) << 23) | (fraction << 13);
  }
  if (fraction == 0) {
    return sign;
  }
  // Subnormal: the leading one becomes the hidden bit. 2^-24 * fraction, fraction < 2^10.
  const uint32_t shift = static_cast<uint32_t>(__builtin_clz(fraction)) - 21;
  return sign | ((113 - shift) << 23) | (((fraction << shift) & 0x3ff) << 13);
}

[[maybe_unused]] inline uint16_t f16_of_f32_bits(uint32_t f) {
  const uint32_t sign = (f >> 16) & 0x8000u;
  const uint32_t magnitude = f & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return kNanF16;
  }
  if (magnitude >= 0x477ff000u) {  // 65520, half way between the largest value and 2^16
    return static_cast<uint16_t>(sign | 0x7c00u);
  }
  if (magnitude >= 0x38800000u) {  // 2^-14: normal in both
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
  }
  if (magnitude <=
      0x33000000u) {  // 2^-25 and below: half of the smallest value, ties to even, to 0
    return static_cast<uint16_t>(sign);
  }
  // In units of 2^-24: significand * 2^(exponent - 126).
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t shift = 126 - (magnitude >> 23);
  const uint32_t rounded = significand + (1u << (shift - 1)) - 1 + ((significand >> shift) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> shift));
}

[[maybe_unused]] inline uint16_t bf16_of_f32_bits(uint32_t f) {
  const uint32_t number = (f & 0x7fffffffu) > 0x7f800000u ? kNanF32 : f;
  return static_cast<uint16_t>((number + 0x7fffu + ((number >> 16) & 1u)) >> 16);
}

}  // namespace
}  // namespace prunex::host

// SPDX-License-Identifier: Apache-2.0
// 16- and 8-bit float conversions on bits alone, so that no rounding mode or flush-to-zero setting
// of the host process reaches them. Internal linkage: included by files with different instruction
// sets.
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

// The 8-bit formats of the Open Compute Project: E4M3 has no infinity and one NaN per sign, E5M2 is
// the upper half of an IEEE 16-bit float. What is too large becomes the largest finite value, as in
// NCCL's own reductions: infinities do so, too.
[[maybe_unused]] inline uint32_t f32_bits_of_e5m2(uint32_t v) { return f32_bits_of_f16(v << 8); }

[[maybe_unused]] inline uint32_t f32_bits_of_e4m3(uint32_t v) {
  const uint32_t sign = (v & 0x80u) << 24;
  const uint32_t exponent = (v >> 3) & 15;
  const uint32_t fraction = v & 7;
  if ((v & 0x7fu) == 0x7fu) {
    return kNanF32;
  }
  if (exponent != 0) {
    return sign | ((exponent + 120) << 23) | (fraction << 20);
  }
  if (fraction == 0) {
    return sign;
  }
  // Subnormal: 2^-9 * fraction, fraction < 2^3.
  const uint32_t shift = static_cast<uint32_t>(__builtin_clz(fraction)) - 28;
  return sign | ((121 - shift) << 23) | (((fraction << shift) & 7) << 20);
}

// kFraction bits of fraction, exponents from 1 - kBias on; kMost: the largest finite value's code.
template <uint32_t kFraction, uint32_t kBias, uint32_t kMost>
inline uint8_t f8_of_f32_bits(uint32_t f) {
  constexpr uint32_t kDrop = 23 - kFraction, kLeast = 128 - kBias;  // biased exponent of normals
  const uint32_t sign = (f >> 24) & 0x80u;
  const uint32_t magnitude = f & 0x7fffffffu;
  const uint32_t exponent = magnitude >> 23;
  if (magnitude > 0x7f800000u) {
    return 0x7f;
  }
  uint32_t code = 0;
  if (exponent >= kLeast) {
    const uint32_t rounded = magnitude + (1u << (kDrop - 1)) - 1 + ((magnitude >> kDrop) & 1u);
    code = (rounded >> kDrop) - ((127 - kBias) << kFraction);
    code = code < kMost ? code : kMost;
  } else if (const uint32_t shift = kDrop + kLeast - exponent; shift <= 24) {
    const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    code = (significand + (1u << (shift - 1)) - 1 + ((significand >> shift) & 1u)) >> shift;
  }
  return static_cast<uint8_t>(sign | code);
}
[[maybe_unused]] inline uint8_t e4m3_of_f32_bits(uint32_t f) {
  return f8_of_f32_bits<3, 7, 0x7e>(f);
}
[[maybe_unused]] inline uint8_t e5m2_of_f32_bits(uint32_t f) {
  return f8_of_f32_bits<2, 15, 0x7b>(f);
}

}  // namespace
}  // namespace prunex::host

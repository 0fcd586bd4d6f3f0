// SPDX-License-Identifier: Apache-2.0
// Scalar 16- and 8-bit float conversions, round to nearest even, NaN canonical. The vector kernels
// give the same bits; tests compare all values.
#pragma once
#include <bit>
#include <cstdint>

namespace prunex {

[[nodiscard]] float half_to_float(uint16_t h);
[[nodiscard]] uint16_t float_to_half(float f);
[[nodiscard]] inline float bfloat_to_float(uint16_t b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}
[[nodiscard]] uint16_t float_to_bfloat(float f);
// Too large: the largest finite value.
[[nodiscard]] float e4m3_to_float(uint8_t v);
[[nodiscard]] uint8_t float_to_e4m3(float f);
[[nodiscard]] float e5m2_to_float(uint8_t v);
[[nodiscard]] uint8_t float_to_e5m2(float f);

}  // namespace prunex

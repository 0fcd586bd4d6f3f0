// SPDX-License-Identifier: Apache-2.0
// Scalar 16-bit float conversions, round to nearest even, NaN canonical. The vector kernels give the
// same bits; tests compare all 65,536 values.
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

}  // namespace prunex

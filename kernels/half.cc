// SPDX-License-Identifier: Apache-2.0
#include "kernels/half.h"

#include "kernels/host/half_bits.h"

namespace prunex {

float half_to_float(uint16_t h) { return std::bit_cast<float>(host::f32_bits_of_f16(h)); }

uint16_t float_to_half(float f) { return host::f16_of_f32_bits(std::bit_cast<uint32_t>(f)); }

uint16_t float_to_bfloat(float f) { return host::bf16_of_f32_bits(std::bit_cast<uint32_t>(f)); }

float e4m3_to_float(uint8_t v) { return std::bit_cast<float>(host::f32_bits_of_e4m3(v)); }

uint8_t float_to_e4m3(float f) { return host::e4m3_of_f32_bits(std::bit_cast<uint32_t>(f)); }

float e5m2_to_float(uint8_t v) { return std::bit_cast<float>(host::f32_bits_of_e5m2(v)); }

uint8_t float_to_e5m2(float f) { return host::e5m2_of_f32_bits(std::bit_cast<uint32_t>(f)); }

}  // namespace prunex

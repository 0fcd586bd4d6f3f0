// SPDX-License-Identifier: Apache-2.0
#include "kernels/half.h"

#include "kernels/host/half_bits.h"

namespace prunex {

float half_to_float(uint16_t h) { return std::bit_cast<float>(host::f32_bits_of_f16(h)); }

uint16_t float_to_half(float f) { return host::f16_of_f32_bits(std::bit_cast<uint32_t>(f)); }

uint16_t float_to_bfloat(float f) { return host::bf16_of_f32_bits(std::bit_cast<uint32_t>(f)); }

}  // namespace prunex

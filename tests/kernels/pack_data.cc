// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "kernels/half.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {

bool differs_from_zero(DType type, const std::byte* p) {
  const auto load = [&](auto v) {
    std::memcpy(&v, p, sizeof v);
    return v;
  };
  const auto nonzero = [](double v) { return !(std::fabs(v) <= 0); };
  switch (type) {
    case DType::f32:
      return nonzero(static_cast<double>(load(float{})));
    case DType::f64:
      return nonzero(load(double{}));
    case DType::f16:
      return nonzero(static_cast<double>(half_to_float(load(uint16_t{}))));
    case DType::bf16:
      return nonzero(static_cast<double>(bfloat_to_float(load(uint16_t{}))));
    case DType::f8e4m3:
      return nonzero(static_cast<double>(e4m3_to_float(load(uint8_t{}))));
    case DType::f8e5m2:
      return nonzero(static_cast<double>(e5m2_to_float(load(uint8_t{}))));
    case DType::i8:
    case DType::u8:
      return load(uint8_t{}) != 0;
    case DType::i32:
    case DType::u32:
      return load(int32_t{}) != 0;
    case DType::i64:
    case DType::u64:
      return load(int64_t{}) != 0;
  }
  return false;
}

void put_negative_zero(DType type, std::byte* p) {
  const size_t size = size_of(type);
  std::memset(p, 0, size);
  if (is_float(type)) {
    p[size - 1] = std::byte{0x80};
  }
}

void put_nan(DType type, std::byte* p, bool negative) {
  const size_t size = size_of(type);
  std::memset(p, 0xff, size);
  if (!negative) {
    p[size - 1] = std::byte{0x7f};
  }
}

void fill(const Case& c, DType type, Rng& rng, uint64_t one_in, std::byte* buffer) {
  const size_t size = size_of(type);
  for (uint64_t i = 0; i < c.layout.count; ++i) {
    std::byte* p = buffer + i * size;
    const uint64_t bits = rng() | 1;
    if (c.keep[i] != 0 || (one_in != 0 && below(rng, one_in) == 0)) {
      std::memcpy(p, &bits, size);
      if (below(rng, 8) == 0) {
        put_nan(type, p, bits & 2);
      }
    } else if (bits & 2) {
      std::memset(p, 0, size);
    } else {
      put_negative_zero(type, p);
    }
  }
}

}  // namespace prunex::test

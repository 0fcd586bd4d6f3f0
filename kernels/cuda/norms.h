// SPDX-License-Identifier: Apache-2.0
// Groups of a parameter and the order of their scores.
#pragma once
#include "kernels/cuda/element.h"
#include "kernels/cuda/memory.h"

namespace prunex::cuda {

// A contiguous parameter as [outer, groups, inner]: filters are {1, O, I*Kh*Kw}, input channels are
// {O, I, Kh*Kw}. A group's members count outer by outer.
struct GroupShape {
  uint64_t outer = 1, groups = 0, inner = 1;

  [[nodiscard]] PRUNEX_HD uint64_t members() const { return outer * inner; }
  // The element of member i % members() of group i / members().
  [[nodiscard]] PRUNEX_HD uint64_t element(uint64_t i) const {
    const uint64_t group = i / members();
    const uint64_t member = i - group * members();
    const uint64_t o = member / inner;
    return (o * groups + group) * inner + (member - o * inner);
  }
};

[[nodiscard]] PRUNEX_HD double square_of(DType type, const std::byte* data, uint64_t element) {
  uint64_t bits = 0;
  switch (size_of(type)) {
    case 2:
      bits = load<uint16_t>(data + element * 2);
      break;
    case 4:
      bits = load<uint32_t>(data + element * 4);
      break;
    default:
      bits = load<uint64_t>(data + element * 8);
  }
  const double v = number_of(type, bits);
  return v * v;
}

// Ascending in the score's order, -0 equal to +0, NaN below everything.
[[nodiscard]] PRUNEX_HD uint64_t order_key(double score) {
  auto bits = bits_as<uint64_t>(score);
  if ((bits & ~kSign64) > kInfinity64) {
    return 0;
  }
  bits = bits == kSign64 ? 0 : bits;
  return (bits & kSign64) != 0 ? ~bits : bits | kSign64;
}

}  // namespace prunex::cuda

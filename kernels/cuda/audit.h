// SPDX-License-Identifier: Apache-2.0
// What is found in dropped places: one record per call, put together from one per thread.
#pragma once
#include "kernels/cuda/element.h"
#include "kernels/cuda/tile.h"

namespace prunex::cuda {

inline constexpr uint64_t kNoElement = ~uint64_t{0};

// Dropped elements that are not ±0; NaN is not zero.
struct AuditRecord {
  uint64_t lossless = 0;        // in segments that promise zeros
  uint64_t projected = 0;       // in segments whose dropped elements are cut off by contract
  uint64_t nonfinite = 0;       // of both
  uint64_t first = kNoElement;  // the lowest element of the buffer counted in `lossless`
  double energy = 0;            // sum of squares of the finite ones, of both
};
static_assert(sizeof(AuditRecord) == 40);

[[nodiscard]] PRUNEX_HD AuditRecord merge(const AuditRecord& a, const AuditRecord& b) {
  AuditRecord sum;
  sum.lossless = a.lossless + b.lossless;
  sum.projected = a.projected + b.projected;
  sum.nonfinite = a.nonfinite + b.nonfinite;
  sum.first = a.first < b.first ? a.first : b.first;
  sum.energy = a.energy + b.energy;
  return sum;
}

// One thread's.
struct Auditor {
  DType type = DType::f32;
  uint64_t value_bits = 0;
  AuditRecord found;

  // A dropped element, its bits in the low part.
  PRUNEX_HD void dropped(const Tile& tile, uint32_t i, uint64_t bits) {
    if ((bits & value_bits) == 0) {
      return;
    }
    const double value = number_of(type, bits);
    if (is_finite(value)) {
      found.energy += value * value;
    } else {
      ++found.nonfinite;
    }
    if (tile.projected != 0) {
      ++found.projected;
      return;
    }
    ++found.lossless;
    const uint64_t element = tile.elem + i;
    found.first = element < found.first ? element : found.first;
  }
};

}  // namespace prunex::cuda

// SPDX-License-Identifier: Apache-2.0
// Reduction of packed sources, one of which may still lie in its strided buffer: kept elements of
// that one are read where they are, dropped ones only to be checked.
#pragma once
#include "kernels/cuda/arithmetic.h"
#include "kernels/cuda/audit.h"
#include "kernels/cuda/move_bytes.h"
#include "kernels/cuda/tile.h"

namespace prunex::cuda {

inline constexpr int kMaxSources = 16;

// Addresses are multiples of their elements' sizes.
struct Reduction {
  const std::byte* source[kMaxSources];  // packed; source[own]: the strided buffer
  std::byte* out;
  uint64_t divisor;  // 1: none
  int sources;
  int own;  // -1: all are packed
  DType in, out_type;
  Op op;
};

// out[k] = own element `element` (of the buffer) and the other sources' k-th, strictly in their
// order.
template <class A>
PRUNEX_HD void reduce_one(const Reduction& r, uint64_t k, uint64_t element) {
  A sum = load_as<A>(r.in, r.source[0], r.own == 0 ? element : k);
  for (int s = 1; s < r.sources; ++s) {
    sum = combine(r.op, sum, load_as<A>(r.in, r.source[s], s == r.own ? element : k));
  }
  if (r.divisor > 1) {
    sum = divide(sum, r.divisor);
  }
  store_as(r.out_type, r.out, k, sum);
}

template <class A>
PRUNEX_HD void reduce_flat(const Reduction& r, uint64_t count, uint64_t thread, uint64_t threads) {
  for (uint64_t k = thread; k < count; k += threads) {
    reduce_one<A>(r, k, k);
  }
}

template <class A>
PRUNEX_HD void reduce_tile(const Reduction& r, const Tile& tile, const Word* words,
                           const Range& range, uint32_t thread, uint32_t threads,
                           Auditor* auditor) {
  const Part part = part_of(tile, range);
  if (tile.kind == TileKind::dropped && auditor == nullptr) {
    return;
  }
  const auto size = static_cast<uint32_t>(size_of(r.in));
  for (uint32_t i = part.begin + thread; i < part.end; i += threads) {
    const Group group = locate_one(tile, words, i);
    const uint64_t element = tile.elem + i;
    if (group.bits != 0) {
      reduce_one<A>(r, static_cast<uint64_t>(packed_base(tile, range) + group.offset), element);
    } else if (auditor != nullptr) {
      auditor->dropped(tile, i, load_bytes(r.source[r.own] + element * size, size));
    }
  }
}

// visit(A{}) with the accumulator of the source's type.
template <class Visit>
auto with_accumulator(DType in, Visit visit) {
  switch (accumulator_of(in)) {
    case Accumulator::f32:
      return visit(float{});
    case Accumulator::f64:
      return visit(double{});
    case Accumulator::u64:
      return visit(uint64_t{});
    case Accumulator::i64:
      break;
  }
  return visit(int64_t{});
}

}  // namespace prunex::cuda

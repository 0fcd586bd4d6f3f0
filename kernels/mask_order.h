// SPDX-License-Identifier: Apache-2.0
// Internal: a tensor's dimensions in memory order, and how many of them make a row.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/mask.h"
#include "plugin/base/result.h"

namespace prunex {

struct MemoryDim {
  int64_t logical = 0;  // index into MaskSpec::sizes
  uint64_t size = 0;
  uint64_t cell_stride = 0;  // elements of the logical row-major order from one index to the next
};

// Dimensions of more than one index, outermost in memory first. Storage is dense: index i of
// dims[d] lies i * columns(d + 1) elements further.
struct MemoryOrder {
  uint64_t count = 0;  // elements
  size_t ndim = 0;
  std::array<MemoryDim, kMaxDims> dims{};

  // Elements of dims[split..): the length of a row when dims[0..split) count rows.
  [[nodiscard]] uint64_t columns(size_t split) const {
    uint64_t n = 1;
    for (size_t d = split; d < ndim; ++d) {
      n *= dims[d].size;
    }
    return n;
  }
};

// Checks ndim, sizes and strides. A tensor without elements may have any strides.
[[nodiscard]] Result<MemoryOrder> memory_order(const MaskSpec& spec);

// "[64, 3, 7, 7]"
[[nodiscard]] std::string list_text(std::span<const int64_t> values);

// A bitmap row up to this long (with its ranks 4 KiB) stays in the nearest cache while rows go by.
inline constexpr uint64_t kCachedColumns = uint64_t{1} << 14;
// Rows shorter than this cost more in calls than in bits.
inline constexpr uint64_t kNarrowColumns = 512;

// How many outer dimensions make the rows: normally one (none for a vector). Where that leaves very
// long rows (experts x out x in), as many as cost the least `bytes(split)` and do not make narrow
// rows.
template <class Bytes>
[[nodiscard]] size_t pick_split(const MemoryOrder& order, Bytes bytes) {
  const size_t first = order.ndim >= 2 ? 1 : 0;
  if (order.columns(first) <= kCachedColumns) {
    return first;
  }
  size_t best = first;
  for (size_t split = first + 1; split < order.ndim; ++split) {
    if (order.columns(split) >= kNarrowColumns && bytes(split) < bytes(best)) {
      best = split;
    }
  }
  return best;
}

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
// Masks that are products of one keep vector per dimension: one pattern, shared by all kept rows.
#include <algorithm>
#include <array>
#include <utility>

#include "kernels/mask_kinds.h"
#include "kernels/pattern.h"

namespace prunex {
namespace {

// What one dimension keeps, as maximal runs of indices; or a product of dimensions, where runs may
// touch.
struct KeptIndices {
  uint64_t size = 1, kept = 1;
  std::vector<KeptRange> runs{{0, 1}};

  [[nodiscard]] bool all() const { return kept == size; }
  // Whether the last index of one repetition continues in the first of the next.
  [[nodiscard]] bool wraps() const {
    return kept > 0 && runs.front().begin == 0 && runs.back().begin + runs.back().count == size;
  }
};

KeptIndices kept_indices(std::span<const uint8_t> keep, uint64_t size) {
  KeptIndices indices{size, size, {{0, size}}};
  if (!keep.empty()) {
    std::vector<uint64_t> bits(words_for(size));
    gather_bits(bits.data(), 0, keep.data(), 1, size);
    indices.kept = count_bits(bits);
    indices.runs.clear();
    for_each_run(bits.data(), size, [&](uint64_t begin, uint64_t count) {
      indices.runs.push_back({begin, count});
    });
  }
  return indices;
}

// Number of maximal runs in the product of `outer` and something with `runs` runs.
double product_runs(const KeptIndices& outer, double runs, bool wraps) {
  const double kept = double(outer.kept);
  return kept * runs - (wraps ? kept - double(outer.runs.size()) : 0);
}

KeptIndices product(const KeptIndices& outer, const KeptIndices& inner) {
  KeptIndices out{outer.size * inner.size, outer.kept * inner.kept, {}};
  if (inner.all()) {
    for (const KeptRange& run : outer.runs) {
      out.runs.push_back({run.begin * inner.size, run.count * inner.size});
    }
    return out;
  }
  for (const KeptRange& run : outer.runs) {
    for (uint64_t i = run.begin; i < run.begin + run.count; ++i) {
      for (const KeptRange& part : inner.runs) {
        out.runs.push_back({i * inner.size + part.begin, part.count});
      }
    }
  }
  return out;
}

// The bits of a row whose dimensions, outermost first, keep these indices.
std::vector<uint64_t> row_bits(std::span<const KeptIndices> dims) {
  std::vector<uint64_t> bits{1};
  uint64_t length = 1;
  bool all = true;
  for (size_t d = dims.size(); d-- > 0;) {
    const KeptIndices& dim = dims[d];
    std::vector<uint64_t> wider(words_for(length * dim.size));
    for (const KeptRange& run : dim.runs) {
      if (all) {
        fill_bits(wider.data(), run.begin * length, run.count * length);
        continue;
      }
      for (uint64_t i = run.begin; i < run.begin + run.count; ++i) {
        copy_bits(wider.data(), i * length, bits.data(), 0, length);
      }
    }
    bits = std::move(wider);
    length *= dim.size;
    all = all && dim.all();
  }
  return bits;
}

}  // namespace

MaskRows rows_of_dims(const MaskSpec& spec, const MemoryOrder& order) {
  // Dimensions of one index have no place in memory, but may drop the whole tensor.
  for (size_t d = 0; d < static_cast<size_t>(spec.ndim); ++d) {
    if (std::ranges::count(spec.keep[d], 0) == spec.sizes[d] && !spec.keep[d].empty()) {
      return MaskRows(1, order.count);
    }
  }
  std::array<KeptIndices, kMaxDims> indices;
  for (size_t d = 0; d < order.ndim; ++d) {
    const MemoryDim& dim = order.dims[d];
    indices[d] = kept_indices(spec.keep[static_cast<size_t>(dim.logical)], dim.size);
  }
  const auto bytes = [&](size_t split) {
    double runs = 1;
    bool wraps = true;
    for (size_t d = split; d-- > 0;) {
      runs = product_runs(indices[d], runs, wraps);
      wraps = wraps && indices[d].wraps();
    }
    return runs * double{sizeof(Panel)} + double(order.columns(split)) / 4;
  };
  const size_t split = pick_split(order, bytes);

  KeptIndices kept_rows;
  for (size_t d = split; d-- > 0;) {
    kept_rows = product(indices[d], kept_rows);
  }
  const auto row_dims = std::span(indices).first(order.ndim).subspan(split);
  MaskRows rows(kept_rows.size, order.columns(split));
  const bool all = std::ranges::all_of(row_dims, &KeptIndices::all);
  const int64_t pattern = all ? MaskRows::kAll : rows.intern(row_bits(row_dims));
  for (const KeptRange& run : kept_rows.runs) {
    rows.add(run.begin, run.count, pattern);
  }
  return rows;
}

MaskRows rows_of_ranges(const MaskSpec& spec, const MemoryOrder& order) {
  MaskRows rows(order.count, 1);
  for (const KeptRange& range : spec.ranges) {
    rows.add(range.begin, range.count, MaskRows::kAll);
  }
  return rows;
}

}  // namespace prunex

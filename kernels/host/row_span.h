// SPDX-License-Identifier: Apache-2.0
// Rows of a panel as the walk hands them on, and their form for the row functions.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/host/table.h"
#include "kernels/mask.h"
#include "plugin/base/dtype.h"

namespace prunex::host {

[[nodiscard]] inline unsigned log2_size(DType type) {
  return static_cast<unsigned>(std::countr_zero(size_of(type)));
}

// The bits that make an element non-zero: for floats all but the sign, for integers all.
[[nodiscard]] inline uint64_t value_bits_of(DType type) {
  switch (type) {
    case DType::f64:
      return 0x7fffffffffffffff;
    case DType::f32:
      return 0x7fffffff7fffffff;
    case DType::f16:
    case DType::bf16:
      return 0x7fff7fff7fff7fff;
    case DType::f8e4m3:
    case DType::f8e5m2:
      return 0x7f7f7f7f7f7f7f7f;
    default:
      return ~uint64_t{0};
  }
}

// Columns [begin, end) of `rows` rows. `first`: the buffer's element at column begin of the first
// row.
struct Rows {
  const Pattern* pattern = nullptr;  // null: every column is kept
  uint64_t first = 0;
  uint64_t begin = 0, end = 0;
  uint64_t rows = 0;
  uint64_t stride = 0;
};

// Set bits before `column`.
[[nodiscard]] inline uint64_t rank_at(const Pattern& pattern, uint64_t column) {
  const uint64_t word = column / 64;
  if (word >= pattern.bits.size()) {
    return pattern.kept;
  }
  const uint64_t below = (uint64_t{1} << (column % 64)) - 1;
  return pattern.rank[word] + static_cast<uint64_t>(std::popcount(pattern.bits[word] & below));
}

[[nodiscard]] inline uint64_t kept_per_row(const Rows& rows) {
  if (rows.pattern == nullptr) {
    return rows.end - rows.begin;
  }
  if (rows.begin == 0 && rows.end == rows.pattern->columns) {
    return rows.pattern->kept;
  }
  return rank_at(*rows.pattern, rows.end) - rank_at(*rows.pattern, rows.begin);
}

// least_run: the mean length in bytes from which on kept runs are copied one by one.
[[nodiscard]] inline RowBlock block_of(const Rows& rows, unsigned shift, uint64_t least_run) {
  RowBlock block;
  block.begin = rows.begin;
  block.end = rows.end;
  block.rows = rows.rows;
  block.stride = rows.stride;
  if (rows.pattern == nullptr) {
    return block;
  }
  const Pattern& p = *rows.pattern;
  block.bits = p.bits.data();
  if (p.wide && (p.kept << shift) >= least_run * p.runs.size()) {
    const auto from = std::partition_point(p.runs.begin(), p.runs.end(), [&](const KeptRange& run) {
      return run.begin + run.count <= rows.begin;
    });
    const auto to = std::partition_point(
        from, p.runs.end(), [&](const KeptRange& run) { return run.begin < rows.end; });
    block.runs = p.runs.data() + (from - p.runs.begin());
    block.num_runs = static_cast<size_t>(to - from);
  }
  return block;
}

}  // namespace prunex::host

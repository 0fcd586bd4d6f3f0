// SPDX-License-Identifier: Apache-2.0
// What a benchmark reduces: buffers of pieces, and which of their elements a density keeps. The
// runs below are this program's own reading of the pruning rule, independent of the library's
// masks.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/base/dtype.h"
#include "tools/models.h"

namespace prunex::tools {

struct Piece {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t offset = 0, count = 0;  // elements of its buffer
  GroupSet filters = -1, channels = -1;
  uint64_t block =
      0;  // not 0: one-dimensional, group g of `filters` is `block` elements from g*block
  [[nodiscard]] bool prunable() const { return filters >= 0 || channels >= 0; }
};

struct BenchBuffer {
  uint64_t count = 0;  // elements
  std::vector<Piece> pieces;
};

struct Workload {
  std::string model;  // empty: a plain size
  DType type = DType::f32;
  std::vector<BenchBuffer> buffers;
  std::vector<size_t> group_sizes;
  [[nodiscard]] uint64_t count() const;
  [[nodiscard]] uint64_t bytes() const { return count() * size_of(type); }
};

// The model's parameters, last first as DDP reduces them. bucket_bytes 0: one buffer.
[[nodiscard]] Workload model_workload(const Model& model, DType type, uint64_t bucket_bytes);
// One buffer of bytes / element size elements, prunable in blocks of 1 KiB (fewer when it is
// small).
[[nodiscard]] Workload size_workload(uint64_t bytes, DType type);

// By group set: one byte per group.
using KeepFlags = std::vector<std::vector<uint8_t>>;
[[nodiscard]] KeepFlags choose_keep(const Workload& workload, double keep, uint64_t seed);

// Calls f(begin, count, kept) for consecutive pieces of the buffer, ascending, that are wholly kept
// or wholly dropped; together they are the piece.
template <class F>
void for_each_run(const Piece& piece, const KeepFlags& flags, F f) {
  const auto kept_in = [&flags](GroupSet set, size_t group) {
    return set < 0 || flags[static_cast<size_t>(set)][group] != 0;
  };
  if (piece.block > 0) {
    for (uint64_t begin = 0, group = 0; begin < piece.count; begin += piece.block, ++group) {
      f(piece.offset + begin, std::min(piece.block, piece.count - begin),
        kept_in(piece.filters, group));
    }
    return;
  }
  const uint64_t rows = piece.shape.empty() ? 1 : static_cast<uint64_t>(piece.shape[0]);
  const uint64_t columns = piece.shape.size() < 2 ? 1 : static_cast<uint64_t>(piece.shape[1]);
  const uint64_t row_length = rows == 0 ? 0 : piece.count / rows;
  const uint64_t inner = columns == 0 ? 0 : row_length / columns;
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t begin = piece.offset + row * row_length;
    const bool row_kept = kept_in(piece.filters, row);
    if (!row_kept || piece.channels < 0) {
      f(begin, row_length, row_kept);
      continue;
    }
    for (uint64_t column = 0; column < columns; ++column) {
      f(begin + column * inner, inner, kept_in(piece.channels, column));
    }
  }
}

[[nodiscard]] uint64_t kept_elements(const Workload& workload, const KeepFlags& flags);

}  // namespace prunex::tools

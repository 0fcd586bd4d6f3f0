// SPDX-License-Identifier: Apache-2.0
// Masks in the tensor's logical shape, and their compiled form in memory order. Pure: no I/O, no
// clock, no environment. Structured masks compile in O(rows + columns).
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/result.h"

namespace prunex {

inline constexpr int kMaxDims = 8;

enum class MaskKind : uint8_t {
  dims = 0,  // one keep vector per logical dimension (absent: all kept); kept = their product
  blocks,    // keep per block of a tile grid over the logical shape; edge blocks may be partial
  nm,        // N of every M consecutive elements along one dimension; one byte per element
  ranges,    // kept [begin, count) element ranges in memory order, ascending, disjoint
  bytes,     // one byte per element, logical row-major order
};

struct KeptRange {
  uint64_t begin, count;
};

// A description; it owns nothing and is only read during compile(). Any byte that is not zero
// keeps.
struct MaskSpec {
  MaskKind kind = MaskKind::dims;
  int ndim = 0;
  std::array<int64_t, kMaxDims> sizes{};
  std::array<int64_t, kMaxDims> strides{};                // elements; all zero: row-major
  std::array<std::span<const uint8_t>, kMaxDims> keep{};  // dims
  std::array<int64_t, kMaxDims> block{};  // blocks: extent per dimension; 0: the whole dimension
  std::span<const uint8_t> cells{};     // blocks: row-major over the tile grid; nm, bytes: elements
  int64_t n = 0, m = 0;                 // nm
  int nm_dim = 0;                       // nm
  std::span<const KeptRange> ranges{};  // ranges
  int64_t declared_kept = -1;           // -1: not declared; else must equal the counted number
};

// A row pattern, shared by all rows of the panels that name it.
struct Pattern {
  uint64_t columns = 0;         // bits
  uint64_t kept = 0;            // set bits
  std::vector<uint64_t> bits;   // (columns + 63) / 64 words, unused tail bits zero
  std::vector<uint64_t> rank;   // set bits before each word
  std::vector<KeptRange> runs;  // only when `wide`: maximal runs of set bits
  bool wide = false;            // runs are copied, not compressed: 16 elements or more on average
};

// `rows` rows of `columns` elements, `row_stride` elements apart. pattern -1: every column is kept
// (compile makes these of one row, as long as possible). Rows are slices of the outermost dimension
// in memory, except that a few short equal ones are joined; a vector is one row. Where it takes
// less memory, compile makes one row of the whole tensor instead, or one panel of pattern -1 for
// each run of kept elements.
struct Panel {
  uint64_t offset = 0;  // element offset in the tensor's storage
  uint64_t rows = 0;
  uint64_t row_stride = 0;
  uint64_t columns = 0;
  int32_t pattern = -1;
  uint64_t kept_before = 0;  // kept elements of the tensor before this panel
};

// Panels are ascending and disjoint in memory, each keeps something; whatever no panel keeps is
// dropped.
struct CompiledMask {
  uint64_t count = 0;  // elements of the tensor
  uint64_t kept = 0;
  uint64_t digest = 0;  // of count and kept positions in memory order; not of the spec's form
  std::vector<Pattern> patterns;
  std::vector<Panel> panels;
};

// Errors name the numbers: vector length against dimension, declared against counted, overlapping
// ranges, strides that are not a dense permutation of the shape, N:M groups with another count.
[[nodiscard]] Result<CompiledMask> compile(const MaskSpec& spec);

// Reference for tests: is element `index` (storage order) kept? O(log panels).
[[nodiscard]] bool keeps(const CompiledMask& mask, uint64_t index);

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
// A device plan is a list of tiles: pieces of the buffer, each the work of one thread block. A tile
// is all kept, all dropped, or rows of one pattern; the pattern is stored once for all its rows, so
// that it stays in the caches and index traffic is negligible beside the data.
#pragma once
#include "kernels/cuda/device.h"

namespace prunex::cuda {

// 32 columns of a pattern. `rank`: set bits of the pattern before them, modulo 2^32.
struct alignas(8) Word {
  uint32_t bits, rank;
};

enum class TileKind : uint8_t { kept = 0, dropped, pattern };

inline constexpr uint32_t kNoWords = ~uint32_t{0};  // Tile::word: every column is kept
inline constexpr uint32_t kMaxTile = 1u << 16;      // elements
inline constexpr uint32_t kMaxStride = 1u
                                       << 20;  // columns; longer rows are cut into tiles of one row
inline constexpr uint32_t kMaskedRows = 64;    // rows of a tile that have a bit each

// Element i of the tile lies in column (first + i) % stride of row (first + i) / stride.
struct alignas(64) Tile {
  uint64_t elem = 0;     // of the buffer
  uint64_t kept = 0;     // packed position of column 0 in row 0, were it kept; kept tiles: of elem
  uint64_t rows = 0;     // bit r: row r is kept, when !all_rows; a dropped row keeps nothing
  uint32_t count = 0;    // elements
  uint32_t stride = 1;   // columns of a row and of the dropped gap behind it
  uint32_t magic = 1;    // Divider of stride
  uint32_t first = 0;    // column of element 0
  uint32_t columns = 0;  // of the pattern
  uint32_t row_kept = 0;
  uint32_t word = kNoWords;  // first word of the pattern
  uint32_t rank = 0;         // rank of that word, for tiles that begin within a pattern
  uint8_t shift = 0;         // Divider of stride
  TileKind kind = TileKind::dropped;
  uint8_t all_rows = 1;
  uint8_t projected = 0;  // dropped elements are cut off by contract
};
static_assert(sizeof(Tile) == 64);

// Up to 16 consecutive elements: which are kept, and the packed position of the first that is, from
// Tile::kept on.
struct Group {
  uint32_t bits, offset;
};

// Kept columns among [column, column + n) of a row, and how many lie before; n <= kMost, within one
// row. Without branches that differ between threads, so that the loads of several lanes overlap.
template <uint32_t kMost>
[[nodiscard]] PRUNEX_HD uint32_t column_bits(const Tile& tile, const Word* pattern, uint32_t column,
                                             uint32_t n, uint32_t* rank) {
  const uint32_t at = column < tile.columns ? column : tile.columns;  // behind them: the gap
  if (tile.word == kNoWords) {
    *rank = at;
    const uint32_t inside = tile.columns - at;
    return low_bits(n < inside ? n : inside);
  }
  // Every pattern has a word to spare at its end, and no bits behind its columns.
  const Word* const place = pattern + at / 32;
  const uint32_t from = at % 32;
  const Word word = *place;
  *rank = word.rank - tile.rank + popcount(word.bits & ((1u << from) - 1));
  uint32_t bits = word.bits >> from;
  if constexpr (kMost > 1) {
    if (from + n > 32) {
      bits |= place[1].bits << (32 - from);
    }
  }
  return bits & low_bits(kMost == 1 ? 1 : n);
}

// Where an element of a pattern tile lies.
struct Cell {
  uint32_t row, column;
  uint32_t rows_before;  // kept rows of the tile
  bool row_kept;
};
[[nodiscard]] PRUNEX_HD Cell cell_of(const Tile& tile, uint32_t i) {
  const uint32_t local = tile.first + i;
  Cell cell{};
  cell.row = Divider{tile.magic, tile.shift}.divide(local);
  cell.column = local - cell.row * tile.stride;
  cell.rows_before = cell.row;
  cell.row_kept = true;
  if (tile.all_rows == 0) {
    cell.rows_before = popcount(tile.rows & ((uint64_t{1} << cell.row) - 1));
    cell.row_kept = (tile.rows >> cell.row & 1) != 0;
  }
  return cell;
}

[[nodiscard]] PRUNEX_HD const Word* pattern_of(const Tile& tile, const Word* words) {
  return held(words + (tile.word == kNoWords ? 0 : tile.word));
}

// Those of the elements [i, i + kMost) of a pattern tile, at most 16, that lie in the first one's
// row: *in_row of them at most. One or two are located for every 4 bytes that are packed: what this
// costs decides whether the memory or the instructions are waited for.
template <uint32_t kMost>
[[nodiscard]] PRUNEX_HD Group locate_in_row(const Tile& tile, const Word* pattern, uint32_t i,
                                            uint32_t* in_row) {
  const Cell cell = cell_of(tile, i);
  const uint32_t left = tile.stride - cell.column;
  const uint32_t most = kMost == 1 || kMost < left ? kMost : left;
  uint32_t rank = 0;
  const uint32_t bits = column_bits<kMost>(tile, pattern, cell.column, most, &rank);
  const uint32_t before = cell.rows_before * tile.row_kept;
  *in_row = left;
  return cell.row_kept ? Group{bits, before + rank} : Group{0, before};
}

// The others, where there are any; seldom, since rows are longer than a lane.
template <uint32_t kMost>
PRUNEX_HD void locate_rest(const Tile& tile, const Word* pattern, uint32_t i, uint32_t in_row,
                           Group* group) {
  uint32_t row = Divider{tile.magic, tile.shift}.divide(tile.first + i);
  for (uint32_t done = in_row; done < kMost;) {
    ++row;
    const uint32_t left = kMost - done;
    const uint32_t n = tile.stride < left ? tile.stride : left;
    if (tile.all_rows != 0 || (tile.rows >> row & 1) != 0) {
      uint32_t rank = 0;
      group->bits |= column_bits<kMost>(tile, pattern, 0, n, &rank) << done;
    }
    done += n;
  }
}

template <uint32_t kMost>
[[nodiscard]] PRUNEX_HD Group locate(const Tile& tile, const Word* pattern, uint32_t i) {
  uint32_t in_row = 0;
  Group group = locate_in_row<kMost>(tile, pattern, i, &in_row);
  if constexpr (kMost > 1) {
    locate_rest<kMost>(tile, pattern, i, in_row, &group);
  }
  return group;
}

// A call's part of the plan: elements [begin, end) of the buffer, and the packed position that is
// `packed[0]`.
struct Range {
  uint64_t begin, end, kept_begin;
};

// The packed position, from packed[0] on, of offset 0 of a tile; below zero where the range begins
// within the tile.
[[nodiscard]] PRUNEX_HD ptrdiff_t packed_base(const Tile& tile, const Range& range) {
  return static_cast<ptrdiff_t>(tile.kept - range.kept_begin);
}

// Elements [begin, end) of a tile that lie in the range.
struct Part {
  uint32_t begin, end;
};
[[nodiscard]] PRUNEX_HD Part part_of(const Tile& tile, const Range& range) {
  const uint64_t end = tile.elem + tile.count;
  if (range.begin >= end || range.end <= tile.elem) {
    return {0, 0};
  }
  return {range.begin > tile.elem ? static_cast<uint32_t>(range.begin - tile.elem) : 0,
          range.end < end ? static_cast<uint32_t>(range.end - tile.elem) : tile.count};
}

}  // namespace prunex::cuda

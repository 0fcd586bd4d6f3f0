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

// Kept columns among [column, column + n) of a row; n <= 16, within one row.
[[nodiscard]] PRUNEX_HD uint32_t column_bits(const Tile& tile, const Word* words, uint32_t column,
                                             uint32_t n, uint32_t* rank) {
  if (column >= tile.columns) {
    *rank = tile.row_kept;
    return 0;
  }
  if (tile.word == kNoWords) {
    *rank = column;
    const uint32_t inside = tile.columns - column;
    return low_bits(n < inside ? n : inside);
  }
  const Word* at = words + tile.word + column / 32;
  const uint32_t from = column % 32;
  const Word word = *at;
  *rank = word.rank - tile.rank + popcount(word.bits & low_bits(from));
  uint32_t bits = word.bits >> from;
  if (from + n > 32) {  // every pattern has a word to spare at its end
    bits |= at[1].bits << (32 - from);
  }
  return bits & low_bits(n);
}

// Elements [i, i + n) of a pattern tile; n <= 16.
[[nodiscard]] PRUNEX_HD Group locate(const Tile& tile, const Word* words, uint32_t i, uint32_t n) {
  const uint32_t local = tile.first + i;
  uint32_t row = Divider{tile.magic, tile.shift}.divide(local);
  uint32_t column = local - row * tile.stride;
  uint32_t rows_before = row;
  bool kept = true;
  if (tile.all_rows == 0) {
    rows_before = popcount(tile.rows & ((uint64_t{1} << row) - 1));
    kept = (tile.rows >> row & 1) != 0;
  }
  Group group{0, rows_before * tile.row_kept};
  uint32_t done = 0;
  while (true) {
    const uint32_t left = n - done;
    const uint32_t in_row = tile.stride - column < left ? tile.stride - column : left;
    if (kept) {
      uint32_t rank = 0;
      group.bits |= column_bits(tile, words, column, in_row, &rank) << done;
      group.offset += done == 0 ? rank : 0;
    }
    done += in_row;
    if (done == n) {
      return group;
    }
    ++row;
    column = 0;
    kept = tile.all_rows != 0 || (tile.rows >> row & 1) != 0;
  }
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

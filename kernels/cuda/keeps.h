// SPDX-License-Identifier: Apache-2.0
// Plans made on the device from keep vectors: which rows and which groups of columns of every
// parameter of a buffer stay. The tiles' places follow from the shapes and are known to the host
// once; what the keep vectors decide is filled in by the device, each time they change.
#pragma once
#include "kernels/cuda/tile.h"

namespace prunex::cuda {

inline constexpr uint32_t kNoKeep = ~uint32_t{0};

// A parameter as it lies in the buffer: rows of repeat * groups * inner columns. A convolution's
// [O, I, Kh, Kw] has O rows, repeat 1, I groups, inner Kh * Kw; with channels last it has repeat
// Kh * Kw, I groups, inner 1. Without keep vectors it is dense.
struct KeepTensor {
  uint64_t offset = 0;  // elements from the buffer's begin
  uint32_t rows = 1, repeat = 1, groups = 1, inner = 1;
  uint32_t row_keep = kNoKeep;    // where the keep bytes of its rows begin; none: all stay
  uint32_t group_keep = kNoKeep;  // of its groups
  uint32_t projected = 0;         // dropped elements are cut off by contract
  // Set by lower_keeps().
  uint32_t word = kNoWords;  // first word of its row's pattern; none: all columns stay
  uint64_t first_row = 0;    // rows of the buffer's parameters before its own

  [[nodiscard]] PRUNEX_HD uint64_t columns() const { return uint64_t{repeat} * groups * inner; }
};

// A tile's place: whole rows, or a part of one row that begins at a multiple of 32 columns.
struct KeepPlace {
  uint32_t tensor, row, rows;  // rows 0: a part of `row`
  uint32_t count;              // elements
  uint64_t column;             // of the part
};

// What the device works with; arrays of the host when it is handed over, of the device afterwards.
struct KeepArrays {
  const KeepTensor* tensors = nullptr;
  const KeepPlace* places = nullptr;         // one per tile
  const uint32_t* tensor_of_row = nullptr;   // one per row
  const uint32_t* tensor_of_word = nullptr;  // one per word
};

// Bits of word w.
[[nodiscard]] PRUNEX_HD uint32_t keep_word(const KeepArrays& arrays, const uint8_t* keeps,
                                           uint32_t w) {
  const KeepTensor& t = arrays.tensors[arrays.tensor_of_word[w]];
  const uint64_t columns = t.columns();
  const uint64_t first = uint64_t{w - t.word} * 32;
  uint32_t bits = 0;
  if (first >= columns) {
    return bits;  // the spare one
  }
  const auto n = static_cast<uint32_t>(columns - first < 32 ? columns - first : 32);
  auto group = static_cast<uint32_t>(first / t.inner % t.groups);
  auto within = static_cast<uint32_t>(first % t.inner);
  const uint8_t* const keep = keeps + t.group_keep;
  for (uint32_t j = 0; j < n; ++j) {
    bits |= (keep[group] != 0 ? 1u : 0u) << j;
    if (++within == t.inner) {
      within = 0;
      group = group + 1 == t.groups ? 0 : group + 1;
    }
  }
  return bits;
}

[[nodiscard]] PRUNEX_HD bool row_stays(const KeepTensor& t, const uint8_t* keeps, uint32_t row) {
  return t.row_keep == kNoKeep || keeps[t.row_keep + row] != 0;
}

// Kept columns of a row that stays; the words have their ranks, of all words before.
[[nodiscard]] PRUNEX_HD uint64_t pattern_kept(const KeepTensor& t, const Word* words) {
  const uint64_t columns = t.columns();
  if (t.word == kNoWords) {
    return columns;
  }
  return words[t.word + (columns + 31) / 32].rank - words[t.word].rank;
}

// Kept elements of row `row` of the buffer's rows.
[[nodiscard]] PRUNEX_HD uint64_t row_kept(const KeepArrays& arrays, const uint8_t* keeps,
                                          const Word* words, uint64_t row) {
  const KeepTensor& t = arrays.tensors[arrays.tensor_of_row[row]];
  return row_stays(t, keeps, static_cast<uint32_t>(row - t.first_row)) ? pattern_kept(t, words) : 0;
}

PRUNEX_HD void set_rows(Tile& tile, const KeepTensor& t, const KeepPlace& place,
                        const uint8_t* keeps, uint64_t kept_columns) {
  tile.columns = tile.stride = static_cast<uint32_t>(t.columns());
  tile.row_kept = static_cast<uint32_t>(kept_columns);
  if (t.row_keep == kNoKeep) {
    return;
  }
  uint32_t staying = 0;
  for (uint32_t r = 0; r < place.rows; ++r) {
    const bool stays = row_stays(t, keeps, place.row + r);
    tile.rows |= static_cast<uint64_t>(stays ? 1 : 0) << r;
    staying += stays ? 1 : 0;
  }
  tile.all_rows = staying == place.rows ? 1 : 0;
}

// Tile i; `kept_before`: kept elements of all rows before each row.
[[nodiscard]] PRUNEX_HD Tile keep_tile(const KeepArrays& arrays, const uint8_t* keeps,
                                       const Word* words, const uint64_t* kept_before, uint64_t i) {
  const KeepPlace place = arrays.places[i];
  const KeepTensor& t = arrays.tensors[place.tensor];
  const uint64_t columns = t.columns(), kept_columns = pattern_kept(t, words);
  const uint64_t row = t.first_row + place.row;
  Tile tile;
  tile.elem = t.offset + place.row * columns + place.column;
  tile.count = place.count;
  tile.kept = kept_before[row];
  tile.projected = static_cast<uint8_t>(t.projected);
  const bool all_columns = kept_columns == columns;
  if (place.rows > 0) {
    set_rows(tile, t, place, keeps, kept_columns);
  } else {
    tile.columns = tile.stride = place.count;
    tile.row_kept = static_cast<uint32_t>(kept_columns);
    tile.all_rows = row_stays(t, keeps, place.row) ? 1 : 0;
  }
  if (!all_columns) {
    tile.word = t.word + static_cast<uint32_t>(place.column / 32);
    tile.rank = words[tile.word].rank;
    tile.kept += tile.rank - words[t.word].rank;
  } else {
    tile.kept += place.column;
  }
  const Divider divider = Divider::of(tile.stride);
  tile.magic = divider.magic;
  tile.shift = static_cast<uint8_t>(divider.shift);
  const bool nothing = kept_columns == 0 || (tile.all_rows == 0 && tile.rows == 0);
  tile.kind = nothing                             ? TileKind::dropped
              : all_columns && tile.all_rows != 0 ? TileKind::kept
                                                  : TileKind::pattern;
  return tile;
}

}  // namespace prunex::cuda

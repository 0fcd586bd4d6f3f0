// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/lower_mixed.h"

#include <algorithm>
#include <numeric>

#include "kernels/cuda/lower_words.h"
#include "kernels/pattern.h"

namespace prunex::cuda {
namespace {

// Bits of one piece of rows, from `at` on.
void row_bits(const Piece& piece, uint64_t* bits, uint64_t at) {
  const uint64_t stride = piece.panel->row_stride;
  const uint64_t columns = piece.panel->columns;
  for (uint64_t e = piece.begin; e < piece.end;) {
    const uint64_t row = (e - piece.base) / stride;
    const uint64_t column = (e - piece.base) % stride;
    const uint64_t row_end = std::min(piece.end, piece.base + (row + 1) * stride);
    if (column < columns) {
      const uint64_t n = std::min(row_end - e, columns - column);
      const uint64_t to = at + (e - piece.begin);
      piece.pattern == nullptr ? fill_bits(bits, to, n)
                               : copy_bits(bits, to, piece.pattern->bits.data(), column, n);
    }
    e = row_end;
  }
}

// Kept and dropped runs only, on a grid of at most kMaskedRows units: one bit each, no words.
bool as_rows(const std::vector<Piece>& pieces, Tile& tile) {
  uint64_t unit = tile.count;
  for (const Piece& piece : pieces) {
    if (piece.panel != nullptr) {
      return false;
    }
    unit = std::gcd(unit, piece.end - piece.begin);
  }
  if (tile.count / unit > kMaskedRows) {
    return false;
  }
  for (const Piece& piece : pieces) {
    for (uint64_t e = piece.begin; piece.full && e < piece.end; e += unit) {
      tile.rows |= uint64_t{1} << ((e - tile.elem) / unit);
    }
  }
  tile.all_rows = 0;
  tile.columns = static_cast<uint32_t>(unit);
  tile.row_kept = static_cast<uint32_t>(unit);
  set_stride(tile, static_cast<uint32_t>(unit));
  return true;
}

}  // namespace

void set_stride(Tile& tile, uint32_t stride) {
  const Divider divider = Divider::of(stride);
  tile.stride = stride;
  tile.magic = divider.magic;
  tile.shift = static_cast<uint8_t>(divider.shift);
}

Tile uniform_tile(uint64_t begin, uint64_t end, uint64_t kept, bool full, bool projected) {
  Tile tile;
  tile.elem = begin;
  tile.kept = kept;
  tile.count = static_cast<uint32_t>(end - begin);
  tile.kind = full ? TileKind::kept : TileKind::dropped;
  tile.projected = projected ? 1 : 0;
  return tile;
}

Tile mixed_tile(const std::vector<Piece>& pieces, bool projected, std::vector<Word>& words) {
  const uint64_t begin = pieces.front().begin;
  const uint64_t count = pieces.back().end - begin;
  Tile tile = uniform_tile(begin, begin + count, pieces.front().kept, false, projected);
  tile.kind = TileKind::pattern;
  if (as_rows(pieces, tile)) {
    return tile;
  }
  std::vector<uint64_t> bits(words_for(count), 0);
  for (const Piece& piece : pieces) {
    if (piece.panel != nullptr) {
      row_bits(piece, bits.data(), piece.begin - begin);
    } else if (piece.full) {
      fill_bits(bits.data(), piece.begin - begin, piece.end - piece.begin);
    }
  }
  set_stride(tile, tile.count);
  tile.columns = tile.count;
  tile.row_kept = static_cast<uint32_t>(count_bits(bits));
  tile.word = append_words(words, bits, count);
  return tile;
}

}  // namespace prunex::cuda

// SPDX-License-Identifier: Apache-2.0
// Byte masks to words and tiles, one word or tile per call: what the device does between its scans.
#pragma once
#include "kernels/cuda/tile.h"

namespace prunex::cuda {

// Bits of the cells [32 * word, ...) of `count`.
[[nodiscard]] PRUNEX_HD uint32_t cell_bits(const uint8_t* cells, uint64_t count, uint64_t word) {
  const uint64_t first = word * 32;
  uint32_t bits = 0;
  if (count >= first + 32 && address_mod(cells + first, 16) == 0) {
    PRUNEX_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const auto v = reinterpret_cast<const Vector16*>(cells + first)[half];
      PRUNEX_UNROLL
      for (uint32_t j = 0; j < 16; ++j) {
        const uint64_t cell = (j < 8 ? v.low >> (8 * j) : v.high >> (8 * (j - 8))) & 0xff;
        bits |= (cell != 0 ? 1u : 0u) << (half * 16 + j);
      }
    }
    return bits;
  }
  for (uint32_t j = 0; j < 32 && first + j < count; ++j) {
    bits |= (cells[first + j] != 0 ? 1u : 0u) << j;
  }
  return bits;
}

// Tile t of a buffer of `count` elements under one bitmap, whose words have their ranks; tiles are
// `size` elements long, a multiple of 32.
[[nodiscard]] PRUNEX_HD Tile bitmap_tile(const Word* words, uint64_t count, uint32_t size,
                                         uint64_t t) {
  Tile tile;
  tile.elem = t * size;
  const uint64_t left = count - tile.elem;
  tile.count = left < size ? static_cast<uint32_t>(left) : size;
  tile.word = static_cast<uint32_t>(tile.elem / 32);
  tile.rank = words[tile.word].rank;
  tile.kept = tile.rank;
  // The word behind a tile's last is there: the next tile's first, or the spare one.
  const uint32_t behind = words[(tile.elem + tile.count + 31) / 32].rank;
  tile.row_kept = behind - tile.rank;
  tile.columns = tile.count;
  tile.stride = tile.count;
  const Divider divider = Divider::of(tile.count);
  tile.magic = divider.magic;
  tile.shift = static_cast<uint8_t>(divider.shift);
  tile.kind = tile.row_kept == 0            ? TileKind::dropped
              : tile.row_kept == tile.count ? TileKind::kept
                                            : TileKind::pattern;
  return tile;
}

}  // namespace prunex::cuda

// SPDX-License-Identifier: Apache-2.0
// From a layout to tiles: pure host code, part of libprunex, which hands the result to the CUDA
// library as plain arrays.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/cuda/tile.h"
#include "kernels/layout.h"

namespace prunex::cuda {

// Tiles ascend and cover the buffer without gap or overlap.
struct Lowered {
  uint64_t count = 0, kept = 0;  // elements, as the layout's
  std::vector<Tile> tiles;
  std::vector<Word> words;
};

// `tile_elements`: of a tile at most (cut to kMaxTile); see tuning.h. O(panels + tiles + words).
[[nodiscard]] Lowered lower(const Layout& layout, uint32_t tile_elements);

// Tiles [first, last) hold the range's elements.
struct TileSpan {
  size_t first, last;
};
[[nodiscard]] TileSpan tiles_of(const Lowered& plan, uint64_t begin, uint64_t end);

}  // namespace prunex::cuda

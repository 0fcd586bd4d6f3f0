// SPDX-License-Identifier: Apache-2.0
// Internal: many small pieces of a buffer put together into one tile, so that a thread block has
// work.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/cuda/tile.h"
#include "kernels/mask.h"

namespace prunex::cuda {

// Elements [begin, end) of the buffer in one segment: rows of a pattern, or all kept, or all
// dropped.
struct Piece {
  uint64_t begin = 0, end = 0;
  uint64_t kept = 0;             // packed position of the first kept element at or after begin
  const Panel* panel = nullptr;  // rows: the panel, whose rows begin at `base`
  const Pattern* pattern = nullptr;
  uint64_t base = 0;
  bool full = false;  // without panel: all kept
};

// One tile of adjoining pieces, at most kMaxTile elements together.
[[nodiscard]] Tile mixed_tile(const std::vector<Piece>& pieces, bool projected,
                              std::vector<Word>& words);

// A tile of [begin, end) that is all kept (its first element at packed position `kept`) or all
// dropped.
[[nodiscard]] Tile uniform_tile(uint64_t begin, uint64_t end, uint64_t kept, bool full,
                                bool projected);

void set_stride(Tile& tile, uint32_t stride);

}  // namespace prunex::cuda

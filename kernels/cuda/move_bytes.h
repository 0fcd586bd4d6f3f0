// SPDX-License-Identifier: Apache-2.0
// Pack and unpack where an address is no multiple of the element's size: correct, not fast.
#pragma once
#include "kernels/cuda/audit.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/tile.h"

namespace prunex::cuda {

// Is element i kept, and where does it lie in the packed stream?
[[nodiscard]] PRUNEX_HD Group locate_one(const Tile& tile, const Word* words, uint32_t i) {
  if (tile.kind == TileKind::pattern) {
    return locate<1>(tile, pattern_of(tile, words), i);
  }
  return {tile.kind == TileKind::kept ? 1u : 0u, i};
}

PRUNEX_HD void pack_tile_bytes(const Tile& tile, const Word* words, const std::byte* buffer,
                               const Range& range, std::byte* packed, uint32_t size,
                               uint32_t thread, uint32_t threads, Auditor* auditor) {
  const Part part = part_of(tile, range);
  for (uint32_t i = part.begin + thread; i < part.end; i += threads) {
    const Group group = locate_one(tile, words, i);
    const std::byte* from = buffer + (tile.elem + i) * size;
    if (group.bits != 0) {
      copy_bytes(packed + (packed_base(tile, range) + group.offset) * size, from, size);
    } else if (auditor != nullptr) {
      auditor->dropped(tile, i, load_bytes(from, size));
    }
  }
}

PRUNEX_HD void unpack_tile_bytes(const Tile& tile, const Word* words, const std::byte* packed,
                                 const Range& range, std::byte* buffer, uint32_t size,
                                 uint32_t thread, uint32_t threads) {
  const Part part = part_of(tile, range);
  for (uint32_t i = part.begin + thread; i < part.end; i += threads) {
    const Group group = locate_one(tile, words, i);
    std::byte* to = buffer + (tile.elem + i) * size;
    if (group.bits != 0) {
      copy_bytes(to, packed + (packed_base(tile, range) + group.offset) * size, size);
    } else {
      for (uint32_t b = 0; b < size; ++b) {
        to[b] = std::byte{0};
      }
    }
  }
}

}  // namespace prunex::cuda

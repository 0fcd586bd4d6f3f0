// SPDX-License-Identifier: Apache-2.0
// Which version of a kernel a call takes; the same choice on the device and in the CPU's emulation.
#pragma once
#include <type_traits>

#include "kernels/cuda/move.h"
#include "kernels/cuda/move_bytes.h"

namespace prunex::cuda {

// The element's size where both addresses are multiples of it, else 0: byte by byte.
[[nodiscard]] inline int move_of(DType type, const void* a, const void* b) {
  const auto size = static_cast<uint32_t>(size_of(type));
  const bool aligned = address_mod(a, size) == 0 && address_mod(b, size) == 0;
  return aligned ? static_cast<int>(size) : 0;
}

// visit(integral_constant<int, move>).
template <class Visit>
auto with_move(int move, Visit visit) {
  switch (move) {
    case 1:
      return visit(std::integral_constant<int, 1>{});
    case 2:
      return visit(std::integral_constant<int, 2>{});
    case 4:
      return visit(std::integral_constant<int, 4>{});
    case 8:
      return visit(std::integral_constant<int, 8>{});
    default:
      return visit(std::integral_constant<int, 0>{});
  }
}

// `auditor` is null or not at compile time on the device: the branch costs nothing there.
template <int kMove>
PRUNEX_HD void pack_one(const Tile& tile, const Word* words, const std::byte* buffer,
                        const Range& range, std::byte* packed, DType type, uint32_t thread,
                        uint32_t threads, Auditor* auditor) {
  if constexpr (kMove == 0) {
    pack_tile_bytes(tile, words, buffer, range, packed, static_cast<uint32_t>(size_of(type)),
                    thread, threads, auditor);
  } else if (auditor != nullptr) {
    pack_tile<kMove, true>(tile, words, buffer, range, packed, thread, threads, auditor);
  } else {
    pack_tile<kMove, false>(tile, words, buffer, range, packed, thread, threads, nullptr);
  }
}

template <int kMove>
PRUNEX_HD void unpack_one(const Tile& tile, const Word* words, const std::byte* packed,
                          const Range& range, std::byte* buffer, DType type, uint32_t thread,
                          uint32_t threads) {
  if constexpr (kMove == 0) {
    unpack_tile_bytes(tile, words, packed, range, buffer, static_cast<uint32_t>(size_of(type)),
                      thread, threads);
  } else {
    unpack_tile<kMove>(tile, words, packed, range, buffer, thread, threads);
  }
}

}  // namespace prunex::cuda

// SPDX-License-Identifier: Apache-2.0
// The kernels' grid on the CPU: every thread of every block, one after the other, through the same
// functions that the device runs.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/lower.h"

namespace prunex::test {

struct Grid {
  uint32_t blocks = 3, threads = 32;
};

template <class Body>
void for_each_thread(const Grid& grid, const cuda::Lowered& plan, const cuda::Range& range,
                     Body body) {
  const cuda::TileSpan span = cuda::tiles_of(plan, range.begin, range.end);
  for (uint32_t block = 0; block < grid.blocks; ++block) {
    for (size_t t = span.first + block; t < span.last; t += grid.blocks) {
      for (uint32_t thread = 0; thread < grid.threads; ++thread) {
        body(plan.tiles[t], thread);
      }
    }
  }
}

inline void emulate_pack(const Grid& grid, const cuda::Lowered& plan, const cuda::Range& range,
                         DType type, const std::byte* buffer, std::byte* packed,
                         cuda::AuditRecord* record, bool exact = false) {
  cuda::AuditRecord sum;
  cuda::with_move(cuda::move_of(type, buffer, packed), [&](auto size) {
    for_each_thread(grid, plan, range, [&](const cuda::Tile& tile, uint32_t thread) {
      cuda::Auditor auditor{type, cuda::audited_bits(type, exact), {}};
      cuda::pack_one<size()>(tile, plan.words.data(), buffer, range, packed, type, thread,
                             grid.threads, record != nullptr ? &auditor : nullptr);
      sum = cuda::merge(sum, auditor.found);
    });
  });
  if (record != nullptr) {
    *record = sum;
  }
}

inline void emulate_unpack(const Grid& grid, const cuda::Lowered& plan, const cuda::Range& range,
                           DType type, const std::byte* packed, std::byte* buffer) {
  cuda::with_move(cuda::move_of(type, buffer, packed), [&](auto size) {
    for_each_thread(grid, plan, range, [&](const cuda::Tile& tile, uint32_t thread) {
      cuda::unpack_one<size()>(tile, plan.words.data(), packed, range, buffer, type, thread,
                               grid.threads);
    });
  });
}

}  // namespace prunex::test

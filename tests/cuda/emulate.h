// SPDX-License-Identifier: Apache-2.0
// The kernels' grid on the CPU: every thread of every block, one after the other, through the same
// functions that the device runs.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/blocks.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/lower.h"
#include "kernels/cuda/table.h"

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

// As blocks.cu does it: votes, an exclusive sum of their counts, the move.
template <class Body>
void for_each_block_word(uint64_t blocks, const uint64_t* bits, Body body) {
  const auto words = static_cast<uint32_t>((blocks + 63) / 64 * 2);
  uint32_t rank = 0;
  for (uint32_t word = 0; word < words; ++word) {
    const auto set = static_cast<uint32_t>(bits[word / 2] >> (word % 2 * 32));
    for (uint32_t at = 0; at < cuda::kSteps * cuda::kWarpLanes; ++at) {
      body(word, set, rank, at / cuda::kWarpLanes, at % cuda::kWarpLanes);
    }
    rank += cuda::popcount(set);
  }
}

inline void emulate_pack_blocks(const cuda::BlockCall& call) {
  const auto* const from = static_cast<const std::byte*>(call.from);
  uint64_t total = 0;
  for (uint32_t word = 0; word < (call.blocks + 63) / 64 * 2; ++word) {
    uint32_t set = 0;
    for (uint32_t step = 0; step < cuda::kSteps; ++step) {
      uint32_t votes = 0;
      for (uint32_t lane = 0; lane < cuda::kWarpLanes; ++lane) {
        const cuda::Vector16 v = cuda::block_part(from, call.blocks, word, step, lane);
        votes |= ((v.low | v.high) != 0 ? 1u : 0u) << lane;
      }
      set |= cuda::block_bits(votes) << (step * cuda::kBlocksPerStep);
    }
    uint64_t& bits = call.bits[word / 2];
    bits = (word % 2 == 0 ? 0 : bits) | uint64_t{set} << (word % 2 * 32);
    total += cuda::popcount(set);
  }
  for_each_block_word(
      call.blocks, call.bits,
      [&](uint32_t word, uint32_t set, uint32_t rank, uint32_t step, uint32_t lane) {
        cuda::pack_block_part(from, call.blocks, word, set, rank, step, lane,
                              static_cast<std::byte*>(call.packed));
      });
  if (call.packed_blocks != nullptr) {
    *call.packed_blocks = total;
  }
}

inline void emulate_unpack_blocks(const cuda::BlockCall& call) {
  auto* const to = static_cast<std::byte*>(const_cast<void*>(call.from));
  for_each_block_word(
      call.blocks, call.bits,
      [&](uint32_t word, uint32_t set, uint32_t rank, uint32_t step, uint32_t lane) {
        cuda::unpack_block_part(static_cast<const std::byte*>(call.packed), call.blocks, word, set,
                                rank, step, lane, to);
      });
}

}  // namespace prunex::test

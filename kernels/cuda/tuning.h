// SPDX-License-Identifier: Apache-2.0
// Launch parameters, one row per architecture. Pure: the tests check every row on the CPU.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace prunex::cuda {

inline constexpr uint32_t kMaxThreads = 256;  // of a block: what the kernels are compiled for

struct Tuning {
  uint32_t arch;           // compute capability, major * 10 + minor
  uint32_t threads;        // of a block
  uint32_t blocks_per_sm;  // of the grid; the blocks walk over the tiles
  uint32_t tile_bytes;     // of the buffer: long enough for its loads, and enough tiles for all SMs
};

// What resides on an SM follows from its 65536 registers: 5 blocks of 256 threads (1280 of its 2048
// or 1536 threads) of pack and unpack (48 registers a thread), 4 of pack with audit and of unpack
// of bytes (64), 4 to 8 of all else; scripts/check_cuda_resources.py holds the build to it. The
// grid has more blocks, so that one that ends makes room for the next. Loads in flight on an SM:
// pack 20 KiB of 4-byte elements where a pattern says which (5 blocks, 256 threads, 4 loads),
// unpack 40 KiB, whole runs 80 KiB. Packing 4 bytes under a pattern takes about 30 instructions; an
// H200 at 1.7 GHz has 48 for the time in which its memory moves them, there and back. Bandwidth
// times an assumed 0.8 us of loaded latency are 15 KiB (A100), 28 KiB (H200) and 42 KiB (B200);
// nobody has measured these rows on a GPU yet (bench/cuda_pack_bench does).
inline constexpr Tuning kTunings[] = {
    {80, 256, 8, 8 << 10},
    {90, 256, 8, 16 << 10},
    {100, 256, 8, 16 << 10},
};

// The newest row that is not newer than the device; the oldest for devices before it.
[[nodiscard]] constexpr const Tuning& tuning_of(uint32_t arch) {
  const Tuning* best = &kTunings[0];
  for (const Tuning& tuning : kTunings) {
    if (tuning.arch <= arch) {
      best = &tuning;
    }
  }
  return *best;
}

// Elements of a tile. Small buffers get smaller tiles, down to 1 KiB, so that all SMs have work.
[[nodiscard]] constexpr uint32_t tile_elements(const Tuning& tuning, uint32_t sms, uint64_t count,
                                               size_t element_bytes) {
  const uint64_t fair = count * element_bytes / (uint64_t{std::max(sms, 1u)} * 4);
  uint64_t bytes = tuning.tile_bytes;
  while (bytes > 1024 && bytes > fair) {
    bytes /= 2;
  }
  return static_cast<uint32_t>(bytes / element_bytes);
}

[[nodiscard]] constexpr uint32_t grid_blocks(const Tuning& tuning, uint32_t sms, uint64_t tiles) {
  const uint64_t most = uint64_t{std::max(sms, 1u)} * tuning.blocks_per_sm;
  return static_cast<uint32_t>(std::clamp<uint64_t>(tiles, 1, most));
}

}  // namespace prunex::cuda

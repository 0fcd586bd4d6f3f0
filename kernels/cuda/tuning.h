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
  uint32_t tile_bytes;     // of the buffer: enough loads in flight, and enough tiles for all SMs
};

// Blocks of 256 threads, eight to an SM, keep 64 KiB of loads in flight on each: the product of HBM
// bandwidth and latency is 25 KiB (A100) to 60 KiB (B200) per SM.
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

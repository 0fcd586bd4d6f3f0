// SPDX-License-Identifier: Apache-2.0
// CUDA's grid on the CPU: the real kernels, each thread of a block a fiber of its own where threads
// wait for one another. Threads and blocks run in an order that changes with each launch, so that
// results which depend on it differ. A block whose threads wait for some that have ended is a hang
// of the device: the process ends and says so.
#pragma once
#include <cstdint>
#include <functional>

namespace prunex::simulated {

struct Dimension {
  uint32_t x;
};

// Runs `body` for every thread, one grid at a time in this process.
void run_grid(uint32_t blocks, uint32_t threads, const std::function<void()>& body);

// What a kernel may call. All threads of the block, or of the warp, come here.
void meet_block();
inline constexpr uint32_t kLanes = 32;
// The last to come runs `together` on what each lane brought.
void meet_warp(void* mine, void (*together)(void* const* brought, uint32_t lanes));

}  // namespace prunex::simulated

// CUDA's own names; of the thread that runs.
// NOLINTNEXTLINE(readability-identifier-naming)
extern prunex::simulated::Dimension threadIdx, blockIdx, blockDim, gridDim;

// SPDX-License-Identifier: Apache-2.0
// What CUDA's compiler brings along for kernels, for the host's compiler.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>

#include "tests/allocated/allocated.h"
#include "tests/cuda/simulated/grid.h"

// NOLINTBEGIN(readability-identifier-naming) names that others have given

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

inline void __syncthreads() { prunex::simulated::meet_block(); }
inline void __threadfence() {}
inline uint32_t atomicAdd(uint32_t* to, uint32_t by) {
  const uint32_t before = *to;
  *to += by;
  return before;
}
inline uint32_t __ballot_sync(uint32_t, bool vote) {
  struct Brought {
    bool vote;
    uint32_t all;
  } brought{vote, 0};
  prunex::simulated::meet_warp(&brought, [](void* const* all, uint32_t lanes) {
    uint32_t votes = 0;
    for (uint32_t l = 0; l < lanes; ++l) {
      votes |= (static_cast<Brought*>(all[l])->vote ? 1u : 0u) << l;
    }
    for (uint32_t l = 0; l < lanes; ++l) {
      static_cast<Brought*>(all[l])->all = votes;
    }
  });
  return brought.all;
}

struct cudaFuncAttributes {
  int numRegs;
};
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, Kernel*) {
  *out = {};
  return cudaSuccess;
}

namespace prunex::simulated {

// A kernel's work, in the stream's order; refused where CUDA would refuse the launch.
cudaError_t enqueue_kernel(cudaStream_t stream, std::function<void()> work);
// The same with a grid.
cudaError_t enqueue_grid(uint32_t blocks, uint32_t threads, cudaStream_t stream,
                         std::function<void()> body);

}  // namespace prunex::simulated

struct cudaLaunchConfig_t {
  uint32_t gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  const prunex::test::Uncounted uncounted;
  return prunex::simulated::enqueue_grid(config->gridDim, config->blockDim, config->stream,
                                         [=] { kernel(arguments...); });
}

// NOLINTEND(readability-identifier-naming)

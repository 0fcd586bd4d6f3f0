// SPDX-License-Identifier: Apache-2.0
// From the threads' audit records to one: within the block, then by the last block to arrive,
// always in the same order.
#pragma once
#include <cub/warp/warp_reduce.cuh>

#include "kernels/cuda/launch.h"

namespace prunex::cuda {

struct Merge {
  __device__ AuditRecord operator()(const AuditRecord& a, const AuditRecord& b) const {
    return merge(a, b);
  }
};

// The block's sum, in thread 0. All threads call it.
__device__ inline AuditRecord merge_block(const AuditRecord& mine) {
  using WarpReduce = cub::WarpReduce<AuditRecord>;
  constexpr uint32_t kWarps = kMaxThreads / 32;
  __shared__ typename WarpReduce::TempStorage temporary[kWarps];
  __shared__ AuditRecord of_warp[kWarps];
  const uint32_t warp = threadIdx.x / 32;
  const AuditRecord sum = WarpReduce(temporary[warp]).Reduce(mine, Merge{});
  if (threadIdx.x % 32 == 0) {
    of_warp[warp] = sum;
  }
  __syncthreads();
  AuditRecord all = of_warp[0];
  if (threadIdx.x == 0) {
    for (uint32_t w = 1; w < blockDim.x / 32; ++w) {
      all = merge(all, of_warp[w]);
    }
  }
  __syncthreads();  // of_warp may be written again
  return all;
}

__device__ inline void publish(const AuditRecord& mine, AuditScratch* scratch,
                               AuditRecord* record) {
  __shared__ bool last;
  const AuditRecord block = merge_block(mine);
  if (threadIdx.x == 0) {
    scratch->of_block[blockIdx.x] = block;
    __threadfence();
    last = atomicAdd(&scratch->arrived, 1u) + 1 == gridDim.x;
  }
  __syncthreads();
  if (!last) {
    return;
  }
  __threadfence();
  AuditRecord sum;
  for (uint32_t b = threadIdx.x; b < gridDim.x; b += blockDim.x) {
    sum = merge(sum, scratch->of_block[b]);
  }
  sum = merge_block(sum);
  if (threadIdx.x == 0) {
    *record = sum;
    scratch->arrived = 0;
  }
}

}  // namespace prunex::cuda

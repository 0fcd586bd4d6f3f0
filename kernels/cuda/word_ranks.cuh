// SPDX-License-Identifier: Apache-2.0
// Internal to libprunex-cuda: the ranks of bitmap words, by one scan of their counts.
#pragma once
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_scan.cuh>

#include "kernels/cuda/launch.cuh"

namespace prunex::cuda {

struct SetBits {
  const Word* words;
  __host__ __device__ uint32_t operator()(uint32_t w) const { return popcount(words[w].bits); }
};

inline cudaError_t rank_words(void* temporary, size_t& bytes, const Word* words, uint32_t* ranks,
                              uint64_t n, cudaStream_t stream) {
  const auto counts =
      thrust::make_transform_iterator(thrust::counting_iterator<uint32_t>(0), SetBits{words});
  return by_cub([&] {
    return cub::DeviceScan::ExclusiveSum(temporary, bytes, counts, ranks, static_cast<int64_t>(n),
                                         stream);
  });
}

[[nodiscard]] inline uint32_t grid_of(uint64_t items) {
  const uint64_t blocks = (items + kMaxThreads - 1) / kMaxThreads;
  return static_cast<uint32_t>(blocks < 1 ? 1 : blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

}  // namespace prunex::cuda

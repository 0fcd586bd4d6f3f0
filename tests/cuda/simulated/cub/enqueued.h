// SPDX-License-Identifier: Apache-2.0
// What CUB's device-wide algorithms have in common: without memory they say how much they want,
// with it they are enqueued, and use it.
#pragma once
#include <cuda_runtime.h>

#include <cstring>

namespace cub {

template <class Work>
cudaError_t enqueued(void* temporary, size_t& bytes, uint64_t items, cudaStream_t stream,
                     Work work) {
  const size_t need = 1024 + items / 64;
  if (temporary == nullptr) {
    bytes = need;
    return cudaSuccess;
  }
  if (bytes < need) {
    return cudaErrorInvalidValue;
  }
  // What lies there afterwards is nobody's.
  const prunex::test::Uncounted uncounted;
  prunex::simulated::enqueue_kernel(stream, [temporary, need, work] {
    std::memset(temporary, 0xc5, need);
    work();
  });
  return cudaPeekAtLastError();  // whoever left it, as CUB does
}

}  // namespace cub

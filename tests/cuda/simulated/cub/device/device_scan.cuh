// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tests/cuda/simulated/cub/enqueued.h"

// NOLINTBEGIN(readability-identifier-naming) names that others have given

namespace cub {

struct DeviceScan {
  template <class In, class Out, class Count>
  static cudaError_t ExclusiveSum(void* temporary, size_t& bytes, In in, Out out, Count n,
                                  cudaStream_t stream) {
    return enqueued(temporary, bytes, static_cast<uint64_t>(n), stream, [in, out, n] {
      std::remove_reference_t<decltype(out[0])> sum = 0;
      for (Count i = 0; i < n; ++i) {
        const auto value = in[i];
        out[i] = sum;
        sum += value;
      }
    });
  }
};

}  // namespace cub

// NOLINTEND(readability-identifier-naming)

// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tests/cuda/simulated/cub/enqueued.h"

// NOLINTBEGIN(readability-identifier-naming) names that others have given

namespace cub {

struct DeviceSegmentedReduce {
  template <class In, class Out, class Begins>
  static cudaError_t Sum(void* temporary, size_t& bytes, In in, Out out, int64_t segments,
                         Begins begins, Begins ends, cudaStream_t stream) {
    return enqueued(temporary, bytes, static_cast<uint64_t>(segments), stream, [=] {
      for (int64_t s = 0; s < segments; ++s) {
        std::remove_reference_t<decltype(out[0])> sum = 0;
        for (auto i = begins[s]; i < ends[s]; ++i) {
          sum += in[i];
        }
        out[s] = sum;
      }
    });
  }
};

}  // namespace cub

// NOLINTEND(readability-identifier-naming)

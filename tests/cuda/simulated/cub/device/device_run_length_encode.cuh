// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tests/cuda/simulated/cub/enqueued.h"

// NOLINTBEGIN(readability-identifier-naming) names that others have given

namespace cub {

struct DeviceRunLengthEncode {
  template <class In, class Unique, class Lengths, class Number>
  static cudaError_t Encode(void* temporary, size_t& bytes, In in, Unique unique, Lengths lengths,
                            Number runs, int n, cudaStream_t stream) {
    return enqueued(temporary, bytes, static_cast<uint64_t>(n), stream, [=] {
      uint32_t found = 0;
      for (int i = 0; i < n; ++i) {
        if (i > 0 && in[i] == in[i - 1]) {
          ++lengths[found - 1];
          continue;
        }
        unique[found] = in[i];
        lengths[found++] = 1;
      }
      *runs = found;
    });
  }
};

}  // namespace cub

// NOLINTEND(readability-identifier-naming)

// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tests/cuda/simulated/cub/enqueued.h"

// NOLINTBEGIN(readability-identifier-naming) names that others have given

namespace cub {

struct DeviceSelect {
  template <class In, class Out, class Number, class Wanted>
  static cudaError_t If(void* temporary, size_t& bytes, In in, Out out, Number selected, int64_t n,
                        Wanted wanted, cudaStream_t stream) {
    return enqueued(temporary, bytes, static_cast<uint64_t>(n), stream, [=] {
      uint32_t found = 0;
      for (int64_t i = 0; i < n; ++i) {
        const auto value = in[i];
        if (wanted(value)) {
          out[found++] = value;
        }
      }
      *selected = found;
    });
  }
};

}  // namespace cub

// NOLINTEND(readability-identifier-naming)

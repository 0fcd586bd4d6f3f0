// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/cuda/simulated/cub/enqueued.h"

// NOLINTBEGIN(readability-identifier-naming) names that others have given

namespace cub {

struct DeviceRadixSort {
  template <class Key, class Value>
  static cudaError_t SortPairsDescending(void* temporary, size_t& bytes, const Key* keys,
                                         Key* sorted_keys, const Value* values, Value* sorted,
                                         uint32_t n, int, int, cudaStream_t stream) {
    return enqueued(temporary, bytes, n, stream, [=] {
      std::vector<uint32_t> order(n);
      std::iota(order.begin(), order.end(), 0u);
      std::stable_sort(order.begin(), order.end(),
                       [keys](uint32_t a, uint32_t b) { return keys[a] > keys[b]; });
      for (uint32_t i = 0; i < n; ++i) {
        sorted_keys[i] = keys[order[i]];
        sorted[i] = values[order[i]];
      }
    });
  }
};

}  // namespace cub

// NOLINTEND(readability-identifier-naming)

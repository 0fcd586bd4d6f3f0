// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime.h>

// NOLINTBEGIN(readability-identifier-naming) names that others have given

namespace cub {

template <class T>
class WarpReduce {
 public:
  struct TempStorage {};
  explicit WarpReduce(TempStorage&) {}

  // In lane 0; the others get what they brought.
  template <class Merge>
  T Reduce(const T& mine, Merge merge) {
    struct Brought {
      T value;
      Merge* merge;
    } brought{mine, &merge};
    prunex::simulated::meet_warp(&brought, [](void* const* all, uint32_t lanes) {
      auto* const first = static_cast<Brought*>(all[0]);
      for (uint32_t l = 1; l < lanes; ++l) {
        first->value = (*first->merge)(first->value, static_cast<Brought*>(all[l])->value);
      }
    });
    return brought.value;
  }
};

}  // namespace cub

// NOLINTEND(readability-identifier-naming)

// SPDX-License-Identifier: Apache-2.0
// The kernels that make a plan of keep vectors, on the CPU.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/cuda/keeps.h"
#include "kernels/cuda/lower_keeps.h"

namespace prunex::test {

// As keeps.cu does it.
inline cuda::Lowered emulate_keeps(const cuda::LoweredKeeps& lowered, const uint8_t* keeps) {
  const cuda::KeepArrays arrays = lowered.arrays();
  cuda::Lowered plan;
  plan.count = lowered.tiles.count;
  uint32_t rank = 0;
  for (uint32_t w = 0; w < lowered.tensor_of_word.size(); ++w) {
    plan.words.push_back({cuda::keep_word(arrays, keeps, w), rank});
    rank += cuda::popcount(plan.words.back().bits);
  }
  std::vector<uint64_t> before;
  for (uint64_t row = 0; row < lowered.tensor_of_row.size(); ++row) {
    before.push_back(plan.kept);
    plan.kept += cuda::row_kept(arrays, keeps, plan.words.data(), row);
  }
  for (uint64_t i = 0; i < lowered.places.size(); ++i) {
    plan.tiles.push_back(cuda::keep_tile(arrays, keeps, plan.words.data(), before.data(), i));
  }
  return plan;
}

}  // namespace prunex::test

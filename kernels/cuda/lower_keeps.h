// SPDX-License-Identifier: Apache-2.0
// The part of a plan from keep vectors that the shapes alone decide: pure host code, done once per
// buffer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/keeps.h"
#include "kernels/cuda/lower.h"
#include "plugin/base/result.h"

namespace prunex::cuda {

struct LoweredKeeps {
  std::vector<KeepTensor> tensors;
  std::vector<KeepPlace> places;
  std::vector<uint32_t> tensor_of_row, tensor_of_word;
  Lowered tiles;  // elements and counts only: for tiles_of()

  [[nodiscard]] KeepArrays arrays() const {
    return {tensors.data(), places.data(), tensor_of_row.data(), tensor_of_word.data()};
  }
};

// `tensors` ascend and tile the buffer. `tile_elements`: a multiple of 32, at most kMaxTile. An
// error names the parameter that does not begin where the one before ends, or that has too many
// words or rows.
[[nodiscard]] Result<LoweredKeeps> lower_keeps(std::span<const KeepTensor> tensors,
                                               uint32_t tile_elements);

}  // namespace prunex::cuda

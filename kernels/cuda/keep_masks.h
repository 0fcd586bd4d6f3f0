// SPDX-License-Identifier: Apache-2.0
// A layout's masks as keep vectors, where they are such: kept rows of one grid, and one pattern of
// kept columns for all of them. What is handed to the device then is a byte per row and per column,
// and its kernels make the plan. Pure host code.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cuda/keeps.h"
#include "kernels/layout.h"

namespace prunex::cuda {

struct LayoutKeeps {
  std::vector<KeepTensor> tensors;  // as lower_keeps() takes them
  std::vector<uint8_t> keeps;       // 0 or 1
};

// Nothing where a mask has other rows and columns than such (blocks, N:M, bytes), where a byte for
// each would be much beside the mask, or where its rows are so short that tiles of them would be
// small: the host lowers those.
[[nodiscard]] std::optional<LayoutKeeps> keeps_of(const Layout& layout);

}  // namespace prunex::cuda

// SPDX-License-Identifier: Apache-2.0
// Plans of the kernels from layouts. Where the masks are rows and columns that stay, the device
// makes the plan itself, out of a byte for each of them; else the host lowers the layout.
#pragma once
#include <cstdint>

#include "kernels/cuda/lower.h"
#include "kernels/cuda/table.h"
#include "kernels/layout.h"
#include "plugin/base/result.h"

namespace prunex::device {

struct MadePlan {
  cuda::Plan* plan = nullptr;
  void* memory =
      nullptr;  // that making it took: freeing it at once would wait for all of the device
  cuda::Lowered lowered;  // where its tiles are; no words, and else nothing that can be packed by
};

// On the current device, for tiles of at most so many elements. Allocates, and waits for the device
// on a stream of its own.
[[nodiscard]] Result<MadePlan> make_plan(const cuda::Table& table, const Layout& layout,
                                         uint32_t tile_elements);
void destroy_plan(const cuda::Table& table, MadePlan& made);  // on the plan's device

}  // namespace prunex::device

// SPDX-License-Identifier: Apache-2.0
// Internal: one function per mask kind. Each checks what only its kind uses; the shape has
// elements.
#pragma once
#include "kernels/mask.h"
#include "kernels/mask_order.h"
#include "kernels/mask_rows.h"
#include "plugin/base/result.h"

namespace prunex {

// Lengths of what the spec's kind reads; also for tensors without elements.
[[nodiscard]] Result<> check_lengths(const MaskSpec& spec, const MemoryOrder& order);

[[nodiscard]] MaskRows rows_of_dims(const MaskSpec& spec, const MemoryOrder& order);
[[nodiscard]] MaskRows rows_of_blocks(const MaskSpec& spec, const MemoryOrder& order);
[[nodiscard]] MaskRows rows_of_cells(const MaskSpec& spec, const MemoryOrder& order);  // nm, bytes
[[nodiscard]] MaskRows rows_of_ranges(const MaskSpec& spec, const MemoryOrder& order);

}  // namespace prunex

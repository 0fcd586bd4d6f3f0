// SPDX-License-Identifier: Apache-2.0
// NCCL's numbers for types and operations.
#pragma once
#include <iterator>
#include <optional>

#include "plugin/base/dtype.h"

namespace prunex::nccl::coll {

// ncclDataType_t; nothing for numbers that came after NCCL 2.30.
[[nodiscard]] constexpr std::optional<DType> type_of(int nccl) {
  constexpr DType kTypes[] = {DType::i8,  DType::u8,   DType::i32,    DType::u32,
                              DType::i64, DType::u64,  DType::f16,    DType::f32,
                              DType::f64, DType::bf16, DType::f8e4m3, DType::f8e5m2};
  if (nccl < 0 || nccl >= static_cast<int>(std::size(kTypes))) {
    return std::nullopt;
  }
  return kTypes[nccl];
}

// ncclRedOp_t; averages reach a plugin as sums.
[[nodiscard]] constexpr std::optional<Op> op_of(int nccl) {
  constexpr Op kOps[] = {Op::sum, Op::prod, Op::max, Op::min};
  if (nccl < 0 || nccl >= static_cast<int>(std::size(kOps))) {
    return std::nullopt;
  }
  return kOps[nccl];
}

}  // namespace prunex::nccl::coll

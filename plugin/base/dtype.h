// SPDX-License-Identifier: Apache-2.0
// Element types and reduction operations; the numbers equal those of include/prunex/prunex.h. The
// 8-bit floats are NCCL's only: no call of the C API takes them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace prunex {

enum class DType : uint8_t { f32 = 0, f64, f16, bf16, i8, u8, i32, i64, u32, u64, f8e4m3, f8e5m2 };
inline constexpr int kNumDTypes = 10;     // of the C API
inline constexpr int kNumAllDTypes = 12;  // of kernels and CollNet

enum class Op : uint8_t { sum = 0, avg, max, min, prod };
inline constexpr int kNumOps = 5;

[[nodiscard]] constexpr size_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64:
    case DType::u64:
      return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::i8:
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return 1;
  }
  return 0;
}

[[nodiscard]] constexpr bool is_float(DType t) { return t <= DType::bf16 || t >= DType::f8e4m3; }

[[nodiscard]] constexpr const char* name_of(DType t) {
  constexpr const char* kNames[] = {"f32", "f64", "f16", "bf16", "i8",     "u8",
                                    "i32", "i64", "u32", "u64",  "f8e4m3", "f8e5m2"};
  return kNames[static_cast<size_t>(t)];
}

[[nodiscard]] constexpr const char* name_of(Op op) {
  constexpr const char* kNames[] = {"sum", "avg", "max", "min", "prod"};
  return kNames[static_cast<size_t>(op)];
}

// AVG sums 16-bit floats whose sum may overflow (fp16) and integers in a wider type until the one
// division at the end (design rule 3). Everything else travels as it is.
[[nodiscard]] constexpr DType partial_type(DType t, Op op) {
  if (op != Op::avg) {
    return t;
  }
  switch (t) {
    case DType::f16:
      return DType::f32;
    case DType::i8:
    case DType::u8:
      return DType::i32;
    case DType::i32:
    case DType::u32:
      return DType::i64;
    default:
      return t;
  }
}

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
// The block functions of reductions. The loops are plain so that the compiler vectorises them for
// each instruction set; all of them compute the same bits. Internal linkage: included by every
// instruction set's file, each with its own flags.
#pragma once
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "kernels/host/reduce_types.h"
#include "kernels/host/table.h"

namespace prunex::host {
namespace {

struct First {};

template <class Combine, class A>
inline A merge([[maybe_unused]] A acc, A v) {
  if constexpr (kSame<Combine, First>) {
    return v;
  } else {
    return Combine::apply(acc, v);
  }
}

template <class T, class Combine>
void take(void* accumulator, const void* source, size_t n) {
  auto* __restrict acc = static_cast<typename T::Wide*>(__builtin_assume_aligned(accumulator, 64));
  const auto* __restrict src = static_cast<const std::byte*>(source);
  size_t done = 0;
#if defined(__F16C__)
  if constexpr (kSame<T, F16>) {
    done = n & ~size_t{7};
    for (size_t i = 0; i < done; i += 8) {
      alignas(32) float wide[8];
      _mm256_store_ps(wide, widen8(src + 2 * i));
      for (size_t j = 0; j < 8; ++j) {
        acc[i + j] = merge<Combine>(acc[i + j], wide[j]);
      }
    }
  }
#endif
  for (size_t i = done; i < n; ++i) {
    acc[i] = merge<Combine>(acc[i], widen<T>(src, i));
  }
}

template <class A>
void divide(void* accumulator, size_t n, uint64_t divisor) {
  auto* acc = static_cast<A*>(__builtin_assume_aligned(accumulator, 64));
  if constexpr (kSame<A, int32_t>) {
    // The quotient of two integers below 2^53 never rounds up to the next integer in fp64.
    const double by = static_cast<double>(divisor);
    for (size_t i = 0; i < n; ++i) {
      acc[i] = static_cast<int32_t>(static_cast<double>(acc[i]) / by);
    }
  } else if constexpr (kSame<A, int64_t>) {
    const int64_t by = divisor > INT64_MAX ? INT64_MAX : static_cast<int64_t>(divisor);
    for (size_t i = 0; i < n; ++i) {
      acc[i] /= by;
    }
  } else {
    const A by = static_cast<A>(divisor);
    for (size_t i = 0; i < n; ++i) {
      acc[i] /= by;
    }
  }
}

template <class A, class T>
void put(void* destination, const void* accumulator, size_t n) {
  const auto* __restrict acc = static_cast<const A*>(__builtin_assume_aligned(accumulator, 64));
  auto* __restrict dst = static_cast<std::byte*>(destination);
  size_t done = 0;
#if defined(__F16C__)
  if constexpr (kSame<T, F16>) {
    done = n & ~size_t{7};
    for (size_t i = 0; i < done; i += 8) {
      narrow8(dst + 2 * i, _mm256_load_ps(acc + i));
    }
  }
#endif
  for (size_t i = done; i < n; ++i) {
    narrow<T>(dst, i, acc[i]);
  }
}

template <class T>
constexpr void fill_takes(TakeBlock (&row)[kNumTakes]) {
  row[static_cast<size_t>(Take::first)] = take<T, First>;
  row[static_cast<size_t>(Take::sum)] = take<T, Sum>;
  row[static_cast<size_t>(Take::max)] = take<T, Max>;
  row[static_cast<size_t>(Take::min)] = take<T, Min>;
  row[static_cast<size_t>(Take::prod)] = take<T, Prod>;
}

template <class A, class T>
constexpr void fill_put(Table& t, Acc acc, DType type) {
  t.put[static_cast<size_t>(acc)][static_cast<size_t>(type)] = put<A, T>;
}

constexpr void fill_reductions(Table& t) {
  fill_takes<F32>(t.take[static_cast<size_t>(DType::f32)]);
  fill_takes<F64>(t.take[static_cast<size_t>(DType::f64)]);
  fill_takes<F16>(t.take[static_cast<size_t>(DType::f16)]);
  fill_takes<BF16>(t.take[static_cast<size_t>(DType::bf16)]);
  fill_takes<I8>(t.take[static_cast<size_t>(DType::i8)]);
  fill_takes<U8>(t.take[static_cast<size_t>(DType::u8)]);
  fill_takes<I32>(t.take[static_cast<size_t>(DType::i32)]);
  fill_takes<I64>(t.take[static_cast<size_t>(DType::i64)]);
  fill_takes<U32>(t.take[static_cast<size_t>(DType::u32)]);
  fill_takes<U64>(t.take[static_cast<size_t>(DType::u64)]);
  fill_takes<F8E4M3>(t.take[static_cast<size_t>(DType::f8e4m3)]);
  fill_takes<F8E5M2>(t.take[static_cast<size_t>(DType::f8e5m2)]);
  t.divide[static_cast<size_t>(Acc::f32)] = divide<float>;
  t.divide[static_cast<size_t>(Acc::f64)] = divide<double>;
  t.divide[static_cast<size_t>(Acc::i32)] = divide<int32_t>;
  t.divide[static_cast<size_t>(Acc::i64)] = divide<int64_t>;
  t.divide[static_cast<size_t>(Acc::u64)] = divide<uint64_t>;
  fill_put<float, F32>(t, Acc::f32, DType::f32);
  fill_put<float, F16>(t, Acc::f32, DType::f16);
  fill_put<float, BF16>(t, Acc::f32, DType::bf16);
  fill_put<float, F8E4M3>(t, Acc::f32, DType::f8e4m3);
  fill_put<float, F8E5M2>(t, Acc::f32, DType::f8e5m2);
  fill_put<double, F64>(t, Acc::f64, DType::f64);
  fill_put<int32_t, I8>(t, Acc::i32, DType::i8);
  fill_put<int32_t, U8>(t, Acc::i32, DType::u8);
  fill_put<int32_t, I32>(t, Acc::i32, DType::i32);
  fill_put<int64_t, I8>(t, Acc::i64, DType::i8);
  fill_put<int64_t, U8>(t, Acc::i64, DType::u8);
  fill_put<int64_t, I32>(t, Acc::i64, DType::i32);
  fill_put<int64_t, I64>(t, Acc::i64, DType::i64);
  fill_put<int64_t, U32>(t, Acc::i64, DType::u32);
  fill_put<uint64_t, U64>(t, Acc::u64, DType::u64);
}

}  // namespace
}  // namespace prunex::host

// SPDX-License-Identifier: Apache-2.0
// What lets one function serve as device code and as host code: the tests run the kernels'
// per-thread functions on the CPU, thread by thread, and compare with the host kernels.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define PRUNEX_HD __host__ __device__ __forceinline__
#else
#define PRUNEX_HD inline
#endif
#if defined(__CUDA_ARCH__)
#define PRUNEX_UNROLL _Pragma("unroll")
#else
#define PRUNEX_UNROLL
#endif

namespace prunex::cuda {

[[nodiscard]] PRUNEX_HD uint32_t popcount(uint32_t v) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__popc(static_cast<int>(v)));
#else
  return static_cast<uint32_t>(std::popcount(v));
#endif
}

[[nodiscard]] PRUNEX_HD uint32_t popcount(uint64_t v) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__popcll(static_cast<long long>(v)));
#else
  return static_cast<uint32_t>(std::popcount(v));
#endif
}

// The lowest n bits set; n <= 32.
[[nodiscard]] PRUNEX_HD uint32_t low_bits(uint32_t n) {
  return n >= 32 ? ~uint32_t{0} : (uint32_t{1} << n) - 1;
}

// Division by an invariant (Granlund and Montgomery): exact for dividends below 2^31.
struct Divider {
  uint32_t magic = 1, shift = 0;

  [[nodiscard]] static PRUNEX_HD constexpr Divider of(uint32_t d) {
    uint32_t shift = 0;
    while ((uint64_t{1} << shift) < d) {
      ++shift;
    }
    const uint64_t power = uint64_t{1} << shift;
    return {static_cast<uint32_t>(((power - d) << 32) / d + 1), shift};
  }
  [[nodiscard]] PRUNEX_HD uint32_t divide(uint32_t n) const {
    const auto high = static_cast<uint32_t>((static_cast<uint64_t>(n) * magic) >> 32);
    return (high + n) >> shift;
  }
};

// 16 bytes that are loaded and stored at once where the address is a multiple of 16.
struct alignas(16) Vector16 {
  uint64_t low, high;
};

// The same address, which the compiler keeps in registers from here on, instead of putting it
// together anew wherever it is used.
template <class T>
[[nodiscard]] PRUNEX_HD T* held(T* p) {
#if defined(__CUDA_ARCH__)
  asm("" : "+l"(p));
  __builtin_assume(__isGlobal(p));
#endif
  return p;
}

[[nodiscard]] PRUNEX_HD uint32_t address_mod(const void* p, uint32_t power_of_two) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)) & (power_of_two - 1);
}

}  // namespace prunex::cuda

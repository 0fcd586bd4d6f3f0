// SPDX-License-Identifier: Apache-2.0
// Kernels for transports that deliver bytes, not values: nothing but all bits clear is zero (-0 is
// not), and a mask is only a claim about where zeros are. No allocation, no I/O, any alignment; the
// instruction set is the one that kernels/pack.h chose.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/mask.h"

namespace prunex {

// Kept elements of the mask before `element` (at most mask.count). O(log panels).
[[nodiscard]] uint64_t kept_before(const CompiledMask& mask, uint64_t element);

struct ExactPack {
  size_t packed = 0;     // bytes written
  uint64_t nonzero = 0;  // dropped elements of which any bit is set
};

// Elements [begin, end) of a tensor, of 1 << log2_size bytes each; `src` and `dst` point at element
// `begin`. `packed_end` ends the memory that may be written (or read): it leaves room for the kept
// elements of the range, and what lies between those and packed_end may be overwritten.
[[nodiscard]] ExactPack pack_exact(const CompiledMask& mask, unsigned log2_size, uint64_t begin,
                                   uint64_t end, const void* src, void* packed,
                                   const void* packed_end);

// The inverse, with zeros in every dropped element of the range; returns the bytes consumed.
size_t unpack_exact(const CompiledMask& mask, unsigned log2_size, uint64_t begin, uint64_t end,
                    const void* packed, const void* packed_end, void* dst);

inline constexpr size_t kZeroBlock = 128;  // bytes

// Copies those of up to 64 consecutive blocks that hold anything but zeros to `packed`, one behind
// the other, and returns their bits (block 0 is bit 0). May overwrite blocks * kZeroBlock bytes.
[[nodiscard]] uint64_t pack_blocks(const void* src, size_t blocks, void* packed);

// The inverse: zeros where the bit is clear. Every store goes to a higher address than the one
// before and reaches the caches as any other. Reads kZeroBlock bytes for each bit set.
void unpack_blocks(uint64_t bits, size_t blocks, const void* packed, void* dst);

[[nodiscard]] bool all_zero(const void* src, size_t bytes);

}  // namespace prunex

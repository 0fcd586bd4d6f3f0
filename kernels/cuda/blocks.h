// SPDX-License-Identifier: Apache-2.0
// Blocks of 128 bytes that hold anything but zeros. A warp takes 32 blocks, four at a time: lane l
// of step s reads the 16 bytes l of the blocks from 4 * s on.
#pragma once
#include "kernels/cuda/memory.h"

namespace prunex::cuda {

inline constexpr uint32_t kBlockBytes = 128;
inline constexpr uint32_t kWarpLanes = 32;
inline constexpr uint32_t kLanesPerBlock = kBlockBytes / 16;
inline constexpr uint32_t kBlocksPerStep = kWarpLanes / kLanesPerBlock;
inline constexpr uint32_t kSteps = 32 / kBlocksPerStep;

// The lane's 16 bytes in step `step` of the warp of 32 blocks number `word`; zeros past the end.
[[nodiscard]] PRUNEX_HD Vector16 block_part(const std::byte* from, uint64_t blocks, uint64_t word,
                                            uint32_t step, uint32_t lane) {
  const uint64_t block = word * 32 + step * kBlocksPerStep + lane / kLanesPerBlock;
  if (block >= blocks) {
    return {0, 0};
  }
  const std::byte* end = from + blocks * kBlockBytes;
  return load16<1>(from + block * kBlockBytes + lane % kLanesPerBlock * 16, from, end);
}

// Bits of the step's blocks from its lanes' votes (bit l: lane l has a bit set).
[[nodiscard]] PRUNEX_HD uint32_t block_bits(uint32_t votes) {
  uint32_t bits = 0;
  PRUNEX_UNROLL
  for (uint32_t b = 0; b < kBlocksPerStep; ++b) {
    bits |= (votes >> (b * kLanesPerBlock) & low_bits(kLanesPerBlock)) != 0 ? 1u << b : 0u;
  }
  return bits;
}

PRUNEX_HD void store16_anywhere(std::byte* p, const Vector16& v) {
  if (address_mod(p, 16) == 0) {
    store(p, v);
    return;
  }
  if (address_mod(p, 8) == 0) {
    store(p, v.low);
    store(p + 8, v.high);
    return;
  }
  for (uint32_t b = 0; b < 16; ++b) {
    p[b] = static_cast<std::byte>((b < 8 ? v.low : v.high) >> (b % 8 * 8));
  }
}

// Copies the lane's part of a block that is set, to (pack) or from (unpack) its place in the packed
// stream; `rank`: set blocks before this word. Unpack writes zeros where the bit is clear.
PRUNEX_HD void pack_block_part(const std::byte* from, uint64_t blocks, uint64_t word, uint32_t bits,
                               uint32_t rank, uint32_t step, uint32_t lane, std::byte* packed) {
  const uint32_t b = step * kBlocksPerStep + lane / kLanesPerBlock;
  if ((bits >> b & 1) != 0) {
    const uint64_t at = rank + popcount(bits & low_bits(b));
    store16_anywhere(packed + at * kBlockBytes + lane % kLanesPerBlock * 16,
                     block_part(from, blocks, word, step, lane));
  }
}

PRUNEX_HD void unpack_block_part(const std::byte* packed, uint64_t blocks, uint64_t word,
                                 uint32_t bits, uint32_t rank, uint32_t step, uint32_t lane,
                                 std::byte* to) {
  const uint32_t b = step * kBlocksPerStep + lane / kLanesPerBlock;
  const uint64_t block = word * 32 + b;
  if (block >= blocks) {
    return;
  }
  const uint32_t part = lane % kLanesPerBlock * 16;
  Vector16 v{0, 0};
  if ((bits >> b & 1) != 0) {
    const uint64_t at = rank + popcount(bits & low_bits(b));
    v = load<Vector16>(packed + at * kBlockBytes + part);
  }
  store16_anywhere(to + block * kBlockBytes + part, v);
}

}  // namespace prunex::cuda

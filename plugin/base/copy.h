// SPDX-License-Identifier: Apache-2.0
// A copy that whoever polls the destination can rely on.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace prunex {

// In ascending order, in whole aligned words, which memcpy does not promise: a reader that sees the
// end of a line (NCCL's LL128) sees what lies before it.
inline void copy_ascending(std::byte* to, const std::byte* from, size_t bytes) {
  size_t at = 0;
  for (; at < bytes && reinterpret_cast<uintptr_t>(to + at) % 8 != 0; ++at) {
    to[at] = from[at];
  }
  for (; at + 8 <= bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, from + at, 8);
    __atomic_store_n(reinterpret_cast<uint64_t*>(to + at), word, __ATOMIC_RELEASE);
  }
  for (; at < bytes; ++at) {
    to[at] = from[at];
  }
}

}  // namespace prunex

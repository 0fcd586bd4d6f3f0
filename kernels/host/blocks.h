// SPDX-License-Identifier: Apache-2.0
// Blocks of kZeroBlock bytes that are left out where they hold only zeros, over a block policy B:
//   Vec            a block in registers
//   load, store    at any alignment
//   nonzero(v)     1 when any bit is set, else 0
// No branch depends on the data. Internal linkage: included by every instruction set's file.
#pragma once
#include "kernels/exact.h"
#include "kernels/host/table.h"

namespace prunex::host {
namespace {

alignas(64) constexpr std::byte kZeroes[kZeroBlock] = {};

// Far enough ahead of the scan to hide memory's latency; past the end it asks for nothing that is
// used.
constexpr size_t kPrefetch = 2048;

inline void prefetch_block(const std::byte* block) {
  const auto ahead = reinterpret_cast<uintptr_t>(block) + kPrefetch;
  __builtin_prefetch(reinterpret_cast<const void*>(ahead));
  __builtin_prefetch(reinterpret_cast<const void*>(ahead + 64));
}

// Every block is stored; the next one takes its place when it was zero.
template <class B>
uint64_t pack_blocks(const void* src, size_t blocks, void* packed) {
  const auto* from = static_cast<const std::byte*>(src);
  auto* to = static_cast<std::byte*>(packed);
  uint64_t bits = 0;
  for (size_t i = 0; i < blocks; ++i, from += kZeroBlock) {
    prefetch_block(from);
    const typename B::Vec v = B::load(from);
    B::store(to, v);
    const uint64_t keep = B::nonzero(v);
    bits |= keep << i;
    to += keep * kZeroBlock;
  }
  return bits;
}

template <class B>
void unpack_blocks(uint64_t bits, size_t blocks, const void* packed, void* dst) {
  const auto zeroes = reinterpret_cast<uintptr_t>(kZeroes);
  auto from = reinterpret_cast<uintptr_t>(packed);
  auto* to = static_cast<std::byte*>(dst);
  for (size_t i = 0; i < blocks; ++i, bits >>= 1, to += kZeroBlock) {
    const uint64_t keep = bits & 1;
    const uintptr_t block = zeroes ^ ((zeroes ^ from) & (0 - keep));
    B::store(to, B::load(reinterpret_cast<const std::byte*>(block)));
    from += keep * kZeroBlock;
  }
}

template <class B>
constexpr void fill_blocks(Table& t) {
  t.pack_blocks = pack_blocks<B>;
  t.unpack_blocks = unpack_blocks<B>;
}

}  // namespace
}  // namespace prunex::host

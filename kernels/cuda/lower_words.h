// SPDX-License-Identifier: Apache-2.0
// Internal: bit rows as the 32-bit words with ranks that the device reads.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/tile.h"

namespace prunex::cuda {

// Appends the words of `columns` bits and one to spare; returns the index of the first.
inline uint32_t append_words(std::vector<Word>& words, std::span<const uint64_t> bits,
                             uint64_t columns) {
  const auto first = static_cast<uint32_t>(words.size());
  uint32_t rank = 0;
  for (uint64_t c = 0; c < columns; c += 32) {
    const auto half = static_cast<uint32_t>(bits[c / 64] >> (c % 64));
    words.push_back({half, rank});
    rank += popcount(half);
  }
  words.push_back({0, rank});
  return first;
}

}  // namespace prunex::cuda

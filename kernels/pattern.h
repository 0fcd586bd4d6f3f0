// SPDX-License-Identifier: Apache-2.0
// Internal: bit rows, the patterns made of them, and where the k-th kept element lies.
#pragma once
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/mask.h"

namespace prunex {

[[nodiscard]] constexpr uint64_t words_for(uint64_t bits) {
  return bits / 64 + (bits % 64 != 0 ? 1 : 0);
}

// The writers below only set bits: the target starts out zero.

// Sets bits [at, at + count).
void fill_bits(uint64_t* words, uint64_t at, uint64_t count);

// Bits [from, from + count) of `source` to bits [at, at + count) of `words`. The two may be one
// array as long as the bits read lie below the bits written.
void copy_bits(uint64_t* words, uint64_t at, const uint64_t* source, uint64_t from, uint64_t count);

// Bit at + i is set when cells[i * stride] is not zero.
void gather_bits(uint64_t* words, uint64_t at, const uint8_t* cells, uint64_t stride,
                 uint64_t count);

[[nodiscard]] uint64_t count_bits(std::span<const uint64_t> words);
[[nodiscard]] uint64_t count_runs(std::span<const uint64_t> words);

// The lowest position >= from whose bit is set (or clear); `end` when there is none before it.
[[nodiscard]] uint64_t next_bit(const uint64_t* words, uint64_t from, uint64_t end, bool set);

// visit(begin, count) for the maximal runs of set bits, ascending.
template <class Visit>
void for_each_run(const uint64_t* words, uint64_t bits, Visit visit) {
  for (uint64_t at = next_bit(words, 0, bits, true); at < bits;) {
    const uint64_t end = next_bit(words, at, bits, false);
    visit(at, end - at);
    at = next_bit(words, end, bits, true);
  }
}

// A pattern whose runs average this many elements or more is `wide`: 64 bytes of fp32, where one
// copy per run has become cheaper than compressing word by word.
inline constexpr uint64_t kWideRun = 16;

[[nodiscard]] Pattern make_pattern(std::vector<uint64_t> bits, uint64_t columns);

// Column of the k-th (from 0) set bit; k < pattern.kept. O(log columns).
[[nodiscard]] uint64_t select_column(const Pattern& pattern, uint64_t k);

// Storage index of the k-th (from 0) kept element; k < mask.kept. O(log panels + log columns).
[[nodiscard]] uint64_t select_kept(const CompiledMask& mask, uint64_t k);

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
// A hash of a set of positions that composes by arithmetic: the sum of B^position modulo the prime
// 2^61 - 1. However a set is cut into runs, rows and panels, the sum is the same, and a run or a
// panel of equal rows is a geometric series, so that nobody enumerates elements. B is a primitive
// root: no two positions below 2^60 share a term. Not a defence against an adversary.
#pragma once
#include <cstdint>
#include <span>

namespace prunex {

// All values are reduced: below 2^61 - 1.
[[nodiscard]] uint64_t hash_mul(uint64_t a, uint64_t b);
[[nodiscard]] uint64_t hash_add(uint64_t a, uint64_t b);

// B^position.
[[nodiscard]] uint64_t hash_position(uint64_t position);

// Positions [begin, begin + count).
[[nodiscard]] uint64_t hash_run(uint64_t begin, uint64_t count);

// The set bits of `words`, bit 0 of word 0 being position 0.
[[nodiscard]] uint64_t hash_bits(std::span<const uint64_t> words);

// `rows` copies of a set, copy k moved by offset + k * stride. O(log rows).
[[nodiscard]] uint64_t hash_rows(uint64_t set, uint64_t offset, uint64_t rows, uint64_t stride);

}  // namespace prunex

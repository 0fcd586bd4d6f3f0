// SPDX-License-Identifier: Apache-2.0
// Row functions over a word policy W, which handles up to 64 columns at a time. Internal linkage:
// included by every instruction set's file, each with its own flags.
//
// W: kWidth (bytes of an element), compress, compress_part, count_dropped, expand, expand_part,
// count, copy, zero; see words.h.
#pragma once
#include "kernels/host/table.h"

namespace prunex::host {
namespace {

inline uint64_t low_bits(size_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

inline size_t lesser(size_t a, size_t b) { return a < b ? a : b; }
inline size_t greater(size_t a, size_t b) { return a > b ? a : b; }

// Columns [column, column + n) as the low bits of a word; n <= 64.
inline uint64_t bits_at(const uint64_t* bits, size_t column, size_t n) {
  const size_t shift = column % 64;
  uint64_t word = bits[column / 64] >> shift;
  if (shift + n > 64) {
    word |= bits[column / 64 + 1] << (64 - shift);
  }
  return word & low_bits(n);
}

// Columns [begin, end) in pieces that end at word boundaries: whole(word) for 64 columns,
// part(bits, n) for fewer, with bits past n zero.
template <class Whole, class Part>
inline void for_each_word(const uint64_t* bits, size_t begin, size_t end, Whole whole, Part part) {
  while (begin < end) {
    const size_t n = lesser(64 - begin % 64, end - begin);
    if (n == 64) [[likely]] {
      whole(bits + begin / 64);
    } else {
      part(bits_at(bits, begin, n), n);
    }
    begin += n;
  }
}

// visit(begin, end, kept): [begin, end) cut into kept and dropped stretches, in columns.
template <class Visit>
inline void for_each_stretch(const RowBlock& block, Visit visit) {
  size_t at = block.begin;
  for (size_t i = 0; i < block.num_runs; ++i) {
    const size_t from = greater(block.runs[i].begin, block.begin);
    const size_t to = lesser(block.runs[i].begin + block.runs[i].count, block.end);
    if (from > at) {
      visit(at, from, false);
    }
    visit(from, to, true);
    at = to;
  }
  if (at < block.end) {
    visit(at, block.end, false);
  }
}

template <class W, bool kAudit>
inline std::byte* pack_row(const RowBlock& block, const std::byte* row, std::byte* packed,
                           const std::byte* packed_end, uint64_t value_bits, uint64_t& nonzero) {
  const size_t columns = block.end - block.begin;
  if (block.runs != nullptr) {
    for_each_stretch(block, [&](size_t from, size_t to, bool kept) {
      const std::byte* src = row + (from - block.begin) * W::kWidth;
      if (kept) {
        W::copy(packed, src, (to - from) * W::kWidth);
        packed += (to - from) * W::kWidth;
      } else if constexpr (kAudit) {
        nonzero += W::count(src, to - from, value_bits);
      }
    });
  } else if (block.bits != nullptr) {
    for_each_word(
        block.bits, block.begin, block.end,
        [&](const uint64_t* word) {
          packed = W::template compress<kAudit>(row, word, packed, packed_end, value_bits, nonzero);
          row += 64 * W::kWidth;
        },
        [&](uint64_t word, size_t n) {
          packed = W::template compress_part<kAudit>(row, word, n, packed, packed_end, value_bits,
                                                     nonzero);
          row += n * W::kWidth;
        });
  } else {
    W::copy(packed, row, columns * W::kWidth);
    packed += columns * W::kWidth;
  }
  return packed;
}

template <class W, bool kAudit>
inline uint64_t pack_all_rows(const RowBlock& block, const std::byte* src, std::byte* packed,
                              const std::byte* packed_end, uint64_t value_bits) {
  const size_t columns = block.end - block.begin;
  uint64_t nonzero = 0;
  for (size_t r = 0; r < block.rows; ++r) {
    packed = pack_row<W, kAudit>(block, src, packed, packed_end, value_bits, nonzero);
    if (kAudit && r + 1 < block.rows) {
      nonzero += W::count(src + columns * W::kWidth, block.stride - columns, value_bits);
    }
    src += block.stride * W::kWidth;
  }
  return nonzero;
}

template <class W>
uint64_t pack_rows(const RowBlock& block, const void* src, void* packed, const void* packed_end,
                   uint64_t value_bits) {
  const auto* from = static_cast<const std::byte*>(src);
  auto* to = static_cast<std::byte*>(packed);
  const auto* end = static_cast<const std::byte*>(packed_end);
  return value_bits == 0 ? pack_all_rows<W, false>(block, from, to, end, 0)
                         : pack_all_rows<W, true>(block, from, to, end, value_bits);
}

template <class W>
uint64_t audit_rows(const RowBlock& block, const void* src, uint64_t value_bits) {
  const size_t columns = block.end - block.begin;
  const auto* row = static_cast<const std::byte*>(src);
  uint64_t nonzero = 0;
  for (size_t r = 0; r < block.rows; ++r) {
    const std::byte* at = row;
    if (block.runs != nullptr) {
      for_each_stretch(block, [&](size_t from, size_t to, bool kept) {
        if (!kept) {
          nonzero += W::count(row + (from - block.begin) * W::kWidth, to - from, value_bits);
        }
      });
    } else if (block.bits != nullptr) {
      const auto count = [&](uint64_t word, size_t n) {
        nonzero += W::count_dropped(at, word, n, value_bits);
        at += n * W::kWidth;
      };
      for_each_word(
          block.bits, block.begin, block.end, [&](const uint64_t* word) { count(*word, 64); },
          count);
    }
    if (r + 1 < block.rows) {
      nonzero += W::count(row + columns * W::kWidth, block.stride - columns, value_bits);
    }
    row += block.stride * W::kWidth;
  }
  return nonzero;
}

}  // namespace
}  // namespace prunex::host

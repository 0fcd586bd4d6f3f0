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

template <class W, bool kStream>
inline void put_copy(std::byte* dst, const std::byte* src, size_t bytes) {
  if constexpr (kStream) {
    W::copy_stream(dst, src, bytes);
  } else {
    W::copy(dst, src, bytes);
  }
}
template <class W, bool kStream>
inline void put_zero(std::byte* dst, size_t bytes) {
  if constexpr (kStream) {
    W::zero_stream(dst, bytes);
  } else {
    W::zero(dst, bytes);
  }
}

// A bitmap row past the caches: the columns up to the begin of a line and the last ones go the
// ordinary way, so that lines are written whole.
template <class W>
inline const std::byte* stream_bits(const RowBlock& block, const std::byte* packed,
                                    const std::byte* packed_end, std::byte* row) {
  size_t column = block.begin;
  const auto part = [&](size_t n) {
    packed = W::expand_part(packed, packed_end, bits_at(block.bits, column, n), n, row);
    row += n * W::kWidth;
    column += n;
  };
  const size_t to_line = (0 - reinterpret_cast<uintptr_t>(row)) % 64;
  if (to_line % W::kWidth == 0 && block.end - column >= 128) {
    if (to_line > 0) {
      part(to_line / W::kWidth);
    }
    for (; block.end - column >= 64; column += 64) {
      packed = W::expand_stream(packed, packed_end, bits_at(block.bits, column, 64), row);
      row += 64 * W::kWidth;
    }
  }
  while (column < block.end) {
    part(lesser(64, block.end - column));
  }
  return packed;
}

template <class W>
inline const std::byte* unpack_bits(const RowBlock& block, const std::byte* packed,
                                    const std::byte* packed_end, std::byte* row) {
  for_each_word(
      block.bits, block.begin, block.end,
      [&](const uint64_t* word) {
        packed = W::expand(packed, packed_end, word, row);
        row += 64 * W::kWidth;
      },
      [&](uint64_t word, size_t n) {
        packed = W::expand_part(packed, packed_end, word, n, row);
        row += n * W::kWidth;
      });
  return packed;
}

template <class W, bool kStream>
inline const std::byte* unpack_row(const RowBlock& block, const std::byte* packed,
                                   const std::byte* packed_end, std::byte* row) {
  if (block.runs == nullptr && block.bits != nullptr) {
    if constexpr (kStream) {
      return stream_bits<W>(block, packed, packed_end, row);
    } else {
      return unpack_bits<W>(block, packed, packed_end, row);
    }
  }
  const auto stretch = [&](size_t from, size_t to, bool kept) {
    std::byte* dst = row + (from - block.begin) * W::kWidth;
    const size_t bytes = (to - from) * W::kWidth;
    if (kept) {
      put_copy<W, kStream>(dst, packed, bytes);
      packed += bytes;
    } else {
      put_zero<W, kStream>(dst, bytes);
    }
  };
  if (block.runs != nullptr) {
    for_each_stretch(block, stretch);
  } else {
    stretch(block.begin, block.end, true);
  }
  return packed;
}

template <class W, bool kStream>
void unpack_rows(const RowBlock& block, const void* packed, const void* packed_end, void* dst) {
  const size_t columns = block.end - block.begin;
  const size_t gap = (block.stride - columns) * W::kWidth;
  const auto* from = static_cast<const std::byte*>(packed);
  auto* row = static_cast<std::byte*>(dst);
  for (size_t r = 0; r < block.rows; ++r) {
    from = unpack_row<W, kStream>(block, from, static_cast<const std::byte*>(packed_end), row);
    if (r + 1 < block.rows) {
      put_zero<W, kStream>(row + columns * W::kWidth, gap);
    }
    row += block.stride * W::kWidth;
  }
}

template <class W>
uint64_t count_nonzero(const void* src, size_t count, uint64_t value_bits) {
  return W::count(static_cast<const std::byte*>(src), count, value_bits);
}

// A table's row functions from the policies of the four element sizes.
template <class W1, class W2, class W4, class W8>
constexpr void fill_rows(Table& t) {
  t.pack_rows[0] = pack_rows<W1>;
  t.pack_rows[1] = pack_rows<W2>;
  t.pack_rows[2] = pack_rows<W4>;
  t.pack_rows[3] = pack_rows<W8>;
  t.audit_rows[0] = audit_rows<W1>;
  t.audit_rows[1] = audit_rows<W2>;
  t.audit_rows[2] = audit_rows<W4>;
  t.audit_rows[3] = audit_rows<W8>;
  t.unpack_rows[0] = unpack_rows<W1, false>;
  t.unpack_rows[1] = unpack_rows<W2, false>;
  t.unpack_rows[2] = unpack_rows<W4, false>;
  t.unpack_rows[3] = unpack_rows<W8, false>;
  t.count_nonzero[0] = count_nonzero<W1>;
  t.count_nonzero[1] = count_nonzero<W2>;
  t.count_nonzero[2] = count_nonzero<W4>;
  t.count_nonzero[3] = count_nonzero<W8>;
}

template <class W>
void stream_copy(void* dst, const void* src, size_t bytes) {
  W::copy_stream(static_cast<std::byte*>(dst), static_cast<const std::byte*>(src), bytes);
}
template <class W>
void stream_zero(void* dst, size_t bytes) {
  W::zero_stream(static_cast<std::byte*>(dst), bytes);
}

// The same for writing past the caches.
template <class W1, class W2, class W4, class W8>
constexpr void fill_streams(Table& t) {
  t.stream_rows[0] = unpack_rows<W1, true>;
  t.stream_rows[1] = unpack_rows<W2, true>;
  t.stream_rows[2] = unpack_rows<W4, true>;
  t.stream_rows[3] = unpack_rows<W8, true>;
  t.stream_copy = stream_copy<W4>;
  t.stream_zero = stream_zero<W4>;
}

}  // namespace
}  // namespace prunex::host

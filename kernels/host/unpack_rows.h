// SPDX-License-Identifier: Apache-2.0
// The row functions that spread packed elements, and the table's entries. See rows.h.
#pragma once
#include "kernels/host/rows.h"

namespace prunex::host {
namespace {

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

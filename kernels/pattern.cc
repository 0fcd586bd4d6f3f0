// SPDX-License-Identifier: Apache-2.0
#include "kernels/pattern.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace prunex {
namespace {

// The low `count` bits, 1 <= count <= 64.
constexpr uint64_t low_bits(uint64_t count) { return ~uint64_t{0} >> (64 - count); }

// Sets the bits of `value`, of which only the low `count` may be set, from bit `at` on.
void or_bits(uint64_t* words, uint64_t at, uint64_t value, uint64_t count) {
  const uint64_t shift = at % 64;
  words[at / 64] |= value << shift;
  if (shift + count > 64) {
    words[at / 64 + 1] |= value >> (64 - shift);
  }
}

// Up to 64 bits from bit `from` on; reads no word that holds none of them.
uint64_t read_bits(const uint64_t* words, uint64_t from, uint64_t count) {
  const uint64_t shift = from % 64;
  uint64_t value = words[from / 64] >> shift;
  if (shift + count > 64) {
    value |= words[from / 64 + 1] << (64 - shift);
  }
  return value & low_bits(count);
}

// One bit per byte that is not zero.
uint64_t nonzero_bytes(const uint8_t* cells) {
  uint64_t v;
  std::memcpy(&v, cells, sizeof v);
  constexpr uint64_t kLow7 = 0x7f7f7f7f7f7f7f7f;
  v = (((v & kLow7) + kLow7) | v) & ~kLow7;
  // The product gathers bit 7 of byte i at bit 56 + i (little-endian).
  return ((v >> 7) * 0x0102040810204080) >> 56;
}

uint64_t select_in_word(uint64_t word, uint64_t k) {
  for (; k > 0; --k) {
    word &= word - 1;
  }
  return static_cast<uint64_t>(std::countr_zero(word));
}

}  // namespace

void fill_bits(uint64_t* words, uint64_t at, uint64_t count) {
  if (count == 0) {
    return;
  }
  const uint64_t first = at / 64;
  const uint64_t last = (at + count - 1) / 64;
  const uint64_t head = ~uint64_t{0} << (at % 64);
  const uint64_t tail = low_bits((at + count - 1) % 64 + 1);
  if (first == last) {
    words[first] |= head & tail;
    return;
  }
  words[first] |= head;
  std::fill(words + first + 1, words + last, ~uint64_t{0});
  words[last] |= tail;
}

void copy_bits(uint64_t* words, uint64_t at, const uint64_t* source, uint64_t from,
               uint64_t count) {
  while (count > 0) {
    const uint64_t n = std::min<uint64_t>(count, 64);
    or_bits(words, at, read_bits(source, from, n), n);
    at += n;
    from += n;
    count -= n;
  }
}

void gather_bits(uint64_t* words, uint64_t at, const uint8_t* cells, uint64_t stride,
                 uint64_t count) {
  uint64_t i = 0;
  if (stride == 1) {
    for (; i + 64 <= count; i += 64) {
      uint64_t value = 0;
      for (uint64_t byte = 0; byte < 8; ++byte) {
        value |= nonzero_bytes(cells + i + 8 * byte) << (8 * byte);
      }
      or_bits(words, at + i, value, 64);
    }
    for (; i + 8 <= count; i += 8) {
      or_bits(words, at + i, nonzero_bytes(cells + i), 8);
    }
  }
  for (; i < count; ++i) {
    words[(at + i) / 64] |= uint64_t{cells[i * stride] != 0} << ((at + i) % 64);
  }
}

uint64_t count_bits(std::span<const uint64_t> words) {
  uint64_t n = 0;
  for (const uint64_t word : words) {
    n += static_cast<uint64_t>(std::popcount(word));
  }
  return n;
}

uint64_t count_runs(std::span<const uint64_t> words) {
  uint64_t n = 0;
  uint64_t before = 0;  // the bit below the word's lowest
  for (const uint64_t word : words) {
    n += static_cast<uint64_t>(std::popcount(word & ~((word << 1) | before)));
    before = word >> 63;
  }
  return n;
}

uint64_t next_bit(const uint64_t* words, uint64_t from, uint64_t end, bool set) {
  if (from >= end) {
    return end;
  }
  const uint64_t flip = set ? 0 : ~uint64_t{0};
  uint64_t w = from / 64;
  uint64_t word = (words[w] ^ flip) & (~uint64_t{0} << (from % 64));
  const uint64_t num_words = words_for(end);
  while (word == 0) {
    if (++w == num_words) {
      return end;
    }
    word = words[w] ^ flip;
  }
  return std::min(end, w * 64 + static_cast<uint64_t>(std::countr_zero(word)));
}

Pattern make_pattern(std::vector<uint64_t> bits, uint64_t columns) {
  Pattern pattern;
  pattern.columns = columns;
  pattern.bits = std::move(bits);
  pattern.rank.resize(pattern.bits.size());
  for (size_t w = 0; w < pattern.bits.size(); ++w) {
    pattern.rank[w] = pattern.kept;
    pattern.kept += static_cast<uint64_t>(std::popcount(pattern.bits[w]));
  }
  const uint64_t runs = count_runs(pattern.bits);
  pattern.wide = runs > 0 && pattern.kept / runs >= kWideRun;
  if (pattern.wide) {
    pattern.runs.reserve(runs);
    for_each_run(pattern.bits.data(), columns, [&](uint64_t begin, uint64_t count) {
      pattern.runs.push_back({begin, count});
    });
  }
  return pattern;
}

uint64_t select_column(const Pattern& pattern, uint64_t k) {
  // The last word with rank <= k; words without set bits before it have a smaller or equal rank.
  const auto above = std::upper_bound(pattern.rank.begin(), pattern.rank.end(), k);
  const auto w = static_cast<uint64_t>(above - pattern.rank.begin()) - 1;
  return w * 64 + select_in_word(pattern.bits[w], k - pattern.rank[w]);
}

uint64_t select_kept(const CompiledMask& mask, uint64_t k) {
  const auto above =
      std::upper_bound(mask.panels.begin(), mask.panels.end(), k,
                       [](uint64_t v, const Panel& panel) { return v < panel.kept_before; });
  const Panel& panel = *(above - 1);
  k -= panel.kept_before;
  if (panel.pattern < 0) {
    return panel.offset + k / panel.columns * panel.row_stride + k % panel.columns;
  }
  const Pattern& pattern = mask.patterns[static_cast<size_t>(panel.pattern)];
  return panel.offset + k / pattern.kept * panel.row_stride +
         select_column(pattern, k % pattern.kept);
}

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
#include "kernels/mask_hash.h"

#include <array>
#include <cstddef>

namespace prunex {
namespace {

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr uint64_t kBase = 0x78059a0b8e183fa;  // B: random, checked to have order kPrime - 1

constexpr uint64_t reduce(uint64_t v) {
  v = (v & kPrime) + (v >> 61);
  return v >= kPrime ? v - kPrime : v;
}

constexpr uint64_t mul(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return reduce((static_cast<uint64_t>(product) & kPrime) + static_cast<uint64_t>(product >> 61));
}

constexpr uint64_t sub(uint64_t a, uint64_t b) { return a >= b ? a - b : a + kPrime - b; }

constexpr uint64_t power(uint64_t base, uint64_t exponent) {
  uint64_t out = 1;
  for (; exponent != 0; exponent >>= 1, base = mul(base, base)) {
    if ((exponent & 1) != 0) {
      out = mul(out, base);
    }
  }
  return out;
}

using ByteTable = std::array<std::array<uint64_t, 256>, 8>;

// kPower[j][k] = B^(k * 256^j): a power of B is at most one product per byte of the exponent.
constexpr ByteTable make_power_table() {
  ByteTable table{};
  uint64_t step = kBase;
  for (auto& row : table) {
    row[0] = 1;
    for (size_t k = 1; k < 256; ++k) {
      row[k] = mul(row[k - 1], step);
    }
    step = mul(row[255], step);
  }
  return table;
}

// kBits[j][v] = the sum of B^(8 j + i) over the set bits i of v.
constexpr ByteTable make_bit_table() {
  ByteTable table{};
  uint64_t first = 1;
  for (auto& row : table) {
    uint64_t term = first;
    for (size_t bit = 0; bit < 8; ++bit) {
      for (size_t v = 0; v < (size_t{1} << bit); ++v) {
        row[v | (size_t{1} << bit)] = reduce(row[v] + term);
      }
      term = mul(term, kBase);
    }
    first = term;
  }
  return table;
}

constinit const ByteTable kPower = make_power_table();
constinit const ByteTable kBits = make_bit_table();
constexpr uint64_t kWordStep = power(kBase, 64);
constexpr uint64_t kInverseOfBaseMinusOne = power(kBase - 1, kPrime - 2);
static_assert(mul(kBase - 1, kInverseOfBaseMinusOne) == 1);

}  // namespace

uint64_t hash_mul(uint64_t a, uint64_t b) { return mul(a, b); }

uint64_t hash_add(uint64_t a, uint64_t b) { return reduce(a + b); }

uint64_t hash_position(uint64_t position) {
  uint64_t out = 1;
  for (size_t byte = 0; position != 0; ++byte, position >>= 8) {
    out = mul(out, kPower[byte][position & 255]);
  }
  return out;
}

uint64_t hash_run(uint64_t begin, uint64_t count) {
  const uint64_t difference = sub(hash_position(begin + count), hash_position(begin));
  return mul(difference, kInverseOfBaseMinusOne);
}

uint64_t hash_bits(std::span<const uint64_t> words) {
  uint64_t out = 0;
  for (size_t w = words.size(); w-- > 0;) {
    // Eight terms below 2^61 fit 64 bits without a reduction in between.
    uint64_t sum = 0;
    for (size_t byte = 0; byte < 8; ++byte) {
      sum += kBits[byte][(words[w] >> (8 * byte)) & 255];
    }
    out = reduce(mul(out, kWordStep) + reduce(sum));
  }
  return out;
}

uint64_t hash_rows(uint64_t set, uint64_t offset, uint64_t rows, uint64_t stride) {
  // 1 + q + ... + q^(rows - 1) by doubling, from the top bit of `rows` down.
  uint64_t series = rows == 0 ? 0 : 1;
  if (rows > 1) {
    const uint64_t q = hash_position(stride);
    uint64_t next = q;  // q^(number of terms so far)
    for (int bit = 62 - __builtin_clzll(rows); bit >= 0; --bit) {
      series = mul(series, reduce(1 + next));
      next = mul(next, next);
      if (((rows >> bit) & 1) != 0) {
        series = reduce(series + next);
        next = mul(next, q);
      }
    }
  }
  return mul(mul(hash_position(offset), set), series);
}

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
// The bit and hash primitives against one bit at a time.
#include <gtest/gtest.h>

#include "kernels/mask_hash.h"
#include "kernels/pattern.h"
#include "tests/kernels/mask_reference.h"

namespace prunex::testing {
namespace {

using Bits = std::vector<uint8_t>;

std::vector<uint64_t> to_words(const Bits& bits) {
  std::vector<uint64_t> words(words_for(bits.size()));
  for (size_t i = 0; i < bits.size(); ++i) {
    words[i / 64] |= uint64_t{bits[i] != 0} << (i % 64);
  }
  return words;
}

// B^position, one factor at a time.
uint64_t slow_power(uint64_t position) {
  uint64_t out = 1;
  for (uint64_t i = 0; i < position; ++i) {
    out = hash_mul(out, hash_position(1));
  }
  return out;
}

uint64_t slow_hash(const Bits& bits) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bits.size(); ++i) {
    sum = bits[i] != 0 ? hash_add(sum, hash_position(i)) : sum;
  }
  return sum;
}

TEST(MaskBits, fill_copy_and_gather) {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    const uint64_t n = below(random, 400);
    const uint64_t at = below(random, 130);
    const uint64_t from = below(random, 130);
    const uint64_t stride = 1 + below(random, 3);
    const Bits source = random_keep(random, from + n);
    const Bits cells = random_keep(random, n * stride + 1);
    Bits filled(at + n + 70), copied(at + n + 70), gathered(at + n + 70);
    for (uint64_t i = 0; i < n; ++i) {
      filled[at + i] = 1;
      copied[at + i] = source[from + i];
      gathered[at + i] = cells[i * stride];
    }
    std::vector<uint64_t> words(words_for(filled.size()));
    fill_bits(words.data(), at, n);
    EXPECT_EQ(words, to_words(filled));
    words.assign(words.size(), 0);
    copy_bits(words.data(), at, to_words(source).data(), from, n);
    EXPECT_EQ(words, to_words(copied));
    words.assign(words.size(), 0);
    gather_bits(words.data(), at, cells.data(), stride, n);
    EXPECT_EQ(words, to_words(gathered));
  }
}

TEST(MaskBits, counts_and_runs) {
  Random random(2);
  for (int round = 0; round < 1000; ++round) {
    const Bits bits = random_keep(random, below(random, 500));
    const std::vector<uint64_t> words = to_words(bits);
    Bits from_runs(bits.size());
    uint64_t runs = 0, kept = 0, end = 0;
    for_each_run(words.data(), bits.size(), [&](uint64_t begin, uint64_t count) {
      EXPECT_TRUE(runs == 0 || begin > end) << "runs are maximal";
      std::fill_n(from_runs.begin() + static_cast<ptrdiff_t>(begin), count, uint8_t{1});
      ++runs;
      kept += count;
      end = begin + count;
    });
    EXPECT_EQ(to_words(from_runs), words);
    EXPECT_EQ(count_runs(words), runs);
    EXPECT_EQ(count_bits(words), kept);
  }
}

TEST(MaskHash, powers) {
  for (const uint64_t position :
       std::initializer_list<uint64_t>{0, 1, 2, 255, 256, 257, 65535, 65536, 100'000}) {
    EXPECT_EQ(hash_position(position), slow_power(position)) << position;
  }
  Random random(3);
  for (int round = 0; round < 1000; ++round) {
    const uint64_t a = random() >> 2, b = random() >> 2;
    EXPECT_EQ(hash_position(a + b), hash_mul(hash_position(a), hash_position(b)));
  }
}

TEST(MaskHash, runs_bits_and_rows_are_sums_of_positions) {
  Random random(4);
  for (int round = 0; round < 1000; ++round) {
    const Bits bits = random_keep(random, 1 + below(random, 300));
    EXPECT_EQ(hash_bits(to_words(bits)), slow_hash(bits));

    const uint64_t begin = below(random, 100), count = below(random, 100);
    Bits run(begin, 0);
    run.resize(begin + count, 1);
    EXPECT_EQ(hash_run(begin, count), slow_hash(run));

    const uint64_t rows = below(random, 20), offset = below(random, 50);
    const uint64_t stride = bits.size() + below(random, 5);
    Bits all(offset + rows * stride);
    for (uint64_t row = 0; row < rows; ++row) {
      std::ranges::copy(bits, all.begin() + static_cast<ptrdiff_t>(offset + row * stride));
    }
    EXPECT_EQ(hash_rows(slow_hash(bits), offset, rows, stride), slow_hash(all));
  }
}

}  // namespace
}  // namespace prunex::testing

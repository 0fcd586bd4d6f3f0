// SPDX-License-Identifier: Apache-2.0
// Internal: a mask as rows of equal length, each naming a shared pattern, and its compiled form.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/mask.h"

namespace prunex {

// What a mask keeps in numbers: counts, and the digest of the kept positions, whatever the panels
// that hold them.
class MaskSums {
 public:
  void add(const Pattern& pattern);       // all of them first, in the order of their numbers
  void add(Panel& panel);                 // ascending; sets its kept_before
  void finish(CompiledMask& mask) const;  // sets kept and digest from count and what was added

 private:
  struct Set {
    uint64_t kept, hash;
  };
  std::vector<Set> sets_;
  uint64_t kept_ = 0, positions_ = 0;
};

class MaskRows {
 public:
  static constexpr int64_t kAll = -1;
  static constexpr int64_t kNone = -2;

  struct Run {
    uint64_t row = 0, rows = 0;
    int64_t pattern = kAll;  // never kNone
  };

  MaskRows(uint64_t rows, uint64_t columns) : rows_(rows), columns_(columns) {}

  // A pattern is a row's bits, (columns + 63) / 64 words with a zero tail. Equal bits get one
  // number.
  [[nodiscard]] int64_t intern(std::vector<uint64_t> bits);

  // Rows in ascending order; rows never added are dropped.
  void add(uint64_t row, uint64_t rows, int64_t pattern);

  // The mask in whichever form takes the least memory (which is also the quickest to walk): panels
  // of rows, one row with a bitmap of all elements, or one panel per run of kept elements.
  [[nodiscard]] CompiledMask compile() &&;

 private:
  [[nodiscard]] uint64_t count() const { return rows_ * columns_; }
  void emit_rows(CompiledMask& mask);
  void emit_bitmap(CompiledMask& mask);
  void emit_runs(CompiledMask& mask) const;

  uint64_t rows_, columns_;
  std::vector<std::vector<uint64_t>> patterns_;
  std::unordered_multimap<uint64_t, int64_t> by_digest_;
  std::vector<Run> runs_;
};

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
#include "kernels/mask_rows.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/mask_hash.h"
#include "kernels/mask_order.h"
#include "kernels/pattern.h"
#include "plugin/base/digest.h"

namespace prunex {
namespace {

// Narrow rows that repeat are joined until they are about this long.
constexpr uint64_t kJoinedColumns = 2 * kNarrowColumns;

// Bytes of a pattern's bitmap and ranks.
double pattern_bytes(uint64_t columns) {
  return double{sizeof(Pattern)} + double{2 * sizeof(uint64_t)} * double(words_for(columns));
}

void add_full_run(CompiledMask& mask, uint64_t begin, uint64_t count) {
  if (!mask.panels.empty()) {
    Panel& last = mask.panels.back();
    if (last.pattern < 0 && last.offset + last.columns == begin) {
      last.columns += count;
      last.row_stride += count;
      return;
    }
  }
  mask.panels.push_back(
      {.offset = begin, .rows = 1, .row_stride = count, .columns = count, .pattern = -1});
}

void add_rows(CompiledMask& mask, uint64_t offset, uint64_t rows, int32_t pattern) {
  const uint64_t columns = mask.patterns[static_cast<size_t>(pattern)].columns;
  mask.panels.push_back({.offset = offset,
                         .rows = rows,
                         .row_stride = columns,
                         .columns = columns,
                         .pattern = pattern});
}

}  // namespace

void MaskSums::add(const Pattern& pattern) {
  sets_.push_back({pattern.kept, hash_bits(pattern.bits)});
}

void MaskSums::add(Panel& panel) {
  panel.kept_before = kept_;
  uint64_t hash = 0;
  if (panel.pattern >= 0) {
    const Set& set = sets_[static_cast<size_t>(panel.pattern)];
    kept_ += panel.rows * set.kept;
    hash = hash_rows(set.hash, panel.offset, panel.rows, panel.row_stride);
  } else if (panel.rows == 1) {
    kept_ += panel.columns;
    hash = hash_run(panel.offset, panel.columns);
  } else {
    kept_ += panel.rows * panel.columns;
    hash = hash_rows(hash_run(0, panel.columns), panel.offset, panel.rows, panel.row_stride);
  }
  positions_ = hash_add(positions_, hash);
}

void MaskSums::finish(CompiledMask& mask) const {
  mask.kept = kept_;
  mask.digest = Digest().add(mask.count).add(kept_).add(positions_).value();
}

int64_t MaskRows::intern(std::vector<uint64_t> bits) {
  const uint64_t kept = count_bits(bits);
  if (kept == 0) {
    return kNone;
  }
  if (kept == columns_) {
    return kAll;
  }
  const uint64_t digest = digest_bytes(bits.data(), bits.size() * sizeof bits[0]);
  const auto [first, last] = by_digest_.equal_range(digest);
  for (auto it = first; it != last; ++it) {
    if (patterns_[static_cast<size_t>(it->second)] == bits) {
      return it->second;
    }
  }
  const auto number = static_cast<int64_t>(patterns_.size());
  patterns_.push_back(std::move(bits));
  by_digest_.emplace(digest, number);
  return number;
}

void MaskRows::add(uint64_t row, uint64_t rows, int64_t pattern) {
  if (pattern == kNone || rows == 0) {
    return;
  }
  if (!runs_.empty()) {
    Run& last = runs_.back();
    if (last.pattern == pattern && last.row + last.rows == row) {
      last.rows += rows;
      return;
    }
  }
  runs_.push_back({row, rows, pattern});
}

CompiledMask MaskRows::compile() && {
  CompiledMask mask;
  mask.count = count();

  std::vector<double> pattern_runs(patterns_.size());
  std::ranges::transform(patterns_, pattern_runs.begin(),
                         [](const auto& bits) { return double(count_runs(bits)); });
  double kept_runs = 0;
  for (const Run& run : runs_) {
    kept_runs +=
        run.pattern == kAll ? 1 : double(run.rows) * pattern_runs[static_cast<size_t>(run.pattern)];
  }
  const double panel_bytes = sizeof(Panel);
  const double rows_cost =
      panel_bytes * double(runs_.size()) + double(patterns_.size()) * pattern_bytes(columns_);
  const double bitmap_cost = panel_bytes + pattern_bytes(mask.count);
  const double runs_cost = panel_bytes * kept_runs;

  // A panel names its pattern in 31 bits; more patterns than half of that cost more as rows anyway.
  const bool numbered = patterns_.size() <= std::numeric_limits<int32_t>::max() / 2;
  if (numbered && rows_cost <= bitmap_cost && rows_cost <= runs_cost) {
    emit_rows(mask);
  } else if (runs_cost <= bitmap_cost) {
    emit_runs(mask);
  } else {
    emit_bitmap(mask);
  }
  MaskSums sums;
  std::ranges::for_each(mask.patterns, [&](const Pattern& pattern) { sums.add(pattern); });
  std::ranges::for_each(mask.panels, [&](Panel& panel) { sums.add(panel); });
  sums.finish(mask);
  return mask;
}

void MaskRows::emit_rows(CompiledMask& mask) {
  // Where a narrow pattern fills many rows, `joined` of them make one row.
  const uint64_t joined =
      columns_ < kNarrowColumns ? (kJoinedColumns + columns_ - 1) / columns_ : 1;
  std::vector<int32_t> single(patterns_.size(), -1);
  std::vector<int32_t> wide(patterns_.size(), -1);
  const auto number = [&](std::vector<int32_t>& numbers, size_t p, uint64_t rows) {
    if (numbers[p] < 0) {
      std::vector<uint64_t> bits(words_for(rows * columns_));
      for (uint64_t row = 0; row < rows; ++row) {
        copy_bits(bits.data(), row * columns_, patterns_[p].data(), 0, columns_);
      }
      numbers[p] = static_cast<int32_t>(mask.patterns.size());
      mask.patterns.push_back(make_pattern(std::move(bits), rows * columns_));
    }
    return numbers[p];
  };
  mask.panels.reserve(runs_.size());
  for (const Run& run : runs_) {
    const uint64_t offset = run.row * columns_;
    if (run.pattern == kAll) {
      add_full_run(mask, offset, run.rows * columns_);
      continue;
    }
    const auto p = static_cast<size_t>(run.pattern);
    const uint64_t many = joined > 1 ? run.rows / joined : 0;
    if (many > 0) {
      add_rows(mask, offset, many, number(wide, p, joined));
    }
    const uint64_t done = many * joined;
    if (done < run.rows) {
      add_rows(mask, offset + done * columns_, run.rows - done, number(single, p, 1));
    }
  }
}

void MaskRows::emit_bitmap(CompiledMask& mask) {
  std::vector<uint64_t> bits(words_for(mask.count));
  for (const Run& run : runs_) {
    if (run.pattern == kAll) {
      fill_bits(bits.data(), run.row * columns_, run.rows * columns_);
      continue;
    }
    const auto& pattern = patterns_[static_cast<size_t>(run.pattern)];
    for (uint64_t row = run.row; row < run.row + run.rows; ++row) {
      copy_bits(bits.data(), row * columns_, pattern.data(), 0, columns_);
    }
  }
  patterns_.clear();
  mask.patterns.push_back(make_pattern(std::move(bits), mask.count));
  add_rows(mask, 0, 1, 0);
}

void MaskRows::emit_runs(CompiledMask& mask) const {
  for (const Run& run : runs_) {
    if (run.pattern == kAll) {
      add_full_run(mask, run.row * columns_, run.rows * columns_);
      continue;
    }
    const auto& pattern = patterns_[static_cast<size_t>(run.pattern)];
    for (uint64_t row = run.row; row < run.row + run.rows; ++row) {
      for_each_run(pattern.data(), columns_, [&](uint64_t begin, uint64_t count) {
        add_full_run(mask, row * columns_ + begin, count);
      });
    }
  }
}

}  // namespace prunex

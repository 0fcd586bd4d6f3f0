// SPDX-License-Identifier: Apache-2.0
// One walk over the elements of a slice, in ascending order, for pack, audit, unpack and reduce.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/host/table.h"
#include "kernels/layout.h"
#include "kernels/pack.h"
#include "plugin/base/dtype.h"

namespace prunex::host {

[[nodiscard]] inline unsigned log2_size(DType type) {
  return static_cast<unsigned>(std::countr_zero(size_of(type)));
}

// The bits that make an element non-zero: for floats all but the sign, for integers all.
[[nodiscard]] inline uint64_t value_bits_of(DType type) {
  switch (type) {
    case DType::f64:
      return 0x7fffffffffffffff;
    case DType::f32:
      return 0x7fffffff7fffffff;
    case DType::f16:
    case DType::bf16:
      return 0x7fff7fff7fff7fff;
    default:
      return ~uint64_t{0};
  }
}

// Columns [begin, end) of `rows` rows. `first`: the buffer's element at column begin of the first
// row.
struct Rows {
  const Pattern* pattern = nullptr;  // null: every column is kept
  uint64_t first = 0;
  uint64_t begin = 0, end = 0;
  uint64_t rows = 0;
  uint64_t stride = 0;
};

// Set bits before `column`.
[[nodiscard]] inline uint64_t rank_at(const Pattern& pattern, uint64_t column) {
  const uint64_t word = column / 64;
  if (word >= pattern.bits.size()) {
    return pattern.kept;
  }
  const uint64_t below = (uint64_t{1} << (column % 64)) - 1;
  return pattern.rank[word] + static_cast<uint64_t>(std::popcount(pattern.bits[word] & below));
}

[[nodiscard]] inline uint64_t kept_per_row(const Rows& rows) {
  if (rows.pattern == nullptr) {
    return rows.end - rows.begin;
  }
  if (rows.begin == 0 && rows.end == rows.pattern->columns) {
    return rows.pattern->kept;
  }
  return rank_at(*rows.pattern, rows.end) - rank_at(*rows.pattern, rows.begin);
}

// least_run: the mean length in bytes from which on kept runs are copied one by one.
[[nodiscard]] inline RowBlock block_of(const Rows& rows, unsigned shift, uint64_t least_run) {
  RowBlock block;
  block.begin = rows.begin;
  block.end = rows.end;
  block.rows = rows.rows;
  block.stride = rows.stride;
  if (rows.pattern == nullptr) {
    return block;
  }
  const Pattern& p = *rows.pattern;
  block.bits = p.bits.data();
  if (p.wide && (p.kept << shift) >= least_run * p.runs.size()) {
    const auto from = std::partition_point(p.runs.begin(), p.runs.end(), [&](const KeptRange& run) {
      return run.begin + run.count <= rows.begin;
    });
    const auto to = std::partition_point(
        from, p.runs.end(), [&](const KeptRange& run) { return run.begin < rows.end; });
    block.runs = p.runs.data() + (from - p.runs.begin());
    block.num_runs = static_cast<size_t>(to - from);
  }
  return block;
}

// Counts dropped non-zeros by the contract of the segment that they lie in.
class Tally {
 public:
  void enter(const Segment& segment) { projected_ = segment.projected; }
  void add(uint64_t nonzero) { (projected_ ? counted_.projected : counted_.lossless) += nonzero; }
  [[nodiscard]] const AuditCount& counted() const { return counted_; }

 private:
  AuditCount counted_;
  bool projected_ = false;
};

inline void add_to(AuditCount* sum, const AuditCount& count) {
  if (sum != nullptr) {
    sum->lossless += count.lossless;
    sum->projected += count.projected;
  }
}

// The visitor, told enter(segment) before each masked one if it cares, gets gap(begin, end): dropped elements; run(begin, end): kept ones, both of the
// buffer; and rows(Rows), which stands for everything between its first and its last column.
template <class Visitor>
class Walk {
 public:
  Walk(const Layout& layout, Visitor& visitor) : layout_(layout), visitor_(visitor) {}

  void elements(uint64_t begin, uint64_t end) {
    const auto& segments = layout_.segments;
    auto segment = std::partition_point(segments.begin(), segments.end(), [&](const Segment& s) {
      return s.offset + s.count <= begin;
    });
    for (uint64_t at = begin; at < end && segment != segments.end(); ++segment) {
      const uint64_t stop = std::min(end, segment->offset + segment->count);
      if (stop <= at) {
        continue;  // an empty segment
      }
      if (segment->mask == nullptr) {
        visitor_.run(at, stop);
      } else {
        if constexpr (requires { visitor_.enter(*segment); }) {
          visitor_.enter(*segment);
        }
        masked(*segment->mask, segment->offset, at, stop);
      }
      at = stop;
    }
  }

 private:
  void gap(uint64_t begin, uint64_t end) {
    if (begin < end) {
      visitor_.gap(begin, end);
    }
  }

  // Elements [at, stop) of the buffer, all in the segment at `base`.
  void masked(const CompiledMask& mask, uint64_t base, uint64_t at, uint64_t stop) {
    auto panel = std::partition_point(mask.panels.begin(), mask.panels.end(), [&](const Panel& p) {
      return base + p.offset + extent(p) <= at;
    });
    for (; panel != mask.panels.end() && at < stop; ++panel) {
      const uint64_t first = base + panel->offset;
      if (first >= stop) {
        break;
      }
      gap(at, first);
      at = panel_rows(mask, *panel, first, std::max(at, first), stop);
    }
    gap(at, stop);
  }

  static uint64_t extent(const Panel& p) {
    return p.rows == 0 ? 0 : (p.rows - 1) * p.row_stride + p.columns;
  }

  // Elements from `at` to the panel's last column, or to stop; answers where it came to.
  uint64_t panel_rows(const CompiledMask& mask, const Panel& panel, uint64_t first, uint64_t at,
                      uint64_t stop) {
    const uint64_t panel_end = first + extent(panel);
    stop = std::min(stop, panel_end);
    if (at >= stop) {
      return at;
    }
    const Pattern* pattern =
        panel.pattern < 0 ? nullptr : &mask.patterns[static_cast<size_t>(panel.pattern)];
    if (pattern == nullptr && (panel.rows == 1 || panel.row_stride == panel.columns)) {
      visitor_.run(at, stop);
      return stop;
    }
    Rows rows{pattern, at, 0, panel.columns, 0, std::max(panel.row_stride, panel.columns)};
    uint64_t row = (at - first) / rows.stride;
    const uint64_t column = at - first - row * rows.stride;
    if (column >= panel.columns) {  // between two rows
      ++row;
      at = skip_to(first + row * rows.stride, at, stop);
    } else if (column > 0) {
      at = part(rows, at, column, std::min(panel.columns, column + (stop - at)));
      if (at == stop) {
        return at;
      }
      ++row;
      at = skip_to(first + row * rows.stride, at, stop);
    }
    if (at == stop) {
      return at;
    }
    const uint64_t whole = stop == panel_end
                               ? panel.rows - row
                               : (stop - at + rows.stride - panel.columns) / rows.stride;
    if (whole > 0) {
      rows.first = at;
      rows.rows = whole;
      visitor_.rows(rows);
      row += whole;
      at += (whole - 1) * rows.stride + panel.columns;
      if (at == stop) {
        return at;
      }
      at = skip_to(first + row * rows.stride, at, stop);
    }
    return at == stop ? at : part(rows, at, 0, stop - at);
  }

  // The gap from `at` to the next row, or to stop when that comes first.
  uint64_t skip_to(uint64_t next, uint64_t at, uint64_t stop) {
    const uint64_t to = std::min(next, stop);
    gap(at, to);
    return to;
  }

  // Columns [begin, end) of the row whose column `begin` is element `at`.
  uint64_t part(Rows rows, uint64_t at, uint64_t begin, uint64_t end) {
    rows.first = at;
    rows.rows = 1;
    rows.begin = begin;
    rows.end = end;
    visitor_.rows(rows);
    return at + (end - begin);
  }

  const Layout& layout_;
  Visitor& visitor_;
};

}  // namespace prunex::host

// SPDX-License-Identifier: Apache-2.0
// One walk over the elements of a slice, in ascending order, for pack, audit, unpack and reduce.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/host/row_span.h"
#include "kernels/layout.h"
#include "kernels/pack.h"

namespace prunex::host {

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

// One tensor under its mask. The visitor gets gap(begin, end): dropped elements; run(begin, end):
// kept ones, both of the buffer; and rows(Rows), which stands for everything between its first and
// its last column.
template <class Visitor>
class MaskWalk {
 public:
  explicit MaskWalk(Visitor& visitor) : visitor_(visitor) {}

  // Elements [at, stop) of the buffer, all in the tensor that begins at element `base` of it.
  void elements(const CompiledMask& mask, uint64_t base, uint64_t at, uint64_t stop) {
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

 private:
  void gap(uint64_t begin, uint64_t end) {
    if (begin < end) {
      visitor_.gap(begin, end);
    }
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

  Visitor& visitor_;
};

// A layout. The visitor is told enter(segment) before each masked one if it cares.
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
        MaskWalk<Visitor>(visitor_).elements(*segment->mask, segment->offset, at, stop);
      }
      at = stop;
    }
  }

 private:
  const Layout& layout_;
  Visitor& visitor_;
};

}  // namespace prunex::host

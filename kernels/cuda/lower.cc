// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/lower.h"

#include <algorithm>
#include <unordered_map>

#include "kernels/cuda/lower_mixed.h"
#include "kernels/cuda/lower_words.h"
#include "kernels/pattern.h"

namespace prunex::cuda {
namespace {

uint64_t extent(const Panel& p) {
  return p.rows == 0 ? 0 : (p.rows - 1) * p.row_stride + p.columns;
}

// Panels of one pattern whose rows lie on one grid: kept filters between dropped ones.
struct RowGroup {
  const Panel* first;
  const Panel* last;  // behind the last
  const Pattern* pattern;
  uint64_t base;  // element of row 0, column 0
  uint64_t rows;  // of the grid, dropped ones among them
  uint64_t kept;  // packed position of the first row

  [[nodiscard]] uint64_t stride() const { return first->row_stride; }
  [[nodiscard]] uint64_t columns() const { return first->columns; }
  [[nodiscard]] uint64_t end() const { return base + (rows - 1) * stride() + columns(); }
  [[nodiscard]] uint64_t row_kept() const { return pattern != nullptr ? pattern->kept : columns(); }
  [[nodiscard]] bool all_rows() const { return last - first == 1; }
};

class Lowering {
 public:
  Lowering(uint32_t tile, Lowered& out) : tile_(tile), small_(std::max(tile / 4, 1u)), out_(out) {}

  void segment(const Segment& segment, uint64_t kept) {
    const uint64_t end = segment.offset + segment.count;
    if (segment.mask == nullptr) {
      run({.begin = segment.offset, .end = end, .kept = kept, .full = true});
      return;
    }
    if (segment.projected != projected_) {
      flush();  // a tile has one contract
    }
    projected_ = segment.projected;
    masked(*segment.mask, segment.offset, end, kept);
  }

  // Small pieces that wait for company become a tile.
  void flush() {
    if (waiting_.size() == 1 && waiting_.front().panel == nullptr) {
      const Piece& p = waiting_.front();
      emit(uniform_tile(p.begin, p.end, p.kept, p.full, projected_));
    } else if (!waiting_.empty()) {
      emit(mixed_tile(waiting_, projected_, out_.words));
    }
    waiting_.clear();
  }

 private:
  void masked(const CompiledMask& mask, uint64_t at, const uint64_t end, const uint64_t kept) {
    const uint64_t base = at;
    const Panel* const stop = mask.panels.data() + mask.panels.size();
    for (const Panel* p = mask.panels.data(); p != stop;) {
      const uint64_t first = base + p->offset;
      run({.begin = at, .end = first, .kept = kept + p->kept_before});
      if (p->pattern < 0 && (p->rows == 1 || p->row_stride == p->columns)) {
        at = first + extent(*p);
        run({.begin = first, .end = at, .kept = kept + p->kept_before, .full = true});
        ++p;
        continue;
      }
      const RowGroup group = group_from(mask, p, stop, first, kept + p->kept_before);
      rows(group, base, kept);
      at = group.end();
      p = group.last;
    }
    run({.begin = at, .end = end, .kept = kept + mask.kept});
  }

  [[nodiscard]] RowGroup group_from(const CompiledMask& mask, const Panel* p, const Panel* stop,
                                    uint64_t base, uint64_t kept) const {
    RowGroup group{p, p + 1, nullptr, base, p->rows, kept};
    if (p->pattern >= 0) {
      group.pattern = &mask.patterns[static_cast<size_t>(p->pattern)];
    }
    for (const Panel* q = p + 1; q != stop; ++q) {
      const uint64_t before = p->offset + (group.rows - 1) * p->row_stride + p->columns;
      if (q->pattern != p->pattern || q->row_stride != p->row_stride || q->columns != p->columns ||
          (q->offset - p->offset) % p->row_stride != 0 || q->offset - before >= tile_) {
        break;
      }
      group.rows = (q->offset - p->offset) / p->row_stride + q->rows;
      group.last = q + 1;
    }
    return group;
  }

  // All kept or all dropped: long ones are tiles, short ones wait for company.
  void run(const Piece& piece) {
    if (piece.begin >= piece.end) {
      return;
    }
    if (piece.end - piece.begin < small_) {
      wait(piece);
      return;
    }
    flush();
    for (uint64_t b = piece.begin; b < piece.end; b += tile_) {
      const uint64_t kept = piece.kept + (piece.full ? b - piece.begin : 0);
      emit(uniform_tile(b, std::min(b + tile_, piece.end), kept, piece.full, projected_));
    }
  }

  void rows(const RowGroup& group, uint64_t segment_base, uint64_t segment_kept) {
    if (group.end() - group.base >= small_) {
      flush();
      group.stride() > kMaxStride ? long_rows(group, segment_base)
                                  : short_rows(group, segment_base);
      return;
    }
    uint64_t at = group.base;
    for (const Panel* p = group.first; p != group.last; ++p) {
      const uint64_t first = segment_base + p->offset;
      const uint64_t kept = segment_kept + p->kept_before;
      if (at < first) {
        wait({.begin = at, .end = first, .kept = kept});
      }
      at = first + extent(*p);
      wait({first, at, kept, p, group.pattern, first, false});
    }
  }

  // Which rows of the grid are kept.
  static std::vector<uint64_t> row_bits(const RowGroup& group, uint64_t segment_base) {
    std::vector<uint64_t> bits(words_for(group.rows) + 1, 0);
    for (const Panel* p = group.first; p != group.last; ++p) {
      fill_bits(bits.data(), (segment_base + p->offset - group.base) / group.stride(), p->rows);
    }
    return bits;
  }

  void short_rows(const RowGroup& group, uint64_t segment_base) {
    const std::vector<uint64_t> bits = row_bits(group, segment_base);
    const uint64_t stride = group.stride();
    uint64_t kept = group.kept;
    uint64_t row = 0;  // kept: packed position of this row
    for (uint64_t at = group.base; at < group.end();) {
      const uint64_t to_row = (at - group.base) / stride;
      for (; row < to_row; ++row) {
        kept += (bits[row / 64] >> (row % 64) & 1) != 0 ? group.row_kept() : 0;
      }
      uint64_t end = std::min(at + tile_, group.end());
      if (!group.all_rows()) {
        end = std::min(end, group.base + (row + kMaskedRows) * stride);
      }
      Tile tile = uniform_tile(at, end, kept, false, projected_);
      tile.kind = TileKind::pattern;
      tile.first = static_cast<uint32_t>((at - group.base) % stride);
      set_stride(tile, static_cast<uint32_t>(stride));
      set_pattern(tile, group);
      if (!group.all_rows()) {
        tile.all_rows = 0;
        tile.rows = bits[row / 64] >> (row % 64);
        tile.rows |= row % 64 != 0 ? bits[row / 64 + 1] << (64 - row % 64) : 0;
        const uint64_t in_tile = (end - 1 - group.base) / stride - row + 1;
        tile.rows &= in_tile >= 64 ? ~uint64_t{0} : (uint64_t{1} << in_tile) - 1;
        tile.kind = tile.rows == 0 ? TileKind::dropped : tile.kind;
      }
      emit(tile);
      at = end;
    }
  }

  // Every tile is a part of one row, or of the dropped elements behind it.
  void long_rows(const RowGroup& group, uint64_t segment_base) {
    const std::vector<uint64_t> bits = row_bits(group, segment_base);
    uint64_t kept = group.kept;
    for (uint64_t row = 0; row < group.rows; ++row) {
      const uint64_t first = group.base + row * group.stride();
      const uint64_t end = std::min(first + group.stride(), group.end());
      const bool keeps = (bits[row / 64] >> (row % 64) & 1) != 0;
      const uint64_t pattern_end = keeps ? std::min(end, first + group.columns()) : first;
      for (uint64_t at = first; at < pattern_end; at += tile_) {
        emit(row_part(group, at - first, std::min(at + tile_, pattern_end) - at, first, kept));
      }
      kept += keeps ? group.row_kept() : 0;
      run({.begin = pattern_end, .end = end, .kept = kept});
      flush();
    }
  }

  Tile row_part(const RowGroup& group, uint64_t column, uint64_t n, uint64_t row, uint64_t kept) {
    if (group.pattern == nullptr) {
      return uniform_tile(row + column, row + column + n, kept + column, true, projected_);
    }
    Tile tile = uniform_tile(row + column, row + column + n, 0, false, projected_);
    tile.kind = TileKind::pattern;
    set_pattern(tile, group);
    const uint64_t w = column / 32;
    tile.word += static_cast<uint32_t>(w);
    tile.rank = out_.words[tile.word].rank;
    const uint64_t below = group.pattern->bits[w / 2] & (w % 2 != 0 ? low_bits(32) : 0);
    tile.kept = kept + group.pattern->rank[w / 2] + popcount(below);
    tile.first = static_cast<uint32_t>(column % 32);
    tile.columns = tile.first + tile.count;
    set_stride(tile, tile.columns);
    return tile;
  }

  void set_pattern(Tile& tile, const RowGroup& group) {
    tile.columns = static_cast<uint32_t>(group.columns());
    tile.row_kept = static_cast<uint32_t>(group.row_kept());
    if (group.pattern == nullptr) {
      return;
    }
    const auto [at, is_new] = word_of_.try_emplace(group.pattern, 0);
    if (is_new) {
      at->second = append_words(out_.words, group.pattern->bits, group.pattern->columns);
    }
    tile.word = at->second;
  }

  // Small pieces until they make a tile. No piece is as long as a tile.
  void wait(const Piece& piece) {
    if (!waiting_.empty() && piece.end - waiting_.front().begin > tile_) {
      flush();
    }
    waiting_.push_back(piece);
  }

  void emit(const Tile& tile) { out_.tiles.push_back(tile); }

  const uint64_t tile_, small_;
  Lowered& out_;
  bool projected_ = false;
  std::vector<Piece> waiting_;
  std::unordered_map<const Pattern*, uint32_t> word_of_;
};

}  // namespace

Lowered lower(const Layout& layout, uint32_t tile_elements) {
  Lowered out;
  out.count = layout.count;
  out.kept = layout.kept;
  Lowering lowering(std::clamp(tile_elements, 1u, kMaxTile), out);
  for (size_t s = 0; s < layout.segments.size(); ++s) {
    lowering.segment(layout.segments[s], layout.kept_before[s]);
  }
  lowering.flush();
  return out;
}

TileSpan tiles_of(const Lowered& plan, uint64_t begin, uint64_t end) {
  const auto first = std::ranges::partition_point(
      plan.tiles, [&](const Tile& tile) { return tile.elem + tile.count <= begin; });
  const auto last = std::partition_point(first, plan.tiles.end(),
                                         [&](const Tile& tile) { return tile.elem < end; });
  return {static_cast<size_t>(first - plan.tiles.begin()),
          static_cast<size_t>(last - plan.tiles.begin())};
}

}  // namespace prunex::cuda

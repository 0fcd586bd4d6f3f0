// SPDX-License-Identifier: Apache-2.0
// Masks given by cells: tiles of a grid, or single elements.
#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "kernels/mask_kinds.h"
#include "kernels/pattern.h"

namespace prunex {
namespace {

struct TileDim {
  uint64_t size = 0, tile = 0, tiles = 0;
  uint64_t cell_stride = 0;  // cells from one tile to the next along this dimension

  [[nodiscard]] uint64_t extent(uint64_t t) const { return std::min(tile, size - t * tile); }
};

class BlockRows {
 public:
  BlockRows(const MaskSpec& spec, const MemoryOrder& order)
      : cells_(spec.cells),
        ndim_(order.ndim),
        split_(tile(spec, order)),
        columns_(order.columns(split_)),
        rows_(order.count / columns_, columns_) {}

  MaskRows build() && {
    add_rows(0, 0, 0);
    return std::move(rows_);
  }

 private:
  // Fills dims_ and whole_; returns how many of them make the rows.
  size_t tile(const MaskSpec& spec, const MemoryOrder& order) {
    std::array<uint64_t, kMaxDims> cell_strides{};
    uint64_t stride = 1;
    for (auto d = static_cast<size_t>(spec.ndim); d-- > 0;) {
      const auto size = static_cast<uint64_t>(spec.sizes[d]);
      const auto block = static_cast<uint64_t>(spec.block[d]);
      cell_strides[d] = stride;
      stride *= block == 0 ? 1 : (size - 1) / block + 1;
    }
    for (size_t d = 0; d < order.ndim; ++d) {
      const auto logical = static_cast<size_t>(order.dims[d].logical);
      const uint64_t size = order.dims[d].size;
      const auto block = static_cast<uint64_t>(spec.block[logical]);
      const uint64_t extent = block == 0 ? size : std::min(block, size);
      dims_[d] = {size, extent, (size - 1) / extent + 1, cell_strides[logical]};
      whole_ = dims_[d].tiles > 1 ? d + 1 : whole_;
    }
    return pick_split(order, [&](size_t split) {
      double patterns = 1, panels = 1;  // at most
      for (size_t d = 0; d < split; ++d) {
        patterns *= double(dims_[d].tiles);
        panels *= double(d + 1 == split ? dims_[d].tiles : dims_[d].size);
      }
      return panels * double{sizeof(Panel)} +
             patterns * (double{sizeof(Pattern)} + double(order.columns(split)) / 4);
    });
  }

  // Rows that share the indices of dims before `d`, from `row` on.
  void add_rows(size_t d, uint64_t row, uint64_t cell) {
    if (d == split_) {
      rows_.add(row, 1, pattern(cell));
      return;
    }
    const TileDim& dim = dims_[d];
    if (d + 1 == split_) {
      for (uint64_t t = 0; t < dim.tiles; ++t) {
        rows_.add(row + t * dim.tile, dim.extent(t), pattern(cell + t * dim.cell_stride));
      }
      return;
    }
    uint64_t below = 1;
    for (size_t e = d + 1; e < split_; ++e) {
      below *= dims_[e].size;
    }
    for (uint64_t i = 0; i < dim.size; ++i) {
      add_rows(d + 1, row + i * below, cell + i / dim.tile * dim.cell_stride);
    }
  }

  int64_t pattern(uint64_t cell) {
    const auto [it, added] = by_cell_.try_emplace(cell, MaskRows::kNone);
    if (added) {
      std::vector<uint64_t> bits(words_for(columns_));
      fill(split_, cell, 0, columns_, bits.data());
      it->second = rows_.intern(std::move(bits));
    }
    return it->second;
  }

  // Sets the bits of dims from `d` on, `length` of them from bit `at` on.
  void fill(size_t d, uint64_t cell, uint64_t at, uint64_t length, uint64_t* bits) {
    if (d >= whole_) {
      if (cells_[cell] != 0) {
        fill_bits(bits, at, length);
      }
      return;
    }
    const TileDim& dim = dims_[d];
    const uint64_t below = length / dim.size;
    for (uint64_t t = 0; t < dim.tiles; ++t, cell += dim.cell_stride) {
      const uint64_t begin = at + t * dim.tile * below;
      const uint64_t extent = dim.extent(t);
      if (d + 1 == ndim_) {
        fill(d + 1, cell, begin, extent, bits);
        continue;
      }
      fill(d + 1, cell, begin, below, bits);
      for (uint64_t done = 1; done < extent;) {
        const uint64_t more = std::min(done, extent - done);
        copy_bits(bits, begin + done * below, bits, begin, more * below);
        done += more;
      }
    }
  }

  std::span<const uint8_t> cells_;
  std::array<TileDim, kMaxDims> dims_{};
  size_t whole_ = 0;  // no dimension from here on is cut into tiles
  size_t ndim_, split_;
  uint64_t columns_;
  MaskRows rows_;
  std::unordered_map<uint64_t, int64_t> by_cell_;  // pattern by the first cell of its rows
};

// Neighbours in memory that are neighbours in the cells too, as one.
struct CellDims {
  explicit CellDims(std::span<const MemoryDim> from) {
    for (const MemoryDim& dim : from) {
      if (n > 0 && dims[n - 1].cell_stride == dim.size * dim.cell_stride) {
        dims[n - 1].size *= dim.size;
        dims[n - 1].cell_stride = dim.cell_stride;
      } else {
        dims[n++] = dim;
      }
    }
  }
  size_t n = 0;
  std::array<MemoryDim, kMaxDims> dims{};
};

void gather(std::span<const MemoryDim> dims, const uint8_t* cells, uint64_t length, uint64_t at,
            uint64_t* bits) {
  if (dims.size() <= 1) {
    gather_bits(bits, at, cells, dims.empty() ? 1 : dims[0].cell_stride, length);
    return;
  }
  const uint64_t below = length / dims[0].size;
  for (uint64_t i = 0; i < dims[0].size; ++i) {
    gather(dims.subspan(1), cells + i * dims[0].cell_stride, below, at + i * below, bits);
  }
}

}  // namespace

MaskRows rows_of_blocks(const MaskSpec& spec, const MemoryOrder& order) {
  return BlockRows(spec, order).build();
}

MaskRows rows_of_cells(const MaskSpec& spec, const MemoryOrder& order) {
  // Short rows are the likeliest to be equal, but very short ones are slower to compare than to
  // store.
  size_t split = pick_split(order, [&](size_t candidate) { return order.columns(candidate); });
  if (order.columns(split) < 64) {
    split = 0;
  }
  const auto dims = std::span(order.dims).first(order.ndim);
  const CellDims row_dims(dims.first(split));
  const CellDims column_dims(dims.subspan(split));
  const auto columns = std::span(column_dims.dims).first(column_dims.n);

  const uint64_t length = order.columns(split);
  const uint64_t num_rows = order.count / length;
  MaskRows rows(num_rows, length);
  for (uint64_t row = 0; row < num_rows; ++row) {
    uint64_t cell = 0;
    uint64_t rest = row;
    for (size_t d = row_dims.n; d-- > 0; rest /= row_dims.dims[d].size) {
      cell += rest % row_dims.dims[d].size * row_dims.dims[d].cell_stride;
    }
    std::vector<uint64_t> bits(words_for(length));
    gather(columns, spec.cells.data() + cell, length, 0, bits.data());
    rows.add(row, 1, rows.intern(std::move(bits)));
  }
  return rows;
}

}  // namespace prunex

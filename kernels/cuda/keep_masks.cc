// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/keep_masks.h"

#include <algorithm>
#include <numeric>

#include "kernels/cuda/tile.h"

namespace prunex::cuda {
namespace {

constexpr uint64_t kMostKeeps = 4096;      // bytes of any mask, or
constexpr uint64_t kElementsPerKeep = 16;  // so many elements to each
constexpr uint64_t kSmallTensor = 65536;   // elements; tiles of such are small anyway
constexpr uint64_t kLeastOfTile = 1024;    // elements of kMaskedRows rows
constexpr uint64_t kMostLength = uint64_t{1} << 31;

// Where rows may begin and end: the columns of a row divide all of this.
uint64_t row_length(const CompiledMask& mask) {
  uint64_t length = mask.count;
  for (const Panel& p : mask.panels) {
    length = std::gcd(length, p.offset);
    length = std::gcd(length, p.columns);
    length = p.rows > 1 ? std::gcd(length, p.row_stride) : length;
  }
  return length;
}

bool is_set(const Pattern& pattern, uint64_t column) {
  return (pattern.bits[column / 64] >> (column % 64) & 1) != 0;
}

// The columns that every row of the mask's patterns keeps, 1 each; nothing where rows differ.
std::optional<std::vector<uint8_t>> columns_of(const CompiledMask& mask, uint64_t length) {
  std::vector<uint8_t> out(length, 1);
  bool first = true;
  for (const Panel& p : mask.panels) {
    const Pattern* pattern =
        p.pattern < 0 ? nullptr : &mask.patterns[static_cast<size_t>(p.pattern)];
    if (pattern == nullptr && first) {
      first = false;
      continue;
    }
    // Panels of one pattern need one look.
    if (!first && &p != &mask.panels.front() && p.pattern == (&p - 1)->pattern) {
      continue;
    }
    for (uint64_t c = 0; c < p.columns; ++c) {
      const uint8_t keeps = pattern == nullptr || is_set(*pattern, c) ? 1 : 0;
      if (first && c < length) {
        out[c] = keeps;
      } else if (out[c % length] != keeps) {
        return std::nullopt;
      }
    }
    first = false;
  }
  return out;
}

void keep_rows(const CompiledMask& mask, uint64_t length, uint8_t* rows) {
  for (const Panel& p : mask.panels) {
    for (uint64_t r = 0; r < p.rows; ++r) {
      const uint64_t begin = (p.offset + r * p.row_stride) / length;
      std::fill_n(rows + begin, p.columns / length, uint8_t{1});
    }
  }
}

bool add_dense(const Segment& segment, LayoutKeeps& out) {
  KeepTensor t;
  t.offset = segment.offset;
  t.inner = static_cast<uint32_t>(segment.count);
  out.tensors.push_back(t);
  return segment.count < kMostLength;
}

bool add_masked(const Segment& segment, LayoutKeeps& out) {
  const CompiledMask& mask = *segment.mask;
  const uint64_t length = row_length(mask), rows = length > 0 ? mask.count / length : 0;
  const uint64_t most = std::max(kMostKeeps, mask.count / kElementsPerKeep);
  const bool small_tiles = mask.count > kSmallTensor && length * kMaskedRows < kLeastOfTile;
  if (length == 0 || length >= kMostLength || rows >= kMostLength || rows > most || small_tiles) {
    return false;
  }
  const bool patterned = std::any_of(mask.panels.begin(), mask.panels.end(),
                                     [](const Panel& p) { return p.pattern >= 0; });
  if (patterned && rows + length > most) {
    return false;
  }
  KeepTensor t;
  t.offset = segment.offset;
  t.rows = static_cast<uint32_t>(rows);
  t.groups = static_cast<uint32_t>(length);
  t.projected = segment.projected ? 1 : 0;
  t.row_keep = static_cast<uint32_t>(out.keeps.size());
  out.keeps.resize(out.keeps.size() + rows, 0);
  keep_rows(mask, length, out.keeps.data() + t.row_keep);
  if (patterned) {
    const auto columns = columns_of(mask, length);
    if (!columns) {
      return false;
    }
    t.group_keep = static_cast<uint32_t>(out.keeps.size());
    out.keeps.insert(out.keeps.end(), columns->begin(), columns->end());
  }
  out.tensors.push_back(t);
  return true;
}

}  // namespace

std::optional<LayoutKeeps> keeps_of(const Layout& layout) {
  LayoutKeeps out;
  for (const Segment& segment : layout.segments) {
    const bool added = segment.mask == nullptr ? add_dense(segment, out) : add_masked(segment, out);
    if (!added || out.keeps.size() >= kMostLength) {
      return std::nullopt;
    }
  }
  return out;
}

}  // namespace prunex::cuda

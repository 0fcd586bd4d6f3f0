// SPDX-License-Identifier: Apache-2.0
// What each kind of mask demands of its arguments.
#include <cinttypes>

#include "kernels/mask_kinds.h"

namespace prunex {
namespace {

std::string shape_text(const MaskSpec& spec) {
  return list_text(std::span(spec.sizes).first(static_cast<size_t>(spec.ndim)));
}

Result<> check_keep(const MaskSpec& spec) {
  for (size_t d = 0; d < kMaxDims; ++d) {
    const std::span<const uint8_t> keep = spec.keep[d];
    if (keep.data() == nullptr && keep.empty()) {
      continue;
    }
    if (d >= static_cast<size_t>(spec.ndim)) {
      return fail(Code::invalid_argument,
                  strf("mask: keep[%zu] has %zu entries, but the tensor of shape %s has only %d "
                       "dimensions",
                       d, keep.size(), shape_text(spec).c_str(), spec.ndim));
    }
    if (keep.size() != static_cast<uint64_t>(spec.sizes[d])) {
      return fail(Code::invalid_argument,
                  strf("mask: keep[%zu] has %zu entries, but dimension %zu of shape %s has %" PRId64
                       " (one entry per index)",
                       d, keep.size(), d, shape_text(spec).c_str(), spec.sizes[d]));
    }
  }
  return {};
}

Result<> check_cells(const MaskSpec& spec, const MemoryOrder& order) {
  if (spec.cells.size() != order.count) {
    return fail(Code::invalid_argument,
                strf("mask: length %zu, but the tensor of shape %s has %" PRIu64
                     " elements (one byte per element)",
                     spec.cells.size(), shape_text(spec).c_str(), order.count));
  }
  return {};
}

Result<> check_blocks(const MaskSpec& spec) {
  uint64_t cells = 1;
  std::string grid;
  for (size_t d = 0; d < static_cast<size_t>(spec.ndim); ++d) {
    if (spec.block[d] < 0) {
      return fail(Code::invalid_argument,
                  strf("mask: block[%zu] = %" PRId64 " is negative (0: the whole dimension)", d,
                       spec.block[d]));
    }
    const auto size = static_cast<uint64_t>(spec.sizes[d]);
    const auto block = static_cast<uint64_t>(spec.block[d]);
    const uint64_t tiles = block == 0 ? (size > 0 ? 1 : 0) : size / block + (size % block > 0);
    // No wider than the product of the sizes, unless that is 0 anyway.
    if (__builtin_mul_overflow(cells, tiles, &cells)) {
      cells = UINT64_MAX;
    }
    grid += strf("%s%" PRIu64, d > 0 ? " x " : "", tiles);
  }
  if (spec.cells.size() != cells) {
    return fail(Code::invalid_argument,
                strf("mask: %zu cells, but shape %s in blocks of %s has %s = %" PRIu64 " tiles",
                     spec.cells.size(), shape_text(spec).c_str(),
                     list_text(std::span(spec.block).first(static_cast<size_t>(spec.ndim))).c_str(),
                     grid.c_str(), cells));
  }
  return {};
}

// "[2, 4:8, 0]": elements 4 to 7 of dimension 1 at index 2 and 0 of the others.
std::string group_text(const MaskSpec& spec, uint64_t outer, uint64_t begin, uint64_t inner) {
  std::string text = "]";
  for (int d = spec.ndim; d-- > 0;) {
    const auto size = static_cast<uint64_t>(spec.sizes[static_cast<size_t>(d)]);
    std::string index;
    if (d == spec.nm_dim) {
      index = strf("%" PRIu64 ":%" PRIu64, begin, begin + static_cast<uint64_t>(spec.m));
    } else {
      uint64_t& rest = d > spec.nm_dim ? inner : outer;
      index = strf("%" PRIu64, rest % size);
      rest /= size;
    }
    text = (d > 0 ? ", " : "[") + index + text;
  }
  return text;
}

Result<> check_groups(const MaskSpec& spec, const MemoryOrder& order) {
  if (order.count == 0) {
    return {};
  }
  uint64_t inner = 1;
  for (size_t d = static_cast<size_t>(spec.nm_dim) + 1; d < static_cast<size_t>(spec.ndim); ++d) {
    inner *= static_cast<uint64_t>(spec.sizes[d]);
  }
  const auto size = static_cast<uint64_t>(spec.sizes[static_cast<size_t>(spec.nm_dim)]);
  const auto m = static_cast<uint64_t>(spec.m);
  const uint8_t* cells = spec.cells.data();
  for (uint64_t outer = 0; outer < order.count / (size * inner); ++outer) {
    for (uint64_t begin = 0; begin < size; begin += m, cells += m * inner) {
      for (uint64_t i = 0; i < inner; ++i) {
        uint64_t kept = 0;
        for (uint64_t k = 0; k < m; ++k) {
          kept += cells[k * inner + i] != 0 ? 1 : 0;
        }
        if (kept != static_cast<uint64_t>(spec.n)) {
          return fail(
              Code::invalid_argument,
              strf("mask: the group %s of the %" PRId64 ":%" PRId64 " mask keeps %" PRIu64
                   " elements, expected %" PRId64,
                   group_text(spec, outer, begin, i).c_str(), spec.n, spec.m, kept, spec.n));
        }
      }
    }
  }
  return {};
}

Result<> check_nm(const MaskSpec& spec, const MemoryOrder& order) {
  if (spec.nm_dim < 0 || spec.nm_dim >= spec.ndim) {
    return fail(
        Code::invalid_argument,
        strf("mask: N:M dimension %d, but the tensor has %d dimensions", spec.nm_dim, spec.ndim));
  }
  if (spec.m < 1 || spec.n < 0 || spec.n > spec.m) {
    return fail(Code::invalid_argument,
                strf("mask: N:M of %" PRId64 ":%" PRId64 ", needed is 0 <= N <= M and M >= 1",
                     spec.n, spec.m));
  }
  const int64_t size = spec.sizes[static_cast<size_t>(spec.nm_dim)];
  if (size % spec.m != 0) {
    return fail(Code::invalid_argument, strf("mask: dimension %d of shape %s has %" PRId64
                                             " elements, not a multiple of M = %" PRId64,
                                             spec.nm_dim, shape_text(spec).c_str(), size, spec.m));
  }
  const Result<> cells = check_cells(spec, order);
  return cells ? check_groups(spec, order) : cells;
}

Result<> check_ranges(const MaskSpec& spec, const MemoryOrder& order) {
  uint64_t end = 0;
  for (size_t i = 0; i < spec.ranges.size(); ++i) {
    const KeptRange range = spec.ranges[i];
    if (range.begin > order.count || range.count > order.count - range.begin) {
      return fail(Code::invalid_argument,
                  strf("mask: range %zu keeps %" PRIu64 " elements from %" PRIu64
                       " on, but the tensor has %" PRIu64 " elements",
                       i, range.count, range.begin, order.count));
    }
    if (range.begin < end) {
      return fail(Code::invalid_argument, strf("mask: range %zu begins at element %" PRIu64
                                               ", but range %zu before it ends at %" PRIu64
                                               " (ranges must be ascending and must not overlap)",
                                               i, range.begin, i - 1, end));
    }
    end = range.begin + range.count;
  }
  return {};
}

}  // namespace

Result<> check_lengths(const MaskSpec& spec, const MemoryOrder& order) {
  switch (spec.kind) {
    case MaskKind::dims:
      return check_keep(spec);
    case MaskKind::blocks:
      return check_blocks(spec);
    case MaskKind::nm:
      return check_nm(spec, order);
    case MaskKind::ranges:
      return check_ranges(spec, order);
    case MaskKind::bytes:
      return check_cells(spec, order);
  }
  return fail(Code::invalid_argument,
              strf("mask: kind %d is not known, allowed are 0 (dims) to %d (bytes)",
                   static_cast<int>(spec.kind), static_cast<int>(MaskKind::bytes)));
}

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
#include "kernels/mask.h"

#include <algorithm>
#include <cinttypes>

#include "kernels/mask_kinds.h"
#include "kernels/mask_order.h"
#include "kernels/mask_rows.h"

namespace prunex {
namespace {

MaskRows rows_of(const MaskSpec& spec, const MemoryOrder& order) {
  if (order.count == 0) {
    return MaskRows(0, 1);
  }
  switch (spec.kind) {
    case MaskKind::dims:
      return rows_of_dims(spec, order);
    case MaskKind::blocks:
      return rows_of_blocks(spec, order);
    case MaskKind::nm:
    case MaskKind::bytes:
      return rows_of_cells(spec, order);
    case MaskKind::ranges:
      break;
  }
  return rows_of_ranges(spec, order);
}

}  // namespace

Result<CompiledMask> compile(const MaskSpec& spec) {
  const Result<MemoryOrder> order = memory_order(spec);
  if (!order) {
    return tl::unexpected(order.error());
  }
  const Result<> lengths = check_lengths(spec, *order);
  if (!lengths) {
    return tl::unexpected(lengths.error());
  }
  CompiledMask mask = rows_of(spec, *order).compile();
  if (spec.declared_kept < -1 ||
      (spec.declared_kept >= 0 && static_cast<uint64_t>(spec.declared_kept) != mask.kept)) {
    return fail(Code::invalid_argument,
                strf("mask: %" PRId64 " kept elements were declared, but the mask keeps %" PRIu64
                     " of %" PRIu64 " (declare that number, or -1 for none)",
                     spec.declared_kept, mask.kept, mask.count));
  }
  return mask;
}

bool keeps(const CompiledMask& mask, uint64_t index) {
  const auto above = std::ranges::upper_bound(mask.panels, index, {}, &Panel::offset);
  if (above == mask.panels.begin()) {
    return false;
  }
  const Panel& panel = *(above - 1);
  const uint64_t row = (index - panel.offset) / panel.row_stride;
  const uint64_t column = (index - panel.offset) % panel.row_stride;
  if (row >= panel.rows || column >= panel.columns) {
    return false;
  }
  if (panel.pattern < 0) {
    return true;
  }
  const Pattern& pattern = mask.patterns[static_cast<size_t>(panel.pattern)];
  return ((pattern.bits[column / 64] >> (column % 64)) & 1) != 0;
}

}  // namespace prunex

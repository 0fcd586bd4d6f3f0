// SPDX-License-Identifier: Apache-2.0
// Any mask spec either is refused with a text or compiles to what mask.h promises.
#include "kernels/mask.h"
#include "kernels/pattern.h"
#include "tests/fuzz/mask_input.h"

namespace prunex::fuzz {
namespace {

void check_panels(const CompiledMask& mask) {
  uint64_t end = 0, kept = 0;
  for (const Panel& panel : mask.panels) {
    PRUNEX_FUZZ_CHECK(panel.offset >= end);
    PRUNEX_FUZZ_CHECK(panel.rows > 0 && panel.columns > 0 && panel.row_stride >= panel.columns);
    PRUNEX_FUZZ_CHECK(panel.kept_before == kept);
    uint64_t row_kept = panel.columns;
    if (panel.pattern >= 0) {
      PRUNEX_FUZZ_CHECK(static_cast<size_t>(panel.pattern) < mask.patterns.size());
      const Pattern& pattern = mask.patterns[static_cast<size_t>(panel.pattern)];
      PRUNEX_FUZZ_CHECK(pattern.columns == panel.columns);
      PRUNEX_FUZZ_CHECK(pattern.kept == count_bits(pattern.bits));
      PRUNEX_FUZZ_CHECK(pattern.kept > 0 && pattern.kept < pattern.columns);
      row_kept = pattern.kept;
    }
    kept += panel.rows * row_kept;
    end = panel.offset + (panel.rows - 1) * panel.row_stride + panel.columns;
    PRUNEX_FUZZ_CHECK(end <= mask.count);
  }
  PRUNEX_FUZZ_CHECK(kept == mask.kept);
}

// Is the element of these logical indices kept?
bool spec_keeps(const MaskSpec& spec, const std::array<int64_t, kMaxDims>& index, uint64_t at) {
  const auto ndim = static_cast<size_t>(spec.ndim);
  bool keep = spec.kind != MaskKind::ranges;
  uint64_t cell = 0;
  for (size_t d = 0; d < ndim; ++d) {
    const auto i = static_cast<size_t>(index[d]);
    if (spec.kind == MaskKind::dims) {
      keep = keep && (spec.keep[d].empty() || spec.keep[d][i] != 0);
    } else if (spec.kind == MaskKind::blocks) {
      const auto size = static_cast<uint64_t>(spec.sizes[d]);
      const uint64_t block = spec.block[d] == 0 ? size : static_cast<uint64_t>(spec.block[d]);
      cell = cell * ((size - 1) / block + 1) + i / block;
    } else {
      cell = cell * static_cast<uint64_t>(spec.sizes[d]) + i;
    }
  }
  for (const KeptRange& range : spec.ranges) {
    keep = keep || (at >= range.begin && at < range.begin + range.count);
  }
  return keep &&
         (spec.kind == MaskKind::dims || spec.kind == MaskKind::ranges || spec.cells[cell] != 0);
}

void check_elements(const MaskSpec& spec, const CompiledMask& mask) {
  const auto ndim = static_cast<size_t>(spec.ndim);
  bool row_major = true;
  for (size_t d = 0; d < ndim; ++d) {
    row_major = row_major && spec.strides[d] == 0;
  }
  std::array<int64_t, kMaxDims> index{};
  uint64_t kept = 0;
  std::vector<uint8_t> bytes(mask.count);
  for (uint64_t e = 0; e < mask.count; ++e) {
    uint64_t at = row_major ? e : 0;
    for (size_t d = 0; d < ndim && !row_major; ++d) {
      at += static_cast<uint64_t>(index[d] * spec.strides[d]);
    }
    const bool keep = spec_keeps(spec, index, at);
    PRUNEX_FUZZ_CHECK(keeps(mask, at) == keep);
    bytes[at] = keep ? 1 : 0;
    kept += bytes[at];
    for (size_t d = ndim; d-- > 0 && ++index[d] == spec.sizes[d];) {
      index[d] = 0;
    }
  }
  PRUNEX_FUZZ_CHECK(kept == mask.kept);
  MaskSpec same;
  same.kind = MaskKind::bytes;
  same.ndim = 1;
  same.sizes[0] = static_cast<int64_t>(mask.count);
  same.cells = bytes;
  PRUNEX_FUZZ_CHECK(compile(same)->digest == mask.digest);
}

}  // namespace
}  // namespace prunex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace prunex;
  fuzz::Decoder in(data, size);
  fuzz::MaskInput input;
  fuzz::take_mask(in, input);
  if (!fuzz::affordable(input.spec)) {
    return 0;
  }
  const Result<CompiledMask> mask = compile(input.spec);
  if (!mask) {
    PRUNEX_FUZZ_CHECK(mask.error().code == Code::invalid_argument && !mask.error().text.empty());
    return 0;
  }
  PRUNEX_FUZZ_CHECK(mask->count == fuzz::element_count(input.spec) || mask->count == 0);
  fuzz::check_panels(*mask);
  if (mask->count <= fuzz::kSmall) {
    fuzz::check_elements(input.spec, *mask);
  }
  return 0;
}

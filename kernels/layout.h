// SPDX-License-Identifier: Apache-2.0
// A layout says what lies in one flat buffer: segments with or without masks, unaligned, as in a
// DDP bucket. Its kept elements in ascending address order form the packed stream that crosses the
// wire.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/mask.h"
#include "plugin/base/result.h"

namespace prunex {

struct Segment {
  uint64_t offset = 0;                       // elements from the buffer's start
  uint64_t count = 0;                        // elements; equals mask->count when there is a mask
  std::shared_ptr<const CompiledMask> mask;  // null: dense
  std::string name;                          // parameter name for messages; may be empty
  bool projected = false;  // dropped elements are cut off by contract: counted, not a violation
};

// Sorted by offset; gaps of the request are filled with unnamed dense segments, and segments of no
// elements are left out: the segments tile the buffer.
struct Layout {
  uint64_t count = 0;  // elements of the buffer
  uint64_t kept = 0;
  uint64_t shape_digest = 0;  // of offsets and counts
  uint64_t mask_digest = 0;   // of every segment's mask digest, in order (dense: a constant)
  std::vector<Segment> segments;
  std::vector<uint64_t> kept_before;  // per segment, plus one entry with the total
  [[nodiscard]] bool dense() const { return kept == count; }
};

// `count` is the buffer's length. Overlapping segments, segments past the end and segments whose
// length differs from their mask's are errors that name both numbers and the segment.
[[nodiscard]] Result<Layout> make_layout(std::vector<Segment> segments, uint64_t count);

// One dense segment (none when count is 0).
[[nodiscard]] Layout dense_layout(uint64_t count);

// The same layout with some segments' masks taken away (`dense_segment[i]` != 0).
[[nodiscard]] Layout without_masks(const Layout& layout, std::span<const uint8_t> dense_segment);

// A piece of the packed stream and the piece of the buffer that belongs to it: kept elements
// [kept_begin, kept_end) lie in [elem_begin, elem_end). Slices of consecutive kept ranges tile the
// buffer: the first begins at element 0, the last ends at count, each ends where the next begins,
// at the next kept element. Without kept elements the one slice (0, 0) is the whole buffer; every
// other empty slice is empty. Bounds past the kept count are cut to it. O(log).
struct Slice {
  uint64_t kept_begin = 0, kept_end = 0;
  uint64_t elem_begin = 0, elem_end = 0;
};
[[nodiscard]] Slice slice(const Layout& layout, uint64_t kept_begin, uint64_t kept_end);

}  // namespace prunex

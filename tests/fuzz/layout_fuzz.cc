// SPDX-License-Identifier: Apache-2.0
// Any list of segments either is refused with a text or gives a layout whose slices tile the
// buffer.
#include <algorithm>
#include <memory>

#include "kernels/layout.h"
#include "tests/fuzz/mask_input.h"

namespace prunex::fuzz {
namespace {

std::vector<Segment> take_segments(Decoder& in, uint64_t& end) {
  std::vector<Segment> segments;
  end = 0;
  for (auto n = in.take<uint8_t>() % 12; n > 0; --n) {
    Segment segment;
    const auto mode = in.take<uint8_t>();
    segment.offset = mode % 8 == 7 ? static_cast<uint64_t>(in.number()) : end + mode % 8;
    segment.count = static_cast<uint64_t>(in.number());
    if (mode % 3 == 0) {
      MaskInput input;
      take_mask(in, input);
      const Result<CompiledMask> mask =
          affordable(input.spec) ? compile(input.spec) : Result<CompiledMask>();
      if (mask) {
        segment.mask = std::make_shared<const CompiledMask>(*mask);
        segment.count = mode >= 250 ? segment.count : mask->count;
      }
    }
    end = segment.offset + segment.count;
    segments.push_back(std::move(segment));
  }
  std::reverse(segments.begin(),
               segments.begin() + in.take<uint8_t>() % 4 % static_cast<long>(segments.size() + 1));
  return segments;
}

void check_layout(const Layout& layout) {
  uint64_t end = 0, kept = 0;
  PRUNEX_FUZZ_CHECK(layout.kept_before.size() == layout.segments.size() + 1);
  for (size_t i = 0; i < layout.segments.size(); ++i) {
    const Segment& segment = layout.segments[i];
    PRUNEX_FUZZ_CHECK(segment.offset == end && segment.count > 0);
    PRUNEX_FUZZ_CHECK(segment.mask == nullptr || segment.mask->count == segment.count);
    PRUNEX_FUZZ_CHECK(layout.kept_before[i] == kept);
    kept += segment.mask != nullptr ? segment.mask->kept : segment.count;
    end += segment.count;
  }
  PRUNEX_FUZZ_CHECK(end == layout.count && kept == layout.kept &&
                    kept == layout.kept_before.back());
}

bool layout_keeps(const Layout& layout, uint64_t element) {
  const auto above = std::ranges::upper_bound(layout.segments, element, {}, &Segment::offset);
  const Segment& segment = *(above - 1);
  return segment.mask == nullptr || keeps(*segment.mask, element - segment.offset);
}

void check_slices(Decoder& in, const Layout& layout) {
  uint64_t end = 0;
  for (uint64_t at = 0; at < layout.kept || end == 0;) {
    const uint64_t step = 1 + in.take<uint8_t>();
    const uint64_t to = in.empty() || layout.kept - at <= step ? layout.kept : at + step;
    const Slice piece = slice(layout, at, to);
    PRUNEX_FUZZ_CHECK(piece.kept_begin == at && piece.kept_end == to);
    PRUNEX_FUZZ_CHECK(piece.elem_begin == end && piece.elem_end >= end);
    PRUNEX_FUZZ_CHECK(piece.elem_end - piece.elem_begin >= to - at);
    if (layout.count <= kSmall) {
      uint64_t kept = 0;
      for (uint64_t e = piece.elem_begin; e < piece.elem_end; ++e) {
        kept += layout_keeps(layout, e) ? 1 : 0;
      }
      PRUNEX_FUZZ_CHECK(kept == to - at);
    }
    end = piece.elem_end;
    at = to;
    if (layout.kept == 0) {
      break;
    }
  }
  PRUNEX_FUZZ_CHECK(end == layout.count);
}

}  // namespace
}  // namespace prunex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace prunex;
  fuzz::Decoder in(data, size);
  uint64_t end = 0;
  std::vector<Segment> segments = fuzz::take_segments(in, end);
  const uint64_t count =
      in.take<uint8_t>() == 255 ? static_cast<uint64_t>(in.number()) : end + in.take<uint8_t>() % 4;
  const Result<Layout> layout = make_layout(std::move(segments), count);
  if (!layout) {
    PRUNEX_FUZZ_CHECK(layout.error().code == Code::invalid_argument);
    PRUNEX_FUZZ_CHECK(!layout.error().text.empty());
    return 0;
  }
  PRUNEX_FUZZ_CHECK(layout->count == count);
  fuzz::check_layout(*layout);
  fuzz::check_slices(in, *layout);
  const std::vector<uint8_t> dense = in.bytes(layout->segments.size());
  fuzz::check_layout(without_masks(*layout, dense));
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "kernels/layout.h"

#include <algorithm>
#include <cinttypes>
#include <numeric>
#include <utility>

#include "kernels/pattern.h"
#include "plugin/base/digest.h"

namespace prunex {
namespace {

constexpr uint64_t kDenseDigest = 0x64656e7365;  // "dense", in place of a mask's digest

std::string segment_text(const Segment& segment, size_t index) {
  const std::string name = segment.name.empty() ? "" : " ('" + segment.name + "')";
  return strf("segment %zu%s", index, name.c_str());
}

Result<> check_segment(const Segment& segment, size_t index, uint64_t count) {
  if (segment.offset > count || segment.count > count - segment.offset) {
    return fail(Code::invalid_argument,
                strf("layout: %s has %" PRIu64 " elements from %" PRIu64
                     " on, but the buffer has %" PRIu64 " elements",
                     segment_text(segment, index).c_str(), segment.count, segment.offset, count));
  }
  if (segment.mask != nullptr && segment.mask->count != segment.count) {
    return fail(Code::invalid_argument,
                strf("layout: %s has %" PRIu64 " elements, but its mask is of a tensor of %" PRIu64,
                     segment_text(segment, index).c_str(), segment.count, segment.mask->count));
  }
  return {};
}

// Kept counts and digests from count and segments.
void summarize(Layout& layout) {
  Digest shape;
  Digest masks;
  shape.add(layout.count).add(layout.segments.size());
  masks.add(layout.segments.size());
  layout.kept = 0;
  layout.kept_before.clear();
  layout.kept_before.reserve(layout.segments.size() + 1);
  for (const Segment& segment : layout.segments) {
    shape.add(segment.offset).add(segment.count);
    masks.add(segment.mask != nullptr ? segment.mask->digest : kDenseDigest);
    layout.kept_before.push_back(layout.kept);
    layout.kept += segment.mask != nullptr ? segment.mask->kept : segment.count;
  }
  layout.kept_before.push_back(layout.kept);
  layout.shape_digest = shape.value();
  layout.mask_digest = masks.value();
}

// Where in the buffer the k-th kept element lies; k < layout.kept.
uint64_t kept_element(const Layout& layout, uint64_t k) {
  const auto above = std::upper_bound(layout.kept_before.begin(), layout.kept_before.end() - 1, k);
  const auto s = static_cast<size_t>(above - layout.kept_before.begin()) - 1;
  const Segment& segment = layout.segments[s];
  k -= layout.kept_before[s];
  return segment.offset + (segment.mask != nullptr ? select_kept(*segment.mask, k) : k);
}

uint64_t boundary(const Layout& layout, uint64_t k) {
  if (k == 0) {
    return 0;
  }
  return k >= layout.kept ? layout.count : kept_element(layout, k);
}

}  // namespace

Result<Layout> make_layout(std::vector<Segment> segments, uint64_t count) {
  for (size_t i = 0; i < segments.size(); ++i) {
    const Result<> fits = check_segment(segments[i], i, count);
    if (!fits) {
      return tl::unexpected(fits.error());
    }
  }
  // Sorted as numbers of the request, which the messages name.
  std::vector<size_t> order(segments.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t i) { return segments[i].count == 0; });
  std::ranges::stable_sort(order, {}, [&](size_t i) { return segments[i].offset; });

  Layout layout;
  layout.count = count;
  layout.segments.reserve(order.size());
  const auto fill_gap = [&layout](uint64_t begin, uint64_t end) {
    if (begin < end) {
      layout.segments.push_back({.offset = begin, .count = end - begin, .mask = {}, .name = {}});
    }
  };
  uint64_t end = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    const Segment& segment = segments[order[k]];
    if (segment.offset < end) {
      const Segment& before = layout.segments.back();
      return fail(Code::invalid_argument,
                  strf("layout: %s covers elements %" PRIu64 " to %" PRIu64 ", %s covers %" PRIu64
                       " to %" PRIu64 ": they overlap",
                       segment_text(segment, order[k]).c_str(), segment.offset,
                       segment.offset + segment.count - 1,
                       segment_text(before, order[k - 1]).c_str(), before.offset, end - 1));
    }
    fill_gap(end, segment.offset);
    end = segment.offset + segment.count;
    layout.segments.push_back(std::move(segments[order[k]]));
  }
  fill_gap(end, count);
  summarize(layout);
  return layout;
}

Layout dense_layout(uint64_t count) {
  Layout layout;
  layout.count = count;
  if (count > 0) {
    layout.segments.push_back({.offset = 0, .count = count, .mask = {}, .name = {}});
  }
  summarize(layout);
  return layout;
}

Layout without_masks(const Layout& layout, std::span<const uint8_t> dense_segment) {
  Layout out = layout;
  for (size_t i = 0; i < std::min(out.segments.size(), dense_segment.size()); ++i) {
    if (dense_segment[i] != 0) {
      out.segments[i].mask.reset();
    }
  }
  summarize(out);
  return out;
}

Slice slice(const Layout& layout, uint64_t kept_begin, uint64_t kept_end) {
  Slice out;
  out.kept_begin = std::min(kept_begin, layout.kept);
  out.kept_end = std::clamp(kept_end, out.kept_begin, layout.kept);
  out.elem_begin = boundary(layout, out.kept_begin);
  out.elem_end = layout.kept == 0 ? layout.count : boundary(layout, out.kept_end);
  return out;
}

}  // namespace prunex

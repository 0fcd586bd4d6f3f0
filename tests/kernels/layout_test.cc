// SPDX-License-Identifier: Apache-2.0
#include "kernels/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kernels/mask_reference.h"

namespace prunex::testing {
namespace {

using ::testing::HasSubstr;
using MaskPtr = std::shared_ptr<const CompiledMask>;

MaskPtr ranges_mask(uint64_t count, std::vector<KeptRange> ranges) {
  OwnedSpec owned;
  owned.spec.kind = MaskKind::ranges;
  owned.spec.ndim = 1;
  owned.spec.sizes[0] = static_cast<int64_t>(count);
  owned.ranges = std::move(ranges);
  return std::make_shared<const CompiledMask>(compile(owned.get()).value());
}

struct RandomLayout {
  Layout layout;
  std::vector<uint8_t> kept;  // by element of the buffer
};

RandomLayout random_layout(Random& random, uint64_t max_segments) {
  std::vector<Segment> segments;
  RandomLayout out;
  const uint64_t n = below(random, max_segments + 1);
  for (uint64_t i = 0; i < n; ++i) {
    if (below(random, 3) == 0) {
      out.kept.resize(out.kept.size() + below(random, 40), 1);  // a gap
    }
    Segment segment;
    segment.offset = out.kept.size();
    if (below(random, 4) == 0) {
      segment.count = below(random, 60);
      out.kept.resize(out.kept.size() + segment.count, 1);
    } else {
      OwnedSpec owned = random_spec(random, static_cast<MaskKind>(below(random, 5)), 300);
      const std::vector<uint8_t> kept = reference_keeps(owned.get());
      segment.mask = std::make_shared<const CompiledMask>(compile(owned.get()).value());
      segment.count = kept.size();
      out.kept.insert(out.kept.end(), kept.begin(), kept.end());
    }
    segments.push_back(std::move(segment));
  }
  out.kept.resize(out.kept.size() + below(random, 3), 1);
  std::shuffle(segments.begin(), segments.end(), random);
  out.layout = make_layout(std::move(segments), out.kept.size()).value();
  return out;
}

void expect_tiled(const Layout& layout) {
  uint64_t end = 0, kept = 0;
  ASSERT_EQ(layout.kept_before.size(), layout.segments.size() + 1);
  for (size_t i = 0; i < layout.segments.size(); ++i) {
    const Segment& segment = layout.segments[i];
    EXPECT_EQ(segment.offset, end);
    EXPECT_GT(segment.count, 0u);
    EXPECT_EQ(layout.kept_before[i], kept);
    end += segment.count;
    kept += segment.mask ? segment.mask->kept : segment.count;
  }
  EXPECT_EQ(end, layout.count);
  EXPECT_EQ(layout.kept_before.back(), kept);
  EXPECT_EQ(layout.kept, kept);
}

TEST(LayoutProperty, slices_tile_the_buffer) {
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const auto [layout, kept] = random_layout(random, seed % 3 == 0 ? 2 : 12);
    expect_tiled(layout);
    std::vector<uint64_t> places;
    for (uint64_t i = 0; i < kept.size(); ++i) {
      if (kept[i] != 0) {
        places.push_back(i);
      }
    }
    ASSERT_EQ(layout.kept, places.size());
    EXPECT_EQ(layout.dense(), places.size() == kept.size());

    std::vector<uint64_t> cuts{0, layout.kept};
    for (uint64_t i = below(random, 8); i > 0; --i) {
      cuts.push_back(below(random, layout.kept + 1));
    }
    std::ranges::sort(cuts);
    uint64_t end = 0;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const Slice piece = slice(layout, cuts[i], cuts[i + 1]);
      EXPECT_EQ(piece.kept_begin, cuts[i]);
      EXPECT_EQ(piece.kept_end, cuts[i + 1]);
      if (layout.kept > 0) {
        EXPECT_EQ(piece.elem_begin, end);
        const bool last = cuts[i + 1] == layout.kept;
        EXPECT_EQ(piece.elem_end, cuts[i + 1] == 0 ? 0 : last ? kept.size() : places[cuts[i + 1]]);
      } else {
        EXPECT_EQ(piece.elem_begin, 0u);
      }
      end = piece.elem_end;
    }
    EXPECT_EQ(end, kept.size());
    if (HasFailure()) {
      return;
    }
  }
}

TEST(LayoutSlice, edges) {
  // Dropped: 0..4, 7..92, 95..99.
  const Layout layout =
      make_layout({{0, 100, ranges_mask(100, {{5, 2}, {93, 2}}), "w"}}, 100).value();
  EXPECT_EQ(slice(layout, 0, 1).elem_begin, 0u);
  EXPECT_EQ(slice(layout, 0, 1).elem_end, 6u);
  EXPECT_EQ(slice(layout, 1, 2).elem_begin, 6u);
  EXPECT_EQ(slice(layout, 1, 2).elem_end, 93u) << "the stretch before the next kept element";
  EXPECT_EQ(slice(layout, 2, 4).elem_begin, 93u);
  EXPECT_EQ(slice(layout, 2, 4).elem_end, 100u);
  for (uint64_t k = 0; k <= 4; ++k) {
    EXPECT_EQ(slice(layout, k, k).elem_begin, slice(layout, k, k).elem_end) << k;
  }
  EXPECT_EQ(slice(layout, 0, 99).kept_end, 4u);
  EXPECT_EQ(slice(layout, 0, 99).elem_end, 100u);
  EXPECT_EQ(slice(layout, 3, 1).kept_end, 3u);
}

TEST(LayoutSlice, nothing_kept_is_one_slice) {
  const Layout layout = make_layout({{0, 50, ranges_mask(50, {}), ""}}, 50).value();
  EXPECT_EQ(layout.kept, 0u);
  EXPECT_FALSE(layout.dense());
  const Slice all = slice(layout, 0, 0);
  EXPECT_EQ(all.elem_begin, 0u);
  EXPECT_EQ(all.elem_end, 50u);
}

TEST(Layout, of_no_elements) {
  for (const Layout& layout : {make_layout({}, 0).value(), dense_layout(0)}) {
    expect_tiled(layout);
    EXPECT_TRUE(layout.dense());
    EXPECT_EQ(slice(layout, 0, 0).elem_end, 0u);
  }
}

TEST(Layout, gaps_are_dense_and_order_does_not_matter) {
  const MaskPtr mask = ranges_mask(10, {{0, 4}});
  const Layout layout = make_layout({{70, 10, mask, "b"}, {20, 10, mask, "a"}}, 100).value();
  ASSERT_EQ(layout.segments.size(), 5u);
  EXPECT_EQ(layout.segments[1].name, "a");
  EXPECT_EQ(layout.segments[3].name, "b");
  EXPECT_EQ(layout.segments[2].offset, 30u);
  EXPECT_EQ(layout.segments[2].count, 40u);
  EXPECT_EQ(layout.segments[2].mask, nullptr);
  EXPECT_EQ(layout.kept, 88u);
  expect_tiled(layout);

  const Layout swapped = make_layout({{20, 10, mask, "x"}, {70, 10, mask, "y"}}, 100).value();
  EXPECT_EQ(swapped.shape_digest, layout.shape_digest) << "names are not part of it";
  EXPECT_EQ(swapped.mask_digest, layout.mask_digest);
  const Layout explicit_gap =
      make_layout({{0, 20, {}, ""}, {20, 10, mask, ""}, {30, 40, {}, ""}, {70, 10, mask, ""}}, 100)
          .value();
  EXPECT_EQ(explicit_gap.shape_digest, layout.shape_digest);
  EXPECT_EQ(explicit_gap.mask_digest, layout.mask_digest);
}

TEST(Layout, empty_segments_are_left_out) {
  const MaskPtr none = ranges_mask(0, {});
  const Layout layout =
      make_layout({{10, 0, none, "e"}, {0, 20, {}, "a"}, {20, 0, {}, "f"}, {5, 0, {}, "g"}}, 20)
          .value();
  ASSERT_EQ(layout.segments.size(), 1u);
  EXPECT_EQ(layout.segments[0].name, "a");
}

TEST(Layout, digests_tell_shapes_and_masks_apart) {
  const MaskPtr first = ranges_mask(10, {{0, 4}});
  const MaskPtr last = ranges_mask(10, {{6, 4}});
  const auto make = [](MaskPtr a, MaskPtr b, uint64_t offset = 10, uint64_t count = 30) {
    return make_layout({{0, 10, std::move(a), ""}, {offset, 10, std::move(b), ""}}, count).value();
  };
  const std::vector<Layout> layouts = {make(first, last), make(last, first), make(first, nullptr),
                                       make(nullptr, first), make(nullptr, nullptr)};
  for (size_t i = 0; i < layouts.size(); ++i) {
    EXPECT_EQ(layouts[i].shape_digest, layouts[0].shape_digest);
    for (size_t k = 0; k < i; ++k) {
      EXPECT_NE(layouts[i].mask_digest, layouts[k].mask_digest);
    }
  }
  EXPECT_NE(make(first, last, 11).shape_digest, layouts[0].shape_digest);
  EXPECT_NE(make(first, last, 10, 31).shape_digest, layouts[0].shape_digest);
  EXPECT_NE(dense_layout(20).shape_digest, dense_layout(21).shape_digest);
  EXPECT_EQ(dense_layout(20).shape_digest, make_layout({}, 20)->shape_digest);
  EXPECT_EQ(dense_layout(20).mask_digest, make_layout({}, 20)->mask_digest);
}

TEST(Layout, without_masks_keeps_the_shape) {
  const MaskPtr mask = ranges_mask(10, {{0, 4}});
  const Layout layout =
      make_layout({{0, 10, mask, "a"}, {10, 10, mask, "b"}, {20, 10, mask, "c"}}, 30).value();
  const std::vector<uint8_t> dense{0, 1, 0};
  const Layout some = without_masks(layout, dense);
  expect_tiled(some);
  EXPECT_EQ(some.kept, 18u);
  EXPECT_EQ(some.segments[1].name, "b");
  EXPECT_EQ(some.shape_digest, layout.shape_digest);
  EXPECT_EQ(
      some.mask_digest,
      make_layout({{0, 10, mask, ""}, {10, 10, {}, ""}, {20, 10, mask, ""}}, 30)->mask_digest);
  EXPECT_EQ(layout.kept, 12u) << "the original is untouched";
  const std::vector<uint8_t> all{1, 1, 1};
  EXPECT_TRUE(without_masks(layout, all).dense());
  EXPECT_EQ(without_masks(layout, {}).mask_digest, layout.mask_digest);
}

TEST(Layout, mask_of_everything_is_dense) {
  EXPECT_TRUE(make_layout({{0, 10, ranges_mask(10, {{0, 10}}), ""}}, 10)->dense());
}

void expect_error(std::vector<Segment> segments, uint64_t count, std::vector<const char*> parts) {
  const Result<Layout> layout = make_layout(std::move(segments), count);
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code, Code::invalid_argument);
  for (const char* part : parts) {
    EXPECT_THAT(layout.error().text, HasSubstr(part));
  }
}

TEST(LayoutError, names_numbers_and_segments) {
  const MaskPtr mask = ranges_mask(1000, {{0, 4}});
  expect_error({{0, 10, {}, "fc"}, {10, 1001, mask, "conv"}}, 2000,
               {"segment 1", "'conv'", "1001", "1000"});
  expect_error({{0, 10, {}, "fc"}, {90, 11, {}, "bn"}}, 100,
               {"segment 1", "'bn'", "11 elements", "90", "100"});
  expect_error({{101, 0, {}, "bn"}}, 100, {"segment 0", "101", "100"});
  expect_error({{~uint64_t{0}, 2, {}, ""}}, 100, {"segment 0", "18446744073709551615", "100"});
  expect_error({{2, ~uint64_t{0}, {}, ""}}, 100, {"segment 0", "18446744073709551615", "100"});
  expect_error({{50, 10, {}, "b"}, {0, 10, {}, "z"}, {45, 6, {}, "a"}}, 100,
               {"segment 0 ('b')", "50 to 59", "segment 2 ('a')", "45 to 50"});
  expect_error({{5, 10, {}, "b"}, {5, 10, {}, "a"}}, 100, {"segment 0 ('b')", "segment 1 ('a')"});
}

TEST(Reports, E20_layout_above_32_bits) {
  constexpr uint64_t kCount = (uint64_t{1} << 31) + 5;
  const MaskPtr mask = ranges_mask(kCount, {{0, 3}, {kCount - 7, 7}});
  const Layout layout =
      make_layout({{kCount, kCount, mask, ""}, {0, kCount, mask, ""}}, 3 * kCount).value();
  EXPECT_EQ(layout.kept, 20 + kCount);
  const Slice middle = slice(layout, 9, 13);
  EXPECT_EQ(middle.elem_begin, kCount - 1);
  EXPECT_EQ(middle.elem_end, 2 * kCount - 7);
  const Slice tail = slice(layout, 15, layout.kept);
  EXPECT_EQ(tail.elem_begin, 2 * kCount - 5);
  EXPECT_EQ(tail.elem_end, 3 * kCount);
  EXPECT_EQ(slice(layout, kCount + 10, kCount + 11).elem_begin, 3 * kCount - 10);
}

}  // namespace
}  // namespace prunex::testing

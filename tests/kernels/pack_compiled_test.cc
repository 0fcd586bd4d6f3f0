// SPDX-License-Identifier: Apache-2.0
// Compiled masks of every kind through pack, unpack and reduce_pack: what the mask says it keeps is
// what crosses, slice by slice.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

#include "kernels/pack.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {
namespace {

struct Spec {
  MaskSpec spec;
  std::vector<Bits> keep;  // what the spec's spans show
  Bits cells;
  std::vector<KeptRange> ranges;
};

int64_t elements(const MaskSpec& s) {
  int64_t n = 1;
  for (int d = 0; d < s.ndim; ++d) {
    n *= s.sizes[static_cast<size_t>(d)];
  }
  return n;
}

// Strides of channels_last: dimension 1 innermost, dimension 0 outermost.
void channels_last(MaskSpec& s) {
  int64_t stride = s.sizes[1];
  s.strides[1] = 1;
  for (int d = s.ndim - 1; d >= 2; --d) {
    s.strides[static_cast<size_t>(d)] = stride;
    stride *= s.sizes[static_cast<size_t>(d)];
  }
  s.strides[0] = stride;
}

std::unique_ptr<Spec> random_spec(Rng& rng, MaskKind kind) {
  auto r = std::make_unique<Spec>();
  MaskSpec& s = r->spec;
  s.kind = kind;
  s.ndim = 2 + static_cast<int>(below(rng, 3));
  for (int d = 0; d < s.ndim; ++d) {
    s.sizes[static_cast<size_t>(d)] = 1 + static_cast<int64_t>(below(rng, d < 2 ? 60 : 4));
  }
  if (below(rng, 2) == 0) {
    channels_last(s);
  }
  const double density = static_cast<double>(below(rng, 5)) / 4;
  switch (kind) {
    case MaskKind::dims:
      for (size_t d = 0; d < 2; ++d) {
        r->keep.push_back(random_bits(rng, static_cast<size_t>(s.sizes[d]), density));
      }
      for (size_t d = 0; d < 2; ++d) {
        if (below(rng, 3) != 0) {
          s.keep[d] = r->keep[d];
        }
      }
      break;
    case MaskKind::blocks: {
      int64_t tiles = 1;
      for (size_t d = 0; d < static_cast<size_t>(s.ndim); ++d) {
        s.block[d] = d < 2 ? 1 + static_cast<int64_t>(below(rng, 40)) : 0;
        const int64_t edge = s.block[d] == 0 ? s.sizes[d] : s.block[d];
        tiles *= (s.sizes[d] + edge - 1) / edge;
      }
      r->cells = random_bits(rng, static_cast<size_t>(tiles), density);
      s.cells = r->cells;
      break;
    }
    case MaskKind::nm: {
      s.nm_dim = 1;
      s.n = 2;
      s.m = 4;
      s.ndim = 2;
      s.strides = {};
      s.sizes[1] = 4 * (1 + static_cast<int64_t>(below(rng, 40)));
      r->cells.assign(static_cast<size_t>(elements(s)), 0);
      for (size_t g = 0; g < r->cells.size(); g += 4) {
        const size_t first = below(rng, 4);
        r->cells[g + first] = 1;
        r->cells[g + (first + 1 + below(rng, 3)) % 4] = 1;
      }
      s.cells = r->cells;
      break;
    }
    case MaskKind::ranges: {
      const auto n = static_cast<uint64_t>(elements(s));
      for (uint64_t at = below(rng, 50); at < n;) {
        const uint64_t count = 1 + below(rng, std::min<uint64_t>(n - at, 300));
        r->ranges.push_back({at, count});
        at += count + 1 + below(rng, 200);
      }
      s.ranges = r->ranges;
      break;
    }
    case MaskKind::bytes:
      r->cells = random_bits(rng, static_cast<size_t>(elements(s)), density);
      s.cells = r->cells;
      break;
  }
  return r;
}

// A bucket of `num` tensors, some dense, at odd offsets.
Layout random_layout(Rng& rng, MaskKind kind, size_t num) {
  std::vector<Segment> segments;
  uint64_t at = below(rng, 5);
  for (size_t i = 0; i < num; ++i) {
    const auto spec = random_spec(rng, kind);
    Result<CompiledMask> mask = compile(spec->spec);
    EXPECT_TRUE(mask.has_value()) << (mask ? "" : mask.error().text);
    if (!mask) {
      continue;
    }
    const uint64_t count = mask->count;
    segments.push_back({at, count, std::make_shared<const CompiledMask>(*std::move(mask)), "p"});
    at += count + below(rng, 4) * 7;
  }
  Result<Layout> layout = make_layout(std::move(segments), at + below(rng, 9));
  EXPECT_TRUE(layout.has_value());
  return layout ? *std::move(layout) : Layout{};
}

bool kept_at(const Layout& layout, uint64_t element) {
  for (const Segment& s : layout.segments) {
    if (element >= s.offset && element < s.offset + s.count) {
      return s.mask == nullptr || keeps(*s.mask, element - s.offset);
    }
  }
  ADD_FAILURE() << "element " << element << " is in no segment";
  return false;
}

class PackCompiledTest : public testing::TestWithParam<std::tuple<host::Version, MaskKind>> {
 protected:
  void SetUp() override { host::use_version(std::get<0>(GetParam())); }
  RestoreIsa restore_;
};
std::string test_name(const testing::TestParamInfo<std::tuple<host::Version, MaskKind>>& p) {
  const char* const names[] = {"dims", "blocks", "nm", "ranges", "bytes"};
  return std::string(name_of(std::get<0>(p.param))) + "_" +
         names[static_cast<size_t>(std::get<1>(p.param))];
}
INSTANTIATE_TEST_SUITE_P(Isa, PackCompiledTest,
                         testing::Combine(testing::ValuesIn(versions()),
                                          testing::Values(MaskKind::dims, MaskKind::blocks,
                                                          MaskKind::nm, MaskKind::ranges,
                                                          MaskKind::bytes)),
                         test_name);

TEST_P(PackCompiledTest, slices_carry_what_the_masks_keep) {
  Rng rng(31);
  for (int round = 0; round < 25; ++round) {
    const Layout layout = random_layout(rng, std::get<1>(GetParam()), 1 + below(rng, 4));
    std::vector<uint32_t> buffer(layout.count), want_packed, want_buffer(layout.count, 0);
    uint64_t dropped_nonzero = 0;
    for (uint64_t i = 0; i < layout.count; ++i) {
      buffer[i] = static_cast<uint32_t>(rng()) | 1;
      if (kept_at(layout, i)) {
        want_packed.push_back(buffer[i]);
        want_buffer[i] = buffer[i];
      } else if (below(rng, 4) != 0) {
        buffer[i] = 0x80000000;  // -0.0F
      } else {
        ++dropped_nonzero;
      }
    }
    ASSERT_EQ(want_packed.size(), layout.kept);

    std::vector<uint32_t> packed(layout.kept, 0xa5a5a5a5), back(layout.count, 0xa5a5a5a5);
    std::vector<float> doubled(layout.kept);
    AuditCount nonzero, reduced_nonzero;
    for (uint64_t k = 0; k == 0 || k < layout.kept;) {
      const uint64_t end = std::min(layout.kept, k + 1 + below(rng, 700));
      const Slice s = slice(layout, k, end);
      pack(layout, DType::f32, buffer.data(), s, packed.data() + k, &nonzero);
      unpack(layout, DType::f32, packed.data() + k, s, back.data());
      const void* src[] = {nullptr, want_packed.data() + k};
      reduce_pack(doubled.data() + k, DType::f32, src, 0, layout, DType::f32, buffer.data(), s,
                  Op::max, 1, &reduced_nonzero);
      if (layout.kept == 0) {
        break;
      }
      k = end;
    }
    EXPECT_EQ(packed, want_packed);
    EXPECT_EQ(back, want_buffer);
    EXPECT_EQ(nonzero.lossless, dropped_nonzero);
    EXPECT_EQ(reduced_nonzero.lossless, dropped_nonzero);
    // The larger of a value and itself is that value, NaN canonical.
    std::vector<float> own(layout.kept);
    const void* self[] = {want_packed.data()};
    reduce(own.data(), DType::f32, self, DType::f32, layout.kept, Op::sum);
    EXPECT_TRUE(layout.kept == 0 ||
                std::memcmp(own.data(), doubled.data(), layout.kept * sizeof(float)) == 0);
  }
}

}  // namespace
}  // namespace prunex::test

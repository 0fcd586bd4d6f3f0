// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_pack_shapes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/host/walk.h"
#include "kernels/mask.h"

namespace prunex {
namespace {

using Rng = std::mt19937_64;
using Flags = std::vector<uint8_t>;

// round(keep * n) of n groups, chosen at random.
Flags choose(Rng& rng, int64_t n, double keep) {
  Flags flags(static_cast<size_t>(n), 0);
  const auto kept = static_cast<long>(std::llround(keep * static_cast<double>(n)));
  std::fill(flags.begin(), flags.begin() + kept, uint8_t{1});
  std::shuffle(flags.begin(), flags.end(), rng);
  return flags;
}

struct LayerShape {
  int64_t out, in, area;  // area: elements of one kernel, 9 for 3x3
};

// Layers of real networks' size in a large buffer, small ones in a buffer for the L2 cache.
LayerShape shape_of(const std::string& pattern, bool large, size_t layer) {
  static constexpr int64_t kChannels[] = {256, 512, 1024, 2048};
  if (pattern.find("3x3") != std::string::npos) {
    return large ? LayerShape{256, 256, 9} : LayerShape{32, 64, 9};
  }
  if (pattern == "channels1x1") {
    return {large ? 512 : 16, kChannels[layer % 4], 1};
  }
  return large ? LayerShape{1024, 1024, 1} : LayerShape{128, 512, 1};
}

Result<CompiledMask> mask_of(const std::string& pattern, const LayerShape& shape, double keep,
                             Rng& rng) {
  MaskSpec spec;
  spec.ndim = shape.area == 1 ? 2 : 4;
  const int64_t edge = std::llround(std::sqrt(static_cast<double>(shape.area)));
  spec.sizes = {shape.out, shape.in, edge, edge};
  Flags out, in;
  if (pattern.starts_with("blocks")) {
    const int64_t block = std::atoll(pattern.c_str() + 6);
    spec.kind = MaskKind::blocks;
    spec.block = {block, block};
    out = choose(rng, (shape.out / block) * (shape.in / block), keep);
    spec.cells = out;
    return compile(spec);
  }
  if (pattern == "nm24") {
    spec.kind = MaskKind::nm;
    spec.n = 2;
    spec.m = 4;
    spec.nm_dim = 1;
    for (int64_t i = 0; i < shape.out * shape.in; i += 4) {
      Flags group = choose(rng, 4, 0.5);
      out.insert(out.end(), group.begin(), group.end());
    }
    spec.cells = out;
    return compile(spec);
  }
  spec.kind = MaskKind::dims;
  if (pattern.starts_with("filters")) {
    out = choose(rng, shape.out, keep);
    spec.keep[0] = out;
  }
  if (pattern.find("channels") != std::string::npos) {
    in = choose(rng, shape.in, keep);
    spec.keep[1] = in;
  }
  return compile(spec);
}

// Counts lines and runs over kept elements in ascending order.
struct Survey {
  unsigned shift;
  uint64_t lines = 0, runs = 0;
  uint64_t next_line = 0, next_element = UINT64_MAX;

  void gap(uint64_t, uint64_t) {}
  void run(uint64_t begin, uint64_t end) {
    const uint64_t first = std::max((begin << shift) / 64, next_line);
    const uint64_t past = ((end << shift) + 63) / 64;
    lines += past > first ? past - first : 0;
    next_line = std::max(past, next_line);
    runs += begin == next_element ? 0 : 1;
    next_element = end;
  }
  void rows(const host::Rows& r) {
    for (uint64_t row = 0; row < r.rows; ++row) {
      const uint64_t first = r.first + row * r.stride - r.begin;  // of column 0
      if (r.pattern == nullptr) {
        run(first + r.begin, first + r.end);
        continue;
      }
      for (uint64_t c = r.begin; c < r.end; ++c) {
        if ((r.pattern->bits[c / 64] >> (c % 64)) & 1) {
          run(first + c, first + c + 1);
        }
      }
    }
  }
};

}  // namespace

Result<PackShape> make_pack_shape(const std::string& pattern, DType type, uint64_t bytes,
                                  double keep, uint64_t seed) {
  Rng rng(seed);
  PackShape shape;
  const uint64_t target = bytes / size_of(type);
  if (pattern == "dense") {
    shape.layout = dense_layout(target);
  } else {
    const bool large = bytes >= (8u << 20);
    std::vector<Segment> segments;
    uint64_t count = 0;
    while (segments.empty() || count < target) {
      Result<CompiledMask> mask =
          mask_of(pattern, shape_of(pattern, large, segments.size()), keep, rng);
      if (!mask) {
        return tl::unexpected(mask.error());
      }
      const uint64_t layer = mask->count;
      segments.push_back(
          {count, layer, std::make_shared<const CompiledMask>(*std::move(mask)), "layer"});
      count += layer;
    }
    Result<Layout> layout = make_layout(std::move(segments), count);
    if (!layout) {
      return tl::unexpected(layout.error());
    }
    shape.layout = *std::move(layout);
  }
  Survey survey{host::log2_size(type)};
  host::Walk<Survey>(shape.layout, survey).elements(0, shape.layout.count);
  shape.kept_lines = survey.lines;
  shape.runs = survey.runs;
  return shape;
}

}  // namespace prunex

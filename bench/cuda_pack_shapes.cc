// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda_pack_shapes.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/mask.h"
#include "plugin/base/result.h"

namespace prunex::bench {
namespace {

using Keep = std::vector<uint8_t>;

Keep random_keep(std::mt19937_64& rng, int64_t n, double density, int64_t run = 1) {
  Keep keep(static_cast<size_t>(n), 0);
  std::bernoulli_distribution kept(density);
  for (int64_t i = 0; i < n; i += run) {
    const uint8_t value = i == 0 || kept(rng) ? 1 : 0;
    std::fill(keep.begin() + i, keep.begin() + std::min(i + run, n), value);
  }
  return keep;
}

std::shared_ptr<const CompiledMask> dims(std::vector<int64_t> sizes, const Keep& rows,
                                         const Keep& columns) {
  MaskSpec spec;
  spec.ndim = static_cast<int>(sizes.size());
  std::ranges::copy(sizes, spec.sizes.begin());
  spec.keep[0] = rows;
  spec.keep[1] = columns;
  return std::make_shared<const CompiledMask>(*compile(spec));
}

Layout whole(std::shared_ptr<const CompiledMask> mask) {
  const uint64_t count = mask->count;
  return *make_layout({{0, count, std::move(mask), {}, false}}, count);
}

constexpr int64_t kColumns = 8192, kBlock = 64, kWindow = 9;

Layout blocks(std::mt19937_64& rng, int64_t count, double density) {
  const int64_t rows = count / kColumns;
  const Keep cells =
      random_keep(rng, ((rows + kBlock - 1) / kBlock) * (kColumns / kBlock), density);
  MaskSpec spec;
  spec.kind = MaskKind::blocks;
  spec.ndim = 2;
  spec.sizes = {rows, kColumns};
  spec.block = {kBlock, kBlock};
  spec.cells = cells;
  return whole(std::make_shared<const CompiledMask>(*compile(spec)));
}

void add_patterns(std::mt19937_64& rng, DType type, int64_t count, double density,
                  std::vector<Subject>& out) {
  const uint64_t size = size_of(type);
  const std::string at = strf(" d=%.2f", density);
  constexpr int64_t kIn = 512;
  const int64_t filters = count / (kIn * kWindow);
  out.push_back({"filters" + at, type,
                 whole(dims({filters, kIn, kWindow}, random_keep(rng, filters, density), {})),
                 false, kIn * kWindow * size});
  out.push_back({"channels" + at, type,
                 whole(dims({filters, kIn, kWindow}, {}, random_keep(rng, kIn, density))), false,
                 kWindow * size});
  out.push_back({"both" + at, type,
                 whole(dims({filters, kIn, kWindow}, random_keep(rng, filters, density),
                            random_keep(rng, kIn, density))),
                 false, kWindow * size});
  out.push_back({"blocks" + at, type, blocks(rng, count, density), false, kBlock * size});
  for (const int64_t run : {1, 9, 64, 256}) {
    out.push_back(
        {strf("run %d", static_cast<int>(run)) + at, type,
         whole(dims({count / kColumns, kColumns}, {}, random_keep(rng, kColumns, density, run))),
         false, static_cast<uint64_t>(kColumns % run == 0 ? run : 1) * size});
  }
}

}  // namespace

std::vector<Layout> resnet50(std::mt19937_64& rng, double density, size_t element) {
  struct Shape {
    int64_t out, in, window;
  };
  std::vector<Shape> shapes{{64, 3, 49}};
  int64_t in = 64;
  const int64_t depth[] = {3, 4, 6, 3};
  for (int64_t stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int64_t block = 0; block < depth[stage]; ++block) {
      shapes.insert(shapes.end(), {{width, in, 1}, {width, width, 9}, {width * 4, width, 1}});
      if (block == 0) {
        shapes.push_back({width * 4, in, 1});
      }
      in = width * 4;
    }
  }
  shapes.push_back({1000, 2048, 1});
  std::ranges::reverse(shapes);
  std::vector<Layout> buckets;
  std::vector<Segment> segments;
  uint64_t at = 0;
  const auto close = [&] {
    if (at != 0) {
      const uint64_t count = std::exchange(at, 0);
      buckets.push_back(*make_layout(std::exchange(segments, {}), count));
    }
  };
  for (const Shape& s : shapes) {
    const auto mask = dims({s.out, s.in, s.window}, random_keep(rng, s.out, density),
                           random_keep(rng, s.in, s.in > 3 ? density : 1));
    segments.push_back({at, mask->count, mask, {}, false});
    at += mask->count;
    segments.push_back({at, static_cast<uint64_t>(2 * s.out), nullptr, {}, false});  // BatchNorm
    at += static_cast<uint64_t>(2 * s.out);
    if (at * element >= 25'000'000) {
      close();
    }
  }
  close();
  return buckets;
}

std::vector<Subject> subjects(bool quick) {
  std::mt19937_64 rng(1);
  std::vector<Subject> out;
  const int64_t count = quick ? int64_t{1} << 22 : int64_t{1} << 24;
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const double density : {0.5, 0.25}) {
      size_t b = 0;
      for (Layout& bucket : resnet50(rng, density, size_of(type))) {
        out.push_back(
            {strf("resnet50 d=%.2f #%zu", density, b++), type, std::move(bucket), true, 0});
      }
    }
    for (const double density :
         quick ? std::vector<double>{0.4} : std::vector<double>{0.1, 0.4, 0.9}) {
      add_patterns(rng, type, count, density, out);
    }
    out.push_back({"dense", type, dense_layout(static_cast<uint64_t>(count)), false,
                   static_cast<uint64_t>(count) * size_of(type)});
  }
  return out;
}

}  // namespace prunex::bench

// SPDX-License-Identifier: Apache-2.0
// Random buffers of parameters with keep vectors, as the device gets them and as a layout of
// compiled masks.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/keeps.h"
#include "kernels/layout.h"
#include "tests/kernels/pack_support.h"

namespace prunex::test {

struct KeepBucket {
  std::vector<cuda::KeepTensor> tensors;
  std::vector<uint8_t> keeps;
  Layout layout;
};

inline uint32_t random_keeps(Rng& rng, uint32_t n, std::vector<uint8_t>& keeps,
                             std::vector<uint8_t>& out) {
  constexpr double kDensities[] = {0, 0.2, 0.6, 1};
  out = random_bits(rng, n, kDensities[below(rng, 4)], 1 + below(rng, 5));
  for (uint8_t& keep : out) {
    keep = keep != 0 ? static_cast<uint8_t>(1 + below(rng, 255)) : 0;
  }
  const auto at = static_cast<uint32_t>(keeps.size());
  keeps.insert(keeps.end(), out.begin(), out.end());
  return at;
}

inline KeepBucket random_keep_bucket(Rng& rng) {
  KeepBucket bucket;
  std::vector<Segment> segments;
  uint64_t at = 0;
  for (uint64_t n = 1 + below(rng, 6); n > 0; --n) {
    cuda::KeepTensor t;
    t.offset = at;
    t.rows = static_cast<uint32_t>(1 + below(rng, below(rng, 3) == 0 ? 300 : 20));
    t.repeat = below(rng, 3) == 0 ? 9 : 1;
    t.groups = static_cast<uint32_t>(1 + below(rng, 90));
    t.inner = t.repeat == 1 ? static_cast<uint32_t>(1 + below(rng, 12)) : 1;
    t.projected = static_cast<uint32_t>(below(rng, 2));
    std::vector<uint8_t> rows, groups;
    MaskSpec spec;
    spec.kind = MaskKind::dims;
    spec.ndim = 4;
    spec.sizes = {t.rows, t.repeat, t.groups, t.inner};
    if (below(rng, 3) != 0) {
      t.row_keep = random_keeps(rng, t.rows, bucket.keeps, rows);
      spec.keep[0] = rows;
    }
    if (below(rng, 3) != 0) {
      t.group_keep = random_keeps(rng, t.groups, bucket.keeps, groups);
      spec.keep[2] = groups;
    }
    const uint64_t count = t.rows * t.columns();
    Segment segment{at, count, nullptr, {}};
    if (!rows.empty() || !groups.empty()) {
      segment.mask = std::make_shared<const CompiledMask>(*compile(spec));
      segment.projected = t.projected != 0;
    }
    segments.push_back(std::move(segment));
    bucket.tensors.push_back(t);
    at += count;
  }
  bucket.layout = *make_layout(std::move(segments), at);
  return bucket;
}

}  // namespace prunex::test

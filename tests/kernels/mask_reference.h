// SPDX-License-Identifier: Apache-2.0
// Masks with their storage, what they keep element by element, and the invariants of compiled ones.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/mask.h"

namespace prunex::testing {

using Random = std::mt19937_64;

inline uint64_t below(Random& random, uint64_t n) { return random() % n; }

// A MaskSpec that owns what it names.
struct OwnedSpec {
  MaskSpec spec;
  std::array<std::vector<uint8_t>, kMaxDims> keep;
  std::vector<uint8_t> cells;
  std::vector<KeptRange> ranges;

  // The spec with its spans set; valid while this lives unmoved.
  const MaskSpec& get() {
    for (size_t d = 0; d < kMaxDims; ++d) {
      spec.keep[d] = keep[d];
    }
    spec.cells = cells;
    spec.ranges = ranges;
    return spec;
  }
};

inline uint64_t element_count(const MaskSpec& spec) {
  uint64_t n = 1;
  for (int d = 0; d < spec.ndim; ++d) {
    n *= static_cast<uint64_t>(spec.sizes[static_cast<size_t>(d)]);
  }
  return n;
}

// Row-major strides of the dimensions taken in `order` (outermost first).
inline void set_strides(MaskSpec& spec, const std::vector<size_t>& order) {
  int64_t stride = 1;
  for (size_t k = order.size(); k-- > 0;) {
    spec.strides[order[k]] = stride;
    stride *= spec.sizes[order[k]];
  }
}

// What the spec keeps, by storage index, one element after the other.
inline std::vector<uint8_t> reference_keeps(const MaskSpec& spec) {
  const uint64_t count = element_count(spec);
  std::vector<uint8_t> kept(count, 0);
  if (spec.kind == MaskKind::ranges) {
    for (const KeptRange& range : spec.ranges) {
      std::fill_n(kept.begin() + static_cast<ptrdiff_t>(range.begin), range.count, uint8_t{1});
    }
    return kept;
  }
  const auto ndim = static_cast<size_t>(spec.ndim);
  std::array<int64_t, kMaxDims> strides = spec.strides;
  if (std::ranges::all_of(strides, [](int64_t s) { return s == 0; })) {
    int64_t stride = 1;
    for (size_t d = ndim; d-- > 0; stride *= spec.sizes[d]) {
      strides[d] = stride;
    }
  }
  std::array<int64_t, kMaxDims> index{};
  for (uint64_t e = 0; e < count; ++e) {
    uint64_t at = 0;
    for (size_t d = 0; d < ndim; ++d) {
      at += static_cast<uint64_t>(index[d] * strides[d]);
    }
    bool keep = true;
    if (spec.kind == MaskKind::dims) {
      for (size_t d = 0; d < ndim; ++d) {
        keep = keep && (spec.keep[d].empty() || spec.keep[d][static_cast<size_t>(index[d])] != 0);
      }
    } else if (spec.kind == MaskKind::blocks) {
      int64_t cell = 0;
      for (size_t d = 0; d < ndim; ++d) {
        const int64_t block = spec.block[d] == 0 ? spec.sizes[d] : spec.block[d];
        cell = cell * ((spec.sizes[d] + block - 1) / block) + index[d] / block;
      }
      keep = spec.cells[static_cast<size_t>(cell)] != 0;
    } else {
      keep = spec.cells[e] != 0;
    }
    kept[at] = keep ? 1 : 0;
    for (size_t d = ndim; d-- > 0;) {
      if (++index[d] < spec.sizes[d]) {
        break;
      }
      index[d] = 0;
    }
  }
  return kept;
}

// What mask.h promises of every compiled mask.
inline void expect_invariants(const CompiledMask& mask) {
  std::vector<uint8_t> used(mask.patterns.size(), 0);
  uint64_t end = 0, kept = 0;
  for (size_t i = 0; i < mask.panels.size(); ++i) {
    const Panel& panel = mask.panels[i];
    ASSERT_GE(panel.offset, end) << "panel " << i;
    ASSERT_GE(panel.rows, 1u);
    ASSERT_GE(panel.columns, 1u);
    ASSERT_GE(panel.row_stride, panel.columns);
    ASSERT_EQ(panel.kept_before, kept);
    ASSERT_LT(panel.pattern, static_cast<int64_t>(mask.patterns.size()));
    if (panel.pattern < 0) {
      EXPECT_EQ(panel.rows, 1u) << "full rows are one long run";
      EXPECT_FALSE(i > 0 && mask.panels[i - 1].pattern < 0 && panel.offset == end)
          << "full neighbours are one panel";
      kept += panel.columns;
    } else {
      const auto p = static_cast<size_t>(panel.pattern);
      used[p] = 1;
      ASSERT_EQ(panel.columns, mask.patterns[p].columns);
      kept += panel.rows * mask.patterns[p].kept;
    }
    end = panel.offset + (panel.rows - 1) * panel.row_stride + panel.columns;
    ASSERT_LE(end, mask.count);
  }
  EXPECT_EQ(kept, mask.kept);
  for (size_t p = 0; p < mask.patterns.size(); ++p) {
    const Pattern& pattern = mask.patterns[p];
    EXPECT_TRUE(used[p]) << "pattern " << p;
    ASSERT_EQ(pattern.bits.size(), (pattern.columns + 63) / 64);
    ASSERT_EQ(pattern.rank.size(), pattern.bits.size());
    uint64_t bits = 0;
    std::vector<KeptRange> runs;
    for (uint64_t c = 0; c < pattern.bits.size() * 64; ++c) {
      if (c % 64 == 0) {
        ASSERT_EQ(pattern.rank[c / 64], bits);
      }
      if ((pattern.bits[c / 64] >> (c % 64) & 1) != 0) {
        ASSERT_LT(c, pattern.columns) << "tail bits are zero";
        ++bits;
        if (runs.empty() || runs.back().begin + runs.back().count < c) {
          runs.push_back({c, 0});
        }
        ++runs.back().count;
      }
    }
    ASSERT_EQ(pattern.kept, bits);
    EXPECT_GT(bits, 0u);
    EXPECT_LT(bits, pattern.columns) << "full rows name no pattern";
    EXPECT_EQ(pattern.wide, bits >= 16 * runs.size());
    ASSERT_EQ(pattern.runs.size(), pattern.wide ? runs.size() : 0);
    for (size_t r = 0; r < pattern.runs.size(); ++r) {
      EXPECT_EQ(pattern.runs[r].begin, runs[r].begin);
      EXPECT_EQ(pattern.runs[r].count, runs[r].count);
    }
    for (size_t q = 0; q < p; ++q) {
      EXPECT_FALSE(mask.patterns[q].columns == pattern.columns &&
                   mask.patterns[q].bits == pattern.bits)
          << "patterns " << q << " and " << p << " are equal";
    }
  }
}

// Random bytes of which about `percent` are not zero, now and then in long runs.
inline std::vector<uint8_t> random_keep(Random& random, uint64_t n) {
  constexpr uint64_t kPercent[] = {0, 3, 25, 40, 50, 90, 97, 100};
  const uint64_t percent = kPercent[below(random, 8)];
  const uint64_t run = below(random, 3) == 0 ? 1 + below(random, 90) : 1;
  std::vector<uint8_t> keep(n);
  for (uint64_t i = 0; i < n;) {
    const bool kept = below(random, 100) < percent;
    for (uint64_t k = 0; k < run && i < n; ++k, ++i) {
      keep[i] = kept ? static_cast<uint8_t>(1 + below(random, 255)) : 0;
    }
  }
  return keep;
}

// Few x some x many, in any dimension order: long rows that are better cut once more.
inline void random_experts(Random& random, MaskSpec& spec) {
  std::vector<size_t> order{0, 1, 2};
  std::shuffle(order.begin(), order.end(), random);
  spec.ndim = 3;
  spec.sizes[order[0]] = static_cast<int64_t>(2 + below(random, 4));
  spec.sizes[order[1]] = static_cast<int64_t>(30 + below(random, 30));
  spec.sizes[order[2]] = static_cast<int64_t>(500 + below(random, 600));
  set_strides(spec, order);
}

// Many x few: rows too short to be handled one by one.
inline void random_adapter(Random& random, MaskSpec& spec) {
  spec.ndim = 2;
  spec.sizes = {static_cast<int64_t>(500 + below(random, 2000)),
                static_cast<int64_t>(1 + below(random, 20))};
}

// A random shape of at most about `limit` elements, often in another dimension order.
inline void random_shape(Random& random, MaskSpec& spec, uint64_t limit) {
  if (limit >= 100'000 && below(random, 2) == 0) {
    random_experts(random, spec);
    return;
  }
  if (limit >= 10'000 && below(random, 3) == 0) {
    random_adapter(random, spec);
    return;
  }
  spec.ndim = static_cast<int>(below(random, kMaxDims + 1));
  uint64_t room = 1 + below(random, limit);
  std::vector<size_t> order(static_cast<size_t>(spec.ndim));
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t d : order) {
    const uint64_t size = below(random, 40) == 0 ? below(random, 2) : 1 + below(random, room);
    spec.sizes[d] = static_cast<int64_t>(size);
    room = std::max<uint64_t>(1, room / std::max<uint64_t>(1, size));
  }
  std::shuffle(order.begin(), order.end(), random);
  if (below(random, 3) > 0) {
    set_strides(spec, order);
    for (const size_t d : order) {
      if (spec.sizes[d] == 1 && below(random, 2) == 0) {
        spec.strides[d] = static_cast<int64_t>(below(random, 1000));
      }
    }
  }
}

inline void random_ranges(Random& random, OwnedSpec& owned, uint64_t count) {
  const uint64_t step = 1 + below(random, 200);
  for (uint64_t at = below(random, step); at < count;) {
    const uint64_t length = std::min(below(random, step), count - at);
    owned.ranges.push_back({at, length});       // sometimes empty
    if (length > 2 && below(random, 4) == 0) {  // in two that touch
      owned.ranges.back().count = length - 1;
      owned.ranges.push_back({at + length - 1, 1});
    }
    at += length + 1 + below(random, step);
  }
}

inline OwnedSpec random_spec(Random& random, MaskKind kind, uint64_t limit) {
  OwnedSpec owned;
  MaskSpec& spec = owned.spec;
  spec.kind = kind;
  random_shape(random, spec, limit);
  if (kind == MaskKind::nm) {
    spec.ndim = std::max(spec.ndim, 1);
    spec.nm_dim = static_cast<int>(below(random, static_cast<uint64_t>(spec.ndim)));
    spec.m = static_cast<int64_t>(1 + below(random, 8));
    spec.n = static_cast<int64_t>(below(random, static_cast<uint64_t>(spec.m) + 1));
    int64_t& size = spec.sizes[static_cast<size_t>(spec.nm_dim)];
    size = (size + spec.m - 1) / spec.m * spec.m;
    std::vector<size_t> order(static_cast<size_t>(spec.ndim));
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    set_strides(spec, order);
  }
  const uint64_t count = element_count(spec);
  const auto ndim = static_cast<size_t>(spec.ndim);
  if (kind == MaskKind::dims) {
    for (size_t d = 0; d < ndim; ++d) {
      if (below(random, 2) == 0) {
        owned.keep[d] = random_keep(random, static_cast<uint64_t>(spec.sizes[d]));
      }
    }
  } else if (kind == MaskKind::blocks) {
    uint64_t cells = 1;
    for (size_t d = 0; d < ndim; ++d) {
      const auto size = static_cast<uint64_t>(spec.sizes[d]);
      spec.block[d] = static_cast<int64_t>(below(random, 2 * size + 2) / (1 + below(random, 9)));
      const uint64_t block = spec.block[d] == 0 ? size : static_cast<uint64_t>(spec.block[d]);
      cells *= size == 0 ? 0 : (size + block - 1) / block;
    }
    owned.cells = random_keep(random, cells);
  } else if (kind == MaskKind::ranges) {
    random_ranges(random, owned, count);
  } else if (kind == MaskKind::bytes) {
    owned.cells = random_keep(random, count);
  } else {
    owned.cells.resize(count);
    uint64_t inner = 1;
    for (size_t d = static_cast<size_t>(spec.nm_dim) + 1; d < ndim; ++d) {
      inner *= static_cast<uint64_t>(spec.sizes[d]);
    }
    const auto m = static_cast<uint64_t>(spec.m);
    for (uint64_t group = 0; group < count / m; ++group) {
      std::vector<uint8_t> keep(m, 0);
      std::fill_n(keep.begin(), spec.n, uint8_t{1});
      std::shuffle(keep.begin(), keep.end(), random);
      for (uint64_t k = 0; k < m; ++k) {
        owned.cells[group / inner * m * inner + k * inner + group % inner] = keep[k];
      }
    }
  }
  return owned;
}

}  // namespace prunex::testing

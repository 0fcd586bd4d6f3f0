// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/pack_support.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "kernels/pack.h"

namespace prunex::test {

uint64_t below(Rng& rng, uint64_t n) {
  return std::uniform_int_distribution<uint64_t>(0, n - 1)(rng);
}

Bits random_bits(Rng& rng, size_t n, double density, size_t run) {
  std::bernoulli_distribution keep(density);
  Bits bits(n);
  for (size_t i = 0; i < n; i += run) {
    const uint8_t bit = keep(rng) ? 1 : 0;
    std::fill(bits.begin() + static_cast<long>(i),
              bits.begin() + static_cast<long>(std::min(n, i + run)), bit);
  }
  return bits;
}

int32_t MaskBuilder::pattern(const Bits& bits, bool wide) {
  Pattern p;
  p.columns = bits.size();
  p.bits.assign((bits.size() + 63) / 64, 0);
  p.wide = wide;
  for (size_t i = 0; i < bits.size(); ++i) {
    if (i % 64 == 0) {
      p.rank.push_back(p.kept);
    }
    if (bits[i] == 0) {
      continue;
    }
    p.bits[i / 64] |= uint64_t{1} << (i % 64);
    ++p.kept;
    if (wide) {
      if (i == 0 || bits[i - 1] == 0) {
        p.runs.push_back({i, 0});
      }
      ++p.runs.back().count;
    }
  }
  mask_.patterns.push_back(std::move(p));
  return static_cast<int32_t>(mask_.patterns.size() - 1);
}

MaskBuilder& MaskBuilder::panel(uint64_t offset, uint64_t rows, uint64_t stride, uint64_t columns,
                                int32_t pattern) {
  mask_.panels.push_back({offset, rows, stride, columns, pattern, mask_.kept});
  const uint64_t per_row =
      pattern < 0 ? columns : mask_.patterns[static_cast<size_t>(pattern)].kept;
  mask_.kept += rows * per_row;
  return *this;
}

std::shared_ptr<const CompiledMask> MaskBuilder::build() {
  return std::make_shared<const CompiledMask>(std::move(mask_));
}

Bits expand_mask(const CompiledMask& mask) {
  Bits keep(mask.count, 0);
  for (const Panel& p : mask.panels) {
    for (uint64_t r = 0; r < p.rows; ++r) {
      for (uint64_t c = 0; c < p.columns; ++c) {
        const bool kept =
            p.pattern < 0 ||
            ((mask.patterns[static_cast<size_t>(p.pattern)].bits[c / 64] >> (c % 64)) & 1) != 0;
        keep[p.offset + r * p.row_stride + c] = kept ? 1 : 0;
      }
    }
  }
  return keep;
}

Case make_case(std::string name, const std::vector<std::shared_ptr<const CompiledMask>>& masks,
               const std::vector<uint64_t>& counts) {
  Case c;
  c.name = std::move(name);
  for (size_t i = 0; i < masks.size(); ++i) {
    c.layout.kept_before.push_back(c.layout.kept);
    c.layout.segments.push_back({c.layout.count, counts[i], masks[i], ""});
    const Bits keep = masks[i] ? expand_mask(*masks[i]) : Bits(counts[i], 1);
    if (masks[i] && masks[i]->count != counts[i]) {
      std::abort();
    }
    c.keep.insert(c.keep.end(), keep.begin(), keep.end());
    c.layout.count += counts[i];
    c.layout.kept += masks[i] ? masks[i]->kept : counts[i];
  }
  c.layout.kept_before.push_back(c.layout.kept);
  for (uint64_t i = 0; i < c.keep.size(); ++i) {
    if (c.keep[i] != 0) {
      c.kept.push_back(i);
    }
  }
  if (c.kept.size() != c.layout.kept) {
    std::abort();
  }
  return c;
}

namespace {

using Mask = std::shared_ptr<const CompiledMask>;

// Kept filters of `row` elements: dense panels, some of several neighbouring filters.
Mask filters(Rng& rng, uint64_t num, uint64_t row) {
  MaskBuilder b(num * row);
  const Bits keep = random_bits(rng, num, 0.4);
  for (uint64_t f = 0; f < num; ++f) {
    if (keep[f] != 0) {
      b.panel(f * row, 1, row, row, -1);
    }
  }
  return b.build();
}

Mask channels(Rng& rng, uint64_t rows, uint64_t num, uint64_t area, double density, bool wide) {
  MaskBuilder b(rows * num * area);
  const int32_t p = b.pattern(random_bits(rng, num * area, density, area), wide);
  return b.panel(0, rows, num * area, num * area, p).build();
}

Mask filters_channels(Rng& rng, uint64_t rows, uint64_t columns, uint64_t area) {
  MaskBuilder b(rows * columns);
  const int32_t p = b.pattern(random_bits(rng, columns, 0.5, area));
  const Bits keep = random_bits(rng, rows, 0.6);
  for (uint64_t r = 0; r < rows;) {
    uint64_t n = 0;
    while (r + n < rows && keep[r + n] != 0) {
      ++n;
    }
    if (n > 0) {
      b.panel(r * columns, n, columns, columns, p);
    }
    r += n + 1;
  }
  return b.build();
}

// Rows with a gap between them, the last one cut short after its columns.
Mask strided(Rng& rng, uint64_t rows, uint64_t stride, uint64_t columns, bool with_pattern,
             uint64_t lead, uint64_t trail) {
  MaskBuilder b(lead + (rows - 1) * stride + columns + trail);
  const int32_t p = with_pattern ? b.pattern(random_bits(rng, columns, 0.5)) : -1;
  return b.panel(lead, rows, stride, columns, p).build();
}

Mask two_of_four(Rng& rng, uint64_t count) {
  Bits bits(count, 0);
  for (uint64_t g = 0; g + 4 <= count; g += 4) {
    const uint64_t first = below(rng, 4);
    bits[g + first] = 1;
    bits[g + (first + 1 + below(rng, 3)) % 4] = 1;
  }
  MaskBuilder b(count);
  const int32_t p = b.pattern(bits);
  return b.panel(0, 1, count, count, p).build();
}

Mask blocks(Rng& rng, uint64_t grid_rows, uint64_t columns, uint64_t edge, bool wide) {
  MaskBuilder b(grid_rows * edge * columns);
  for (uint64_t g = 0; g < grid_rows; ++g) {
    const int32_t p = b.pattern(random_bits(rng, columns, 0.4, edge), wide);
    b.panel(g * edge * columns, edge, columns, columns, p);
  }
  return b.build();
}

Mask constant(uint64_t rows, uint64_t columns, uint8_t bit, bool wide) {
  MaskBuilder b(rows * columns);
  const int32_t p = b.pattern(Bits(columns, bit), wide);
  return b.panel(0, rows, columns, columns, p).build();
}

Case single(const char* name, Mask mask) {
  const uint64_t count = mask->count;
  return make_case(name, {std::move(mask)}, {count});
}

}  // namespace

std::vector<Case> all_cases(uint64_t seed) {
  Rng rng(seed);
  std::vector<Case> cases;
  cases.push_back(make_case("empty", {}, {}));
  cases.push_back(make_case("dense", {nullptr}, {1500}));
  cases.push_back(make_case("one element", {nullptr}, {1}));
  cases.push_back(single("filters", filters(rng, 19, 97)));
  cases.push_back(single("channels 3x3", channels(rng, 7, 31, 9, 0.4, false)));
  cases.push_back(single("channels 1x1", channels(rng, 5, 300, 1, 0.4, false)));
  cases.push_back(single("channels 1x1 odd", channels(rng, 9, 67, 1, 0.5, false)));
  cases.push_back(single("channels 1x1 long", channels(rng, 2, 5000, 1, 0.6, false)));
  cases.push_back(single("channels sparse", channels(rng, 3, 900, 1, 0.02, false)));
  cases.push_back(single("short rows 3", channels(rng, 40, 3, 1, 0.6, false)));
  cases.push_back(single("short rows 9", channels(rng, 40, 9, 1, 0.6, false)));
  cases.push_back(single("wide runs", channels(rng, 4, 9, 150, 0.5, true)));
  cases.push_back(single("wide short runs", channels(rng, 4, 19, 16, 0.5, true)));
  cases.push_back(single("wide long runs", channels(rng, 2, 5, 1300, 0.6, true)));
  cases.push_back(single("filters and channels", filters_channels(rng, 23, 279, 9)));
  cases.push_back(single("strided pattern", strided(rng, 12, 130, 71, true, 5, 17)));
  cases.push_back(single("strided dense", strided(rng, 12, 57, 23, false, 3, 0)));
  cases.push_back(single("strided long dense", strided(rng, 3, 900, 700, false, 0, 29)));
  cases.push_back(single("strided one column", strided(rng, 200, 7, 1, false, 6, 1)));
  cases.push_back(single("two of four", two_of_four(rng, 2003)));
  cases.push_back(single("blocks", blocks(rng, 3, 170, 8, false)));
  cases.push_back(single("blocks wide", blocks(rng, 2, 330, 32, true)));
  cases.push_back(single("nothing kept", MaskBuilder(777).build()));
  cases.push_back(single("nothing kept by bits", constant(3, 200, 0, false)));
  cases.push_back(single("nothing kept by runs", constant(3, 200, 0, true)));
  cases.push_back(single("everything kept by bits", constant(3, 200, 1, false)));
  cases.push_back(single("everything kept by runs", constant(3, 200, 1, true)));
  const std::vector<Mask> masks = {nullptr,
                                   channels(rng, 5, 77, 1, 0.4, false),
                                   filters_channels(rng, 9, 90, 9),
                                   nullptr,
                                   MaskBuilder(0).build(),
                                   MaskBuilder(61).build(),
                                   strided(rng, 4, 40, 33, true, 1, 2),
                                   channels(rng, 2, 6, 101, 0.5, true),
                                   nullptr};
  std::vector<uint64_t> counts;
  for (const Mask& m : masks) {
    counts.push_back(m ? m->count : 1 + below(rng, 400));
  }
  cases.push_back(make_case("bucket", masks, counts));
  return cases;
}

Slice cut(const Case& c, uint64_t begin, uint64_t end, double where) {
  const auto edge = [&](uint64_t k) -> uint64_t {
    if (k == 0) {
      return 0;
    }
    if (k == c.kept.size()) {
      return c.layout.count;
    }
    const uint64_t low = c.kept[k - 1] + 1;
    return low + static_cast<uint64_t>(where * static_cast<double>(c.kept[k] - low));
  };
  return {begin, end, edge(begin), begin == end && begin != 0 ? edge(begin) : edge(end)};
}

Fenced::Fenced(size_t bytes, At at) : bytes_(bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t inner = (bytes + page - 1) / page * page + page;
  mapped_ = inner + 2 * page;
  void* map = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) {
    std::abort();
  }
  base_ = static_cast<std::byte*>(map);
  if (mprotect(base_ + page, inner, PROT_READ | PROT_WRITE) != 0) {
    std::abort();
  }
  data_ = at == At::begin ? base_ + page : base_ + page + inner - bytes;
}

Fenced::~Fenced() { munmap(base_, mapped_); }

std::vector<host::Version> versions() {
  std::vector<host::Version> all;
  for (int i = 0; i < host::kNumVersions; ++i) {
    const auto v = static_cast<host::Version>(i);
    if (host::table_of(v) != nullptr) {
      all.push_back(v);
    }
  }
  return all;
}

const char* name_of(host::Version v) {
  static constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "avx512_vbmi2"};
  return kNames[static_cast<size_t>(v)];
}

RestoreIsa::~RestoreIsa() { (void)select_isa(Isa::automatic).has_value(); }

}  // namespace prunex::test

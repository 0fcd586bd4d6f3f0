// SPDX-License-Identifier: Apache-2.0
// Pack and unpack of one tile by one thread of those that share it. `buffer` is element 0 of the
// layout, `packed` the packed position range.kept_begin.
#pragma once
#include <type_traits>

#include "kernels/cuda/audit.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/tile.h"

namespace prunex::cuda {

// A lane takes as many elements as fill 4 bytes (or one of 8): the stores of a warp, close together
// in the packed stream, then touch each 32-byte sector with one instruction or few.
template <int kSize>
inline constexpr uint32_t kLane = kSize >= 4 ? 1 : 4 / kSize;
template <int kSize>
using LaneOf = RawOf<(kSize > 4 ? kSize : 4)>;

// A part of a tile: single elements up to the first multiple of the lane's width in the buffer,
// whole lanes, and single elements behind the last.
struct Lanes {
  uint32_t head, whole, edges;

  // Element `e` of the single ones, from the part's begin.
  [[nodiscard]] PRUNEX_HD uint32_t edge(uint32_t e, uint32_t width) const {
    return e < head ? e : whole * width + e;
  }
};
// `at`: the part's first element in the buffer.
[[nodiscard]] PRUNEX_HD Lanes lanes_of(const std::byte* at, uint32_t elements, uint32_t width,
                                       uint32_t size) {
  const uint32_t behind = address_mod(at, width * size) / size;
  const uint32_t to_first = behind == 0 ? 0 : width - behind;
  const uint32_t head = to_first < elements ? to_first : elements;
  const uint32_t whole = (elements - head) / width;
  return {head, whole, elements - whole * width};
}

// kCount lanes of a thread, `stride` lanes apart, from lane `first` on: all are located, then all
// are loaded, so that the loads are under way together.
template <int kSize, bool kAudit, uint32_t kWidth>
struct Packer {
  using Data = std::conditional_t<kWidth == 1, RawOf<kSize>, LaneOf<kSize>>;
  const Tile& tile;
  const Word* pattern;
  const std::byte* from;  // the part's first lane
  std::byte* to;          // packed position of Tile::kept
  uint32_t element;       // of the tile, the first lane's first
  Auditor* auditor;

  PRUNEX_HD void put(const Group& group, Data data, uint32_t first) const {
    std::byte* at = to + size_t{group.offset} * kSize;
    if (kWidth > 1 && group.bits == low_bits(kWidth) && address_mod(at, sizeof data) == 0) {
      store(at, data);
      return;
    }
    PRUNEX_UNROLL
    for (uint32_t j = 0; j < kWidth; ++j) {
      const auto bits = static_cast<RawOf<kSize>>(data >> (kWidth == 1 ? 0 : j * kSize * 8));
      if ((group.bits >> j & 1) != 0) {
        store(at, bits);
        at += kSize;
      } else if constexpr (kAudit) {
        auditor->dropped(tile, first + j, bits);
      }
    }
  }

  template <int kCount>
  PRUNEX_HD void pack(uint32_t first, uint32_t stride) const {
    Group group[kCount];
    uint32_t in_row[kCount];
    Data data[kCount];
    PRUNEX_UNROLL
    for (uint32_t u = 0; u < kCount; ++u) {
      group[u] =
          locate_in_row<kWidth>(tile, pattern, element + (first + u * stride) * kWidth, &in_row[u]);
    }
    if constexpr (kWidth > 1) {
      PRUNEX_UNROLL
      for (uint32_t u = 0; u < kCount; ++u) {
        locate_rest<kWidth>(tile, pattern, element + (first + u * stride) * kWidth, in_row[u],
                            &group[u]);
      }
    }
    PRUNEX_UNROLL
    for (uint32_t u = 0; u < kCount; ++u) {
      data[u] = 0;
      // A sector without kept elements is not touched, unless it is to be checked.
      if (kAudit || group[u].bits != 0) {
        data[u] = load<Data>(from + size_t{first + u * stride} * (kWidth * kSize));
      }
    }
    PRUNEX_UNROLL
    for (uint32_t u = 0; u < kCount; ++u) {
      put(group[u], data[u], element + (first + u * stride) * kWidth);
    }
  }
};

template <int kSize, bool kAudit>
PRUNEX_HD void pack_pattern(const Tile& tile, const Word* words, const Part& part,
                            const std::byte* from, std::byte* to, uint32_t thread, uint32_t threads,
                            Auditor* auditor) {
  constexpr int kUnroll = 4;
  constexpr uint32_t kWidth = kLane<kSize>;
  const Word* const pattern = pattern_of(tile, words);
  const std::byte* const start = held(from + size_t{part.begin} * kSize);
  const Lanes lanes = lanes_of(start, part.end - part.begin, kWidth, kSize);
  const Packer<kSize, kAudit, kWidth> packer{
      tile,   pattern, start + size_t{lanes.head} * kSize, held(to), part.begin + lanes.head,
      auditor};
  uint32_t lane = thread;
  for (; lane + (kUnroll - 1) * threads < lanes.whole; lane += kUnroll * threads) {
    packer.template pack<kUnroll>(lane, threads);
  }
  for (; lane < lanes.whole; lane += threads) {
    packer.template pack<1>(lane, threads);
  }
  if constexpr (kWidth > 1) {
    const Packer<kSize, kAudit, 1> single{tile, pattern, start, to, part.begin, auditor};
    for (uint32_t e = thread; e < lanes.edges; e += threads) {
      single.template pack<1>(lanes.edge(e, kWidth), 0);
    }
  }
}

// Dropped elements of which any differs from zero, 16 bytes at a time.
template <int kSize>
PRUNEX_HD void audit_dropped(const Tile& tile, const Part& part, const std::byte* from,
                             uint32_t thread, uint32_t threads, Auditor* auditor) {
  constexpr uint32_t kWidth = 16 / kSize;
  uint64_t mask = auditor->value_bits;
  PRUNEX_UNROLL
  for (int bits = kSize * 8; bits < 64; bits *= 2) {
    mask |= mask << bits;
  }
  const std::byte* const start = from + size_t{part.begin} * kSize;
  const Lanes lanes = lanes_of(start, part.end - part.begin, kWidth, kSize);
  PRUNEX_UNROLL
  for (uint32_t index = thread; index < lanes.whole; index += threads) {
    const uint32_t first = lanes.head + index * kWidth;
    const auto v = load<Vector16>(start + size_t{first} * kSize);
    if (((v.low | v.high) & mask) != 0) {
      for (uint32_t j = first; j < first + kWidth; ++j) {
        auditor->dropped(tile, part.begin + j, load<RawOf<kSize>>(start + size_t{j} * kSize));
      }
    }
  }
  for (uint32_t e = thread; e < lanes.edges; e += threads) {
    const uint32_t j = lanes.edge(e, kWidth);
    auditor->dropped(tile, part.begin + j, load<RawOf<kSize>>(start + size_t{j} * kSize));
  }
}

template <int kSize, bool kAudit>
PRUNEX_HD void pack_tile(const Tile& tile, const Word* words, const std::byte* buffer,
                         const Range& range, std::byte* packed, uint32_t thread, uint32_t threads,
                         Auditor* auditor) {
  const Part part = part_of(tile, range);
  const std::byte* from = buffer + tile.elem * kSize;
  if (part.begin >= part.end) {
    return;
  }
  if (tile.kind == TileKind::kept) {
    copy_elements<kSize>(packed + (packed_base(tile, range) + part.begin) * kSize,
                         from + size_t{part.begin} * kSize, part.end - part.begin, thread, threads);
  } else if (tile.kind == TileKind::pattern) {
    pack_pattern<kSize, kAudit>(tile, words, part, from, packed + packed_base(tile, range) * kSize,
                                thread, threads, auditor);
  } else if constexpr (kAudit) {
    audit_dropped<kSize>(tile, part, from, thread, threads, auditor);
  }
}

// 16 bytes of the buffer: kept elements from the packed stream, +0 elsewhere.
template <int kSize>
[[nodiscard]] PRUNEX_HD Vector16 gather(const Group& group, const std::byte* from) {
  uint64_t half[2] = {0, 0};
  PRUNEX_UNROLL
  for (int j = 0; j < 16 / kSize; ++j) {
    if ((group.bits >> j & 1) != 0) {
      half[j * kSize / 8] |= static_cast<uint64_t>(load<RawOf<kSize>>(from)) << (j * kSize % 8 * 8);
      from += kSize;
    }
  }
  return {half[0], half[1]};
}

template <int kSize>
PRUNEX_HD void unpack_pattern(const Tile& tile, const Word* words, const Part& part,
                              const std::byte* packed, std::byte* to, uint32_t thread,
                              uint32_t threads) {
  constexpr uint32_t kWidth = 16 / kSize;
  const Word* const pattern = pattern_of(tile, words);
  const std::byte* const base = held(packed);
  std::byte* const start = held(to + size_t{part.begin} * kSize);
  const Lanes lanes = lanes_of(start, part.end - part.begin, kWidth, kSize);
  std::byte* const whole = start + size_t{lanes.head} * kSize;
  const auto fetch = [&](uint32_t lane) {
    const Group group = locate<kWidth>(tile, pattern, part.begin + lanes.head + lane * kWidth);
    return gather<kSize>(group, base + size_t{group.offset} * kSize);
  };
  uint32_t lane = thread;
  for (; lane + threads < lanes.whole; lane += 2 * threads) {
    const Vector16 a = fetch(lane), b = fetch(lane + threads);
    store(whole + size_t{lane} * 16, a);
    store(whole + size_t{lane + threads} * 16, b);
  }
  if (lane < lanes.whole) {
    store(whole + size_t{lane} * 16, fetch(lane));
  }
  for (uint32_t e = thread; e < lanes.edges; e += threads) {
    const uint32_t element = lanes.edge(e, kWidth);
    const Group group = locate<1>(tile, pattern, part.begin + element);
    const std::byte* const at = base + size_t{group.offset} * kSize;
    store(start + size_t{element} * kSize,
          group.bits != 0 ? load<RawOf<kSize>>(at) : RawOf<kSize>{0});
  }
}

template <int kSize>
PRUNEX_HD void unpack_tile(const Tile& tile, const Word* words, const std::byte* packed,
                           const Range& range, std::byte* buffer, uint32_t thread,
                           uint32_t threads) {
  const Part part = part_of(tile, range);
  std::byte* to = buffer + tile.elem * kSize;
  if (part.begin >= part.end) {
    return;
  }
  const uint32_t n = part.end - part.begin;
  if (tile.kind == TileKind::kept) {
    copy_elements<kSize>(to + size_t{part.begin} * kSize,
                         packed + (packed_base(tile, range) + part.begin) * kSize, n, thread,
                         threads);
  } else if (tile.kind == TileKind::pattern) {
    unpack_pattern<kSize>(tile, words, part, packed + packed_base(tile, range) * kSize, to, thread,
                          threads);
  } else {
    zero_elements<kSize>(to + size_t{part.begin} * kSize, n, thread, threads);
  }
}

}  // namespace prunex::cuda

// SPDX-License-Identifier: Apache-2.0
// Pack and unpack of one tile by one thread of those that share it. `buffer` is element 0 of the
// layout, `packed` the packed position range.kept_begin.
#pragma once
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

template <int kSize>
[[nodiscard]] PRUNEX_HD uint64_t element_of(LaneOf<kSize> lane, uint32_t j) {
  if constexpr (kLane<kSize> == 1) {
    return lane;
  } else {
    return (lane >> (j * kSize * 8)) & low_bits(kSize * 8);
  }
}

// A lane's elements [begin, begin + count) of the tile: aligned to the lane's width in the buffer,
// but for the first and the last of the part.
struct Lane {
  uint32_t begin, count;
};
[[nodiscard]] PRUNEX_HD Lane lane_of(uint32_t index, uint32_t width, uint32_t head, Part part) {
  // `head`: elements by which the part's first lies behind a multiple of the width.
  const uint32_t low = index * width;
  const uint32_t begin = low < head ? part.begin : part.begin + (low - head);
  const uint32_t end = part.begin + (low + width - head);
  return {begin, (end < part.end ? end : part.end) - begin};
}

template <int kSize>
[[nodiscard]] PRUNEX_HD LaneOf<kSize> load_lane(const std::byte* p, uint32_t count) {
  if (count == kLane<kSize>) {
    return load<LaneOf<kSize>>(p);
  }
  LaneOf<kSize> lane = 0;
  for (uint32_t j = 0; j < count; ++j) {
    lane |= static_cast<LaneOf<kSize>>(load<RawOf<kSize>>(p + j * kSize)) << (j * kSize * 8);
  }
  return lane;
}

template <int kSize, bool kAudit>
PRUNEX_HD void pack_lane(const Tile& tile, const Lane& lane, const Group& group, LaneOf<kSize> data,
                         std::byte* to, Auditor* auditor) {
  constexpr uint32_t kWidth = kLane<kSize>;
  if (kWidth > 1 && group.bits == low_bits(kWidth) && address_mod(to, sizeof data) == 0) {
    store(to, data);
    return;
  }
  PRUNEX_UNROLL
  for (uint32_t j = 0; j < kWidth; ++j) {
    if (j >= lane.count) {
      break;
    }
    const uint64_t bits = element_of<kSize>(data, j);
    if ((group.bits >> j & 1) != 0) {
      store(to, static_cast<RawOf<kSize>>(bits));
      to += kSize;
    } else if constexpr (kAudit) {
      auditor->dropped(tile, lane.begin + j, bits);
    }
  }
}

template <int kSize, bool kAudit>
PRUNEX_HD void pack_pattern(const Tile& tile, const Word* words, const Part& part,
                            const std::byte* from, std::byte* packed, ptrdiff_t base,
                            uint32_t thread, uint32_t threads, Auditor* auditor) {
  constexpr int kUnroll = 4;
  constexpr uint32_t kWidth = kLane<kSize>;
  const uint32_t head = address_mod(from + size_t{part.begin} * kSize, kWidth * kSize) / kSize;
  const uint32_t lanes = (head + part.end - part.begin + kWidth - 1) / kWidth;
  for (uint32_t first = thread; first < lanes; first += kUnroll * threads) {
    Lane lane[kUnroll];
    Group group[kUnroll];
    LaneOf<kSize> data[kUnroll];
    PRUNEX_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t index = first + static_cast<uint32_t>(u) * threads;
      lane[u] = {0, 0};
      group[u] = {0, 0};
      if (index < lanes) {
        lane[u] = lane_of(index, kWidth, head, part);
        group[u] = locate(tile, words, lane[u].begin, lane[u].count);
      }
    }
    PRUNEX_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      data[u] = 0;
      // A sector without kept elements is not touched, unless it is to be checked.
      if (kAudit ? lane[u].count != 0 : group[u].bits != 0) {
        data[u] = load_lane<kSize>(from + size_t{lane[u].begin} * kSize, lane[u].count);
      }
    }
    PRUNEX_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      pack_lane<kSize, kAudit>(tile, lane[u], group[u], data[u],
                               packed + (base + group[u].offset) * kSize, auditor);
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
  const uint32_t head = address_mod(from + size_t{part.begin} * kSize, 16) / kSize;
  const uint32_t lanes = (head + part.end - part.begin + kWidth - 1) / kWidth;
  PRUNEX_UNROLL
  for (uint32_t index = thread; index < lanes; index += threads) {
    const Lane lane = lane_of(index, kWidth, head, part);
    const std::byte* at = from + size_t{lane.begin} * kSize;
    if (lane.count == kWidth) {
      const auto v = load<Vector16>(at);
      if (((v.low | v.high) & mask) == 0) {
        continue;
      }
    }
    for (uint32_t j = 0; j < lane.count; ++j) {
      auditor->dropped(tile, lane.begin + j, load<RawOf<kSize>>(at + j * kSize));
    }
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
    pack_pattern<kSize, kAudit>(tile, words, part, from, packed, packed_base(tile, range), thread,
                                threads, auditor);
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
                              const std::byte* packed, ptrdiff_t base, std::byte* to,
                              uint32_t thread, uint32_t threads) {
  constexpr int kUnroll = 2;
  constexpr uint32_t kWidth = 16 / kSize;
  const uint32_t head = address_mod(to + size_t{part.begin} * kSize, 16) / kSize;
  const uint32_t lanes = (head + part.end - part.begin + kWidth - 1) / kWidth;
  for (uint32_t first = thread; first < lanes; first += kUnroll * threads) {
    Lane lane[kUnroll];
    Vector16 data[kUnroll];
    PRUNEX_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t index = first + static_cast<uint32_t>(u) * threads;
      lane[u] = {0, 0};
      data[u] = {0, 0};
      if (index < lanes) {
        lane[u] = lane_of(index, kWidth, head, part);
        const Group group = locate(tile, words, lane[u].begin, lane[u].count);
        data[u] = gather<kSize>(group, packed + (base + group.offset) * kSize);
      }
    }
    PRUNEX_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      std::byte* at = to + size_t{lane[u].begin} * kSize;
      if (lane[u].count == kWidth) {
        store(at, data[u]);
      } else {
        for (uint32_t j = 0; j < lane[u].count; ++j) {
          const uint64_t half = j * kSize < 8 ? data[u].low : data[u].high;
          store(at + j * kSize, static_cast<RawOf<kSize>>(half >> (j * kSize % 8 * 8)));
        }
      }
    }
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
    unpack_pattern<kSize>(tile, words, part, packed, packed_base(tile, range), to, thread, threads);
  } else {
    zero_elements<kSize>(to + size_t{part.begin} * kSize, n, thread, threads);
  }
}

}  // namespace prunex::cuda

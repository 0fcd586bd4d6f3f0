// SPDX-License-Identifier: Apache-2.0
// AVX2: the shuffles that compress and expand.
#pragma once
#include <cstddef>
#include <cstdint>

namespace prunex::host {
namespace {

// For each mask of lanes, the shuffle that compresses or expands them. Expand has all bits set
// where a lane is dropped. Whole indices, not packed ones: unpacking them would cost the shuffle
// port as much as the shuffle itself, and one table (4 or 8 KiB) at a time stays in the first-level
// cache.
template <class Index, size_t kMasks, size_t kIndices, size_t kPerLane>
struct ShuffleTables {
  alignas(64) Index compress[kMasks][kIndices];
  alignas(64) Index expand[kMasks][kIndices];
};

// kPerLane indices move one lane.
template <class Index, size_t kMasks, size_t kIndices, size_t kPerLane>
constexpr ShuffleTables<Index, kMasks, kIndices, kPerLane> make_shuffle_tables() {
  ShuffleTables<Index, kMasks, kIndices, kPerLane> t{};
  for (size_t mask = 0; mask < kMasks; ++mask) {
    size_t rank = 0;
    for (size_t lane = 0; lane < kIndices / kPerLane; ++lane) {
      const bool kept = ((mask >> lane) & 1) != 0;
      for (size_t i = 0; i < kPerLane; ++i) {
        t.expand[mask][lane * kPerLane + i] =
            kept ? static_cast<Index>(rank * kPerLane + i) : static_cast<Index>(-1);
        if (kept) {
          t.compress[mask][rank * kPerLane + i] = static_cast<Index>(lane * kPerLane + i);
        }
      }
      rank += kept ? 1 : 0;
    }
  }
  return t;
}

constexpr auto kShuffles1 = make_shuffle_tables<int8_t, 256, 8, 1>();
constexpr auto kShuffles2 = make_shuffle_tables<int8_t, 256, 16, 2>();
constexpr auto kShuffles4 = make_shuffle_tables<int32_t, 256, 8, 1>();
constexpr auto kShuffles8 = make_shuffle_tables<int32_t, 16, 8, 2>();

}  // namespace
}  // namespace prunex::host

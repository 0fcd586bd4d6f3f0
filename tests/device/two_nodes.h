// SPDX-License-Identifier: Apache-2.0
// Five ranks on two uneven nodes, with a buffer each that has zeros where a striped mask keeps
// nothing.
#pragma once
#include <cstddef>
#include <vector>

#include "tests/device/device_world.h"

namespace prunex::test {

inline constexpr size_t kCount = 4000;
inline const std::vector<int> kTwoNodes = {0, 0, 1, 1, 1};
inline constexpr size_t kRanks = 5;

[[nodiscard]] inline std::vector<std::vector<float>> inputs(size_t kept, size_t of) {
  std::vector<std::vector<float>> all;
  for (size_t r = 0; r < kRanks; ++r) {
    all.push_back(striped_values(static_cast<int>(r), kCount, kept, of));
  }
  return all;
}

[[nodiscard]] inline size_t at(const DeviceRank& r) { return static_cast<size_t>(r.rank); }

}  // namespace prunex::test

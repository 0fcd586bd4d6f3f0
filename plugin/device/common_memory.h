// SPDX-License-Identifier: Apache-2.0
// Offsets within the small memory that all calls of a communicator share.
#pragma once
#include <cstddef>

namespace prunex::device {

struct CommonMemory {
  static constexpr size_t kRecord = 0;    // device: this rank's audit record
  static constexpr size_t kStatus = 64;   // device: three counts, summed over ranks
  static constexpr size_t kSticky = 128;  // device: the same, summed over replays
  static constexpr size_t kScratch = 256;
  static constexpr size_t kHostFound = 0, kHostSticky = 64, kHostRecord = 128, kHostBytes = 256;
  static constexpr size_t kCounts = 3;
};

}  // namespace prunex::device

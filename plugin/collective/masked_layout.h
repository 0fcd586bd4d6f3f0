// SPDX-License-Identifier: Apache-2.0
// A layout with what each segment's mask promises: a snapshot that a call works on, never changed.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/layout.h"

namespace prunex::collective {

enum class Contract : uint8_t { lossless = 0, project, sampled };

struct MaskedLayout {
  Layout layout;
  std::vector<Contract> contracts;  // by segment; meaningless where there is no mask
  uint64_t digest = 0;              // of masks and contracts, by segment
  // By segment, to be increased when its mask turns out to be broken; may be empty or hold nulls.
  std::vector<std::shared_ptr<std::atomic<uint64_t>>> violations;
};

// Sets Segment::projected and the digest from the contracts.
[[nodiscard]] MaskedLayout make_masked_layout(Layout layout, std::vector<Contract> contracts);

}  // namespace prunex::collective

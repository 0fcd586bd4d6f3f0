// SPDX-License-Identifier: Apache-2.0
// Mask descriptions whose arrays lie in device memory.
#pragma once
#include <array>
#include <vector>

#include "plugin/base/result.h"
#include "prunex/prunex.h"

namespace prunex::api {

// A description that the host can read; arrays that it can read anyway stay where they are.
class HostDescription {
 public:
  // Copies arrays of device memory, by a stream of its own. Errors name the array.
  [[nodiscard]] Result<> read(const prunex_mask_desc_t& desc);
  [[nodiscard]] const prunex_mask_desc_t& get() const { return desc_; }

 private:
  prunex_mask_desc_t desc_{};
  std::array<std::vector<uint8_t>, PRUNEX_MAX_DIMS> keep_;
  std::vector<uint8_t> cells_;
  std::vector<prunex_range_t> ranges_;
};

}  // namespace prunex::api

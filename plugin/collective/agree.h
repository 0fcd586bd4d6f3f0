// SPDX-License-Identifier: Apache-2.0
// Mask agreement: all ranks come to the same mask from everybody's group scores. Top-k of the
// summed scores is the exact projection onto masks that all nodes share.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "plugin/base/result.h"
#include "plugin/collective/comm.h"

namespace prunex::collective {

enum class AgreeMode : uint8_t { top_k = 0, unite, intersect };

struct AgreeSpec {
  AgreeMode mode = AgreeMode::top_k;
  Scope scope = Scope::leaders;
  double weight = 1;
  std::span<const float> scores;
  std::span<const size_t> layer_groups, layer_keep;  // equal lengths, at least one layer
  std::span<const uint8_t> incumbents;               // empty, or one per group
  double hysteresis = 0;
};

// keep_out: one byte per group. Errors name the group or layer and its value.
[[nodiscard]] Result<> agree_mask(Comm& comm, const AgreeSpec& spec, std::span<uint8_t> keep_out);

// The pure part: per layer the `keep` largest sums, incumbents' multiplied by 1 + hysteresis, ties
// to the lower index.
void select_top_k(std::span<const double> sums, const AgreeSpec& spec, std::span<uint8_t> keep_out);

}  // namespace prunex::collective

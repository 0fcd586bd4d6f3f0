// SPDX-License-Identifier: Apache-2.0
// Which port of one end is joined with which of the other, and how a message is divided among them:
// pure functions.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plugin/base/result.h"
#include "plugin/transport/verbs/wire.h"

namespace prunex::transport::verbs {

// Whether both are in one network, as far as their GIDs tell.
[[nodiscard]] bool in_one_network(const RailEnd& a, const RailEnd& b);

// Pairs of indices, by network and not by position; ports of one network in their order. Two ends
// of one port each are joined whatever their networks, which a router may connect.
using RailPairs = std::vector<std::pair<size_t, size_t>>;
[[nodiscard]] Result<RailPairs> pair_rails(std::span<const RailEnd> caller,
                                           std::span<const RailEnd> own);

// Where the stripe of lane `lane` begins; that of lane `weights.size()` is the end. In proportion
// to the weights, in multiples of 128 bytes.
[[nodiscard]] uint64_t stripe_begin(uint64_t bytes, std::span<const uint32_t> weights, size_t lane);

}  // namespace prunex::transport::verbs

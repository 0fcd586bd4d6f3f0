// SPDX-License-Identifier: Apache-2.0
// What one bare TCP connection between two nodes gets with both directions busy: the measure of how
// fast an exchange between leaders could be.
#pragma once
#include <cstdint>
#include <string>

#include "plugin/base/result.h"
#include "tools/bench_world.h"

namespace prunex::tools {

// Collective. Rank 0 and the first rank of the second node (in order of lowest rank) send each
// other bytes for about a second; rank 0 listens at the host of `root` ("host:port"). The result is
// the slower direction in GB/s (10^9 bytes), the same on all ranks. pacing_bit_s: of both ends,
// as the library's own connections have it; 0: none.
[[nodiscard]] Result<double> measure_tcp_baseline(const World& world, const std::string& root,
                                                  uint64_t pacing_bit_s);

}  // namespace prunex::tools

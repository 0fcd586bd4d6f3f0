// SPDX-License-Identifier: Apache-2.0
// The parts of a communicator's creation that need no other rank.
#pragma once
#include <cstddef>
#include <cstdint>

#include "plugin/base/config.h"
#include "plugin/collective/node_memory.h"
#include "plugin/collective/table.h"
#include "plugin/transport/choose.h"
#include "topology/facts.h"
#include "topology/world.h"

namespace prunex::collective {

[[nodiscard]] Tuning tuning_of(const Config& config);
[[nodiscard]] NodeShape shape_of(const topo::World& world, size_t node, const Tuning& tuning);
// Of everything that makes ranks choose; compared when a communicator is created.
[[nodiscard]] uint64_t choice_digest(const topo::World& world, const Tuning& tuning);
// Bytes per second at which one connection between leaders may send, so that all of a leader
// together come to the rate of its link. 0: no limit.
[[nodiscard]] uint64_t connection_rate(uint64_t link_bit_s, size_t nodes);
[[nodiscard]] Result<topo::RankFacts> own_facts(const Config& config,
                                                const transport::Rdma& rdma = {});

}  // namespace prunex::collective

// SPDX-License-Identifier: Apache-2.0
// Plans of the collectives that move data: broadcast, all-gather, reduce-scatter. They run on the
// same engine as the all-reduce; what differs is where elements lie and which messages cross.
//
// A chunk of an all-gather or reduce-scatter holds the same range of every rank's part, side by
// side, ranks of a node together: so every chunk keeps all links busy, and what a node sends or
// gets of it is one piece. A chunk of a broadcast is a range of the buffer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "plugin/collective/plan.h"

namespace prunex::collective {

// request.elements: of the whole buffer, that is of all ranks' parts.
[[nodiscard]] Plan make_move_plan(const topo::World& world, int rank, const PlanRequest& request,
                                  const Tuning& tuning);

// The elements of a chunk that a node gives to the others (broadcast, all-gather) or gets from them
// (reduce-scatter).
[[nodiscard]] Part node_part(const Plan& plan, uint64_t chunk_elements, size_t node);

// Payload bytes that this rank sends to other nodes.
[[nodiscard]] uint64_t sent_bytes(const Plan& plan, const topo::World& world, int rank);

// From a rank's buffer to a slot in shared memory, and from a slot to its buffer.
void move_in(const Plan& plan, const Chunk& chunk, int rank, const void* send, std::byte* slot);
void move_out(const Plan& plan, const Chunk& chunk, int rank, const std::byte* slot,
              const void* send, void* recv);

}  // namespace prunex::collective

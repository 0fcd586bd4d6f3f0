// SPDX-License-Identifier: Apache-2.0
// A plan is the flat list of what one rank does in one exchange. Pure: made from facts that all
// ranks share, so that every send has its matching receive on another rank. The engine runs it and
// decides nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/dtype.h"
#include "plugin/collective/call.h"
#include "plugin/collective/table.h"
#include "topology/world.h"

namespace prunex::collective {

enum class StepKind : uint8_t { send_partial, recv_partial, send_result, recv_result };

// One message between leaders of the same rail. offset, count: elements within the chunk.
struct Step {
  StepKind kind;
  uint16_t node;  // the other end
  uint64_t offset, count;
};

struct Chunk {
  uint64_t begin = 0, end = 0;                                   // of the packed stream, elements
  uint16_t rail = 0;                                             // its leader does the network part
  uint32_t first_step = 0, partial_steps = 0, result_steps = 0;  // into Plan::steps, in this order
  uint64_t own_offset = 0, own_count = 0;  // the part this node adds up, elements within the chunk
};

struct Plan {
  Algorithm algorithm = Algorithm::local;
  DType type = DType::f32, partial = DType::f32;  // of buffers; of sums before the last one
  Op op = Op::sum;
  Scope scope = Scope::world;
  uint64_t divisor = 1;
  uint64_t elements = 0;          // of the packed stream
  std::vector<int> contributors;  // local positions whose buffers are added, ascending
  std::vector<Chunk> chunks;      // at least one, maybe empty
  std::vector<Step> steps;        // empty unless this rank leads a rail
  size_t chunk_elements = 0;      // of the largest chunk

  // Of collectives that move data (plan_move.h).
  Collective collective = Collective::all_reduce;
  int root = 0;  // of a broadcast
  size_t root_node = 0;
  bool copies = false;               // nothing is added up: data go straight to the output slots
  std::vector<uint64_t> order;       // a rank's place in a chunk: by node, then by rank
  std::vector<uint64_t> node_first;  // the place of each node's first rank; the last: all ranks

  [[nodiscard]] bool moves() const {
    return collective != Collective::all_reduce && collective != Collective::barrier;
  }
};

struct PlanRequest {
  uint64_t elements = 0;  // of the packed stream
  DType type = DType::f32;
  Op op = Op::sum;
  Scope scope = Scope::world;
  uint64_t dense_elements = 0;  // what a call without masks would move, at least `elements`
  Collective collective = Collective::all_reduce;
  int root = 0;
};

[[nodiscard]] Plan make_plan(const topo::World& world, int rank, const PlanRequest& request,
                             const Tuning& tuning);

[[nodiscard]] uint64_t divisor_of(const topo::World& world, int rank, const PlanRequest& request);

// The shard of a chunk that one local rank reduces. Cut at multiples of 64 bytes; a small chunk is
// the leader's alone.
struct Part {
  uint64_t offset = 0, count = 0;
};
[[nodiscard]] Part shard_of(uint64_t chunk_elements, size_t local_size, size_t local,
                            size_t leader_local, size_t element_bytes, const Tuning& tuning);

// The part of a chunk that a node adds up in Algorithm::scatter.
[[nodiscard]] Part part_of(uint64_t chunk_elements, size_t nodes, size_t node,
                           size_t element_bytes);

// For people and golden tests.
[[nodiscard]] std::string dump(const Plan& plan, const topo::World& world, int rank);

}  // namespace prunex::collective

// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/plan.h"

#include <algorithm>

#include "plugin/collective/plan_move.h"

namespace prunex::collective {
namespace {

// Cuts `total` into `pieces` at multiples of `grain` elements; earlier pieces are the larger ones.
Part cut(uint64_t total, uint64_t pieces, uint64_t index, uint64_t grain) {
  const uint64_t grains = (total + grain - 1) / grain;
  const uint64_t base = grains / pieces;
  const uint64_t extra = grains % pieces;
  const uint64_t first = index * base + std::min(index, extra);
  const uint64_t last = first + base + (index < extra ? 1 : 0);
  const uint64_t begin = std::min(first * grain, total);
  const uint64_t end = std::min(last * grain, total);
  return {begin, end - begin};
}

}  // namespace

uint64_t divisor_of(const topo::World& world, int rank, const PlanRequest& request) {
  if (request.op != Op::avg) {
    return 1;
  }
  switch (request.scope) {
    case Scope::world:
      return static_cast<uint64_t>(world.size);
    case Scope::node:
      return world.nodes[static_cast<size_t>(world.node_of[static_cast<size_t>(rank)])]
          .ranks.size();
    case Scope::leaders:
      return world.nodes.size();
  }
  return 1;
}

namespace {

int led_rail(const topo::Node& node, int rank, size_t chunk_rail) {
  return chunk_rail < node.leaders.size() && node.leaders[chunk_rail].rank == rank ? 1 : 0;
}

class Builder {
 public:
  Builder(Plan& plan, size_t nodes, size_t self) : plan_(plan), nodes_(nodes), self_(self) {}

  void add_steps(Chunk& chunk) {
    chunk.first_step = static_cast<uint32_t>(plan_.steps.size());
    const uint64_t n = chunk.end - chunk.begin;
    if (plan_.algorithm == Algorithm::exchange) {
      // Peers in staggered order, so that not everybody starts with node 0.
      for (size_t d = 1; d < nodes_; ++d) {
        add(StepKind::send_partial, (self_ + d) % nodes_, {0, n});
        add(StepKind::recv_partial, (self_ + nodes_ - d) % nodes_, {0, n});
      }
      chunk.partial_steps = static_cast<uint32_t>(plan_.steps.size()) - chunk.first_step;
    } else if (plan_.algorithm == Algorithm::scatter) {
      const size_t bytes = size_of(plan_.type);
      const Part own = part_of(n, nodes_, self_, bytes);
      for (size_t d = 1; d < nodes_; ++d) {
        const size_t to = (self_ + d) % nodes_;
        add(StepKind::send_partial, to, part_of(n, nodes_, to, bytes));
        add(StepKind::recv_partial, (self_ + nodes_ - d) % nodes_, own);
      }
      chunk.partial_steps = static_cast<uint32_t>(plan_.steps.size()) - chunk.first_step;
      for (size_t d = 1; d < nodes_; ++d) {
        const size_t from = (self_ + nodes_ - d) % nodes_;
        add(StepKind::send_result, (self_ + d) % nodes_, own);
        add(StepKind::recv_result, from, part_of(n, nodes_, from, bytes));
      }
      chunk.result_steps =
          static_cast<uint32_t>(plan_.steps.size()) - chunk.first_step - chunk.partial_steps;
    }
  }

 private:
  // A message of nothing is not sent; both ends know its length, so both leave it out.
  void add(StepKind kind, size_t node, Part part) {
    if (part.count > 0) {
      plan_.steps.push_back({kind, static_cast<uint16_t>(node), part.offset, part.count});
    }
  }
  Plan& plan_;
  size_t nodes_, self_;
};

}  // namespace

Part shard_of(uint64_t chunk_elements, size_t local_size, size_t local, size_t leader_local,
              size_t element_bytes, const Tuning& tuning) {
  if (local_size == 1) {
    return {0, chunk_elements};
  }
  if (chunk_elements * element_bytes <= tuning.alone_bytes) {
    return local == leader_local ? Part{0, chunk_elements} : Part{};
  }
  return cut(chunk_elements, local_size, local, 64 / element_bytes);
}

Part part_of(uint64_t chunk_elements, size_t nodes, size_t node, size_t element_bytes) {
  return cut(chunk_elements, nodes, node, 64 / element_bytes);
}

Plan make_plan(const topo::World& world, int rank, const PlanRequest& request,
               const Tuning& tuning) {
  if (request.collective != Collective::all_reduce && request.collective != Collective::barrier) {
    return make_move_plan(world, rank, request, tuning);
  }
  Plan plan;
  plan.collective = request.collective;
  plan.type = request.type;
  plan.partial = partial_type(request.type, request.op);
  plan.op = request.op;
  plan.scope = request.scope;
  plan.elements = request.elements;
  plan.divisor = divisor_of(world, rank, request);

  const auto self = static_cast<size_t>(world.node_of[static_cast<size_t>(rank)]);
  const topo::Node& node = world.nodes[self];
  if (request.scope == Scope::leaders) {
    plan.contributors = {world.local_of[static_cast<size_t>(node.leaders[0].rank)]};
  } else {
    for (size_t i = 0; i < node.ranks.size(); ++i) {
      plan.contributors.push_back(static_cast<int>(i));
    }
  }
  const size_t nodes = request.scope == Scope::node ? 1 : world.nodes.size();
  const Traffic traffic{nodes, size_of(plan.partial), size_of(plan.type)};
  const size_t wide = std::max(traffic.partial_bytes, traffic.result_bytes);
  const size_t bytes = request.elements * wide;
  plan.algorithm = choose_algorithm(tuning, traffic, request.elements,
                                    std::max(request.elements, request.dense_elements));

  uint64_t chunk_elements = request.elements;
  if (plan.algorithm != Algorithm::inlined) {
    chunk_elements = std::max<uint64_t>(64, choose_chunk_bytes(tuning, bytes) / wide / 64 * 64);
  }
  const auto rails = static_cast<uint64_t>(world.rails);
  Builder builder(plan, nodes, self);
  uint64_t begin = 0;
  do {
    Chunk chunk;
    chunk.begin = begin;
    chunk.end = std::min(request.elements, begin + chunk_elements);
    chunk.rail = static_cast<uint16_t>(plan.chunks.size() % rails);
    const uint64_t n = chunk.end - chunk.begin;
    const Part own = plan.algorithm == Algorithm::scatter
                         ? part_of(n, nodes, self, size_of(plan.type))
                         : Part{0, n};
    chunk.own_offset = own.offset;
    chunk.own_count = own.count;
    if (led_rail(node, rank, chunk.rail) != 0) {
      builder.add_steps(chunk);
    }
    plan.chunks.push_back(chunk);
    plan.chunk_elements = std::max<size_t>(plan.chunk_elements, n);
    begin = chunk.end;
  } while (begin < request.elements);
  return plan;
}

std::string dump(const Plan& plan, const topo::World& world, int rank) {
  constexpr const char* kScopes[] = {"world", "node", "leaders"};
  constexpr const char* kSteps[] = {"send partial to", "recv partial from", "send result to",
                                    "recv result from"};
  std::string out = strf(
      "plan rank %d of %d, node %d of %zu: %s %s %s, %llu elements, partial %s, divisor %llu, "
      "scope %s\n",
      rank, world.size, world.node_of[static_cast<size_t>(rank)], world.nodes.size(),
      name_of(plan.algorithm), name_of(plan.op), name_of(plan.type),
      static_cast<unsigned long long>(plan.elements), name_of(plan.partial),
      static_cast<unsigned long long>(plan.divisor), kScopes[static_cast<size_t>(plan.scope)]);
  for (size_t c = 0; c < plan.chunks.size(); ++c) {
    const Chunk& chunk = plan.chunks[c];
    out += strf("chunk %zu [%llu,%llu) rail %u adds [%llu,+%llu)\n", c,
                static_cast<unsigned long long>(chunk.begin),
                static_cast<unsigned long long>(chunk.end), chunk.rail,
                static_cast<unsigned long long>(chunk.own_offset),
                static_cast<unsigned long long>(chunk.own_count));
    const uint32_t end = chunk.first_step + chunk.partial_steps + chunk.result_steps;
    for (uint32_t s = chunk.first_step; s < end; ++s) {
      const Step& step = plan.steps[s];
      out += strf("  %s node %u [%llu,+%llu)\n", kSteps[static_cast<size_t>(step.kind)], step.node,
                  static_cast<unsigned long long>(step.offset),
                  static_cast<unsigned long long>(step.count));
    }
  }
  return out;
}

}  // namespace prunex::collective

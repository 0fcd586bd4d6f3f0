// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/plan_move.h"

#include <algorithm>
#include <cstring>

#include "kernels/pack.h"

namespace prunex::collective {
namespace {

Algorithm choose(const Tuning& t, const Plan& plan, size_t nodes) {
  if (nodes == 1) {
    return Algorithm::local;
  }
  const uint64_t bytes = plan.elements * size_of(plan.partial);
  if (plan.collective == Collective::reduce_scatter) {
    // Inlined, everybody gets everything: only where that is next to nothing.
    return bytes * (nodes - 1) <= t.inline_bytes / 4 ? Algorithm::inlined : Algorithm::scatter;
  }
  if (bytes <= t.inline_bytes && bytes * (nodes - 1) <= 16 * t.inline_bytes) {
    return Algorithm::inlined;
  }
  // Handed on, a chunk comes later to the last node, and the root's link carries it only once.
  const bool hand_on = plan.collective == Collective::broadcast && nodes > 2 &&
                       bytes * (nodes - 1) > t.exchange_bytes;
  return hand_on ? Algorithm::chain : Algorithm::direct;
}

void set_order(Plan& plan, const topo::World& world) {
  plan.order.resize(static_cast<size_t>(world.size));
  uint64_t place = 0;
  for (const topo::Node& node : world.nodes) {
    plan.node_first.push_back(place);
    for (const int r : node.ranks) {
      plan.order[static_cast<size_t>(r)] = place++;
    }
  }
  plan.node_first.push_back(place);
}

// A message of nothing is not sent; both ends know its length, so both leave it out.
void add(Plan& plan, StepKind kind, size_t node, Part part) {
  if (part.count > 0) {
    plan.steps.push_back({kind, static_cast<uint16_t>(node), part.offset, part.count});
  }
}

void add_steps(Plan& plan, Chunk& chunk, size_t nodes, size_t self) {
  const uint64_t n = chunk.end - chunk.begin;
  const Part own = node_part(plan, n, self);
  chunk.first_step = static_cast<uint32_t>(plan.steps.size());
  if (plan.algorithm == Algorithm::chain) {
    const size_t place = (self + nodes - plan.root_node) % nodes;
    if (place > 0) {
      add(plan, StepKind::recv_result, (self + nodes - 1) % nodes, {0, n});
    }
    if (place + 1 < nodes) {
      add(plan, StepKind::send_result, (self + 1) % nodes, {0, n});
    }
  }
  // Peers in staggered order, so that not everybody starts with node 0.
  for (size_t d = 1; d < nodes; ++d) {
    const size_t to = (self + d) % nodes, from = (self + nodes - d) % nodes;
    if (plan.algorithm == Algorithm::direct) {
      add(plan, StepKind::send_result, to, own);
      add(plan, StepKind::recv_result, from, node_part(plan, n, from));
    } else if (plan.algorithm == Algorithm::scatter) {
      add(plan, StepKind::send_partial, to, node_part(plan, n, to));
      add(plan, StepKind::recv_partial, from, own);
    }
  }
  const uint32_t added = static_cast<uint32_t>(plan.steps.size()) - chunk.first_step;
  (plan.copies ? chunk.result_steps : chunk.partial_steps) = added;
}

struct Piece {
  const std::byte* from;
  std::byte* to;
  size_t bytes;
};

void copy(const Piece& p) {
  if (p.bytes > 0 && p.from != p.to) {
    std::memcpy(p.to, p.from, p.bytes);
  }
}

// Where a rank's part of a chunk lies: in the slot, in a buffer of one part, in one of all parts.
// Bytes.
struct Place {
  size_t slot, alone, among, bytes;
};

Place place_of(const Plan& plan, const Chunk& chunk, size_t rank) {
  const size_t e = size_of(plan.type);
  const uint64_t ranks = plan.order.size();
  const uint64_t first = chunk.begin / ranks, count = (chunk.end - chunk.begin) / ranks;
  return {plan.order[rank] * count * e, first * e, (rank * (plan.elements / ranks) + first) * e,
          count * e};
}

}  // namespace

Part node_part(const Plan& plan, uint64_t chunk_elements, size_t node) {
  if (plan.collective == Collective::broadcast) {
    return node == plan.root_node ? Part{0, chunk_elements} : Part{};
  }
  const uint64_t each = chunk_elements / plan.order.size();
  return {plan.node_first[node] * each, (plan.node_first[node + 1] - plan.node_first[node]) * each};
}

Plan make_move_plan(const topo::World& world, int rank, const PlanRequest& request,
                    const Tuning& tuning) {
  Plan plan;
  plan.collective = request.collective;
  plan.root = request.root;
  plan.root_node = static_cast<size_t>(world.node_of[static_cast<size_t>(request.root)]);
  plan.copies = request.collective != Collective::reduce_scatter;
  plan.type = request.type;
  plan.partial = plan.copies ? request.type : partial_type(request.type, request.op);
  plan.op = request.op;
  plan.elements = request.elements;
  plan.divisor = plan.copies ? 1 : divisor_of(world, rank, request);
  const size_t nodes = world.nodes.size();
  const auto self = static_cast<size_t>(world.node_of[static_cast<size_t>(rank)]);
  const topo::Node& node = world.nodes[self];
  uint64_t grain = 64;  // a chunk is a multiple of it
  if (plan.collective != Collective::broadcast) {
    set_order(plan, world);
    grain = plan.order.size();
  }
  for (size_t i = 0; !plan.copies && i < node.ranks.size(); ++i) {
    plan.contributors.push_back(static_cast<int>(i));
  }
  plan.algorithm = choose(tuning, plan, nodes);
  uint64_t chunk_elements = request.elements;
  if (plan.algorithm != Algorithm::inlined) {
    const size_t wide = std::max(size_of(plan.type), size_of(plan.partial));
    const uint64_t fit = choose_chunk_bytes(tuning, request.elements * wide) / wide;
    chunk_elements = std::max<uint64_t>(1, fit / grain) * grain;
  }
  uint64_t begin = 0;
  do {
    Chunk chunk;
    chunk.begin = begin;
    chunk.end = std::min(request.elements, begin + chunk_elements);
    chunk.rail = static_cast<uint16_t>(plan.chunks.size() % static_cast<size_t>(world.rails));
    const uint64_t n = chunk.end - chunk.begin;
    if (plan.algorithm == Algorithm::scatter) {
      const Part own = node_part(plan, n, self);
      chunk.own_offset = own.offset;
      chunk.own_count = own.count;
    }
    if (chunk.rail < node.leaders.size() && node.leaders[chunk.rail].rank == rank) {
      add_steps(plan, chunk, nodes, self);
    }
    plan.chunks.push_back(chunk);
    plan.chunk_elements = std::max<size_t>(plan.chunk_elements, n);
    begin = chunk.end;
  } while (begin < request.elements);
  return plan;
}

uint64_t sent_bytes(const Plan& plan, const topo::World& world, int rank) {
  const auto self = static_cast<size_t>(world.node_of[static_cast<size_t>(rank)]);
  if (plan.algorithm == Algorithm::inlined) {
    const uint64_t own = plan.copies ? node_part(plan, plan.elements, self).count : plan.elements;
    return world.nodes[self].leaders[0].rank == rank
               ? own * size_of(plan.partial) * (world.nodes.size() - 1)
               : 0;
  }
  uint64_t bytes = 0;
  for (const Step& step : plan.steps) {
    bytes += step.kind == StepKind::send_partial  ? step.count * size_of(plan.partial)
             : step.kind == StepKind::send_result ? step.count * size_of(plan.type)
                                                  : 0;
  }
  return bytes;
}

void move_in(const Plan& plan, const Chunk& chunk, int rank, const void* send, std::byte* slot) {
  const auto* from = static_cast<const std::byte*>(send);
  const auto self = static_cast<size_t>(rank);
  if (plan.collective == Collective::broadcast) {
    if (rank == plan.root) {
      const size_t e = size_of(plan.type);
      copy({from + chunk.begin * e, slot, (chunk.end - chunk.begin) * e});
    }
  } else if (plan.collective == Collective::all_gather) {
    const Place p = place_of(plan, chunk, self);
    copy({from + p.alone, slot + p.slot, p.bytes});
  } else {
    for (size_t r = 0; r < plan.order.size(); ++r) {
      const Place p = place_of(plan, chunk, r);
      copy({from + p.among, slot + p.slot, p.bytes});
    }
  }
}

void move_out(const Plan& plan, const Chunk& chunk, int rank, const std::byte* slot,
              const void* send, void* recv) {
  auto* to = static_cast<std::byte*>(recv);
  const auto self = static_cast<size_t>(rank);
  if (plan.collective == Collective::broadcast) {
    if (rank != plan.root) {
      const size_t e = size_of(plan.type);
      copy({slot, to + chunk.begin * e, (chunk.end - chunk.begin) * e});
    }
  } else if (plan.collective == Collective::reduce_scatter) {
    const Place p = place_of(plan, chunk, self);
    copy({slot + p.slot, to + p.alone, p.bytes});
  } else {
    for (size_t r = 0; r < plan.order.size(); ++r) {
      const Place p = place_of(plan, chunk, r);
      // In place the own part is where it belongs.
      const bool there = r == self && to + p.among == static_cast<const std::byte*>(send) + p.alone;
      copy({slot + p.slot, to + p.among, there ? 0 : p.bytes});
    }
  }
}

}  // namespace prunex::collective

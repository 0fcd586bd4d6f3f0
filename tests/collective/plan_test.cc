// SPDX-License-Identifier: Apache-2.0
// Plans: every send has its receive, parts tile the chunks, and their text is pinned.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

#include "plugin/collective/comm_setup.h"
#include "plugin/collective/plan.h"

namespace prunex::collective {
namespace {

topo::World world_of(const std::vector<int>& node_of, int rails = 1) {
  std::vector<topo::RankFacts> facts;
  for (size_t r = 0; r < node_of.size(); ++r) {
    topo::RankFacts f;
    f.rank = static_cast<int>(r);
    f.node_id = f.host = "node" + std::to_string(node_of[r]);
    for (int n = 0; n < rails; ++n) {
      topo::NicFacts nic;
      nic.name = "eth" + std::to_string(n);
      nic.speed_mbps = 1000;
      f.nics.push_back(nic);
    }
    facts.push_back(f);
  }
  auto world = topo::make_world(facts);
  EXPECT_TRUE(world) << world.error().text;
  return *world;
}

// (from rank, to rank, kind of channel) -> sequence of element counts: both ends must have the
// same.
void check_matching(const topo::World& world, const PlanRequest& request, const Tuning& tuning) {
  using Key = std::tuple<int, int, bool>;
  std::map<Key, std::vector<uint64_t>> sent, received;
  for (int rank = 0; rank < world.size; ++rank) {
    const Plan plan = make_plan(world, rank, request, tuning);
    uint64_t at = 0;
    for (const Chunk& chunk : plan.chunks) {
      EXPECT_EQ(chunk.begin, at);
      EXPECT_GE(chunk.end, chunk.begin);
      at = chunk.end;
      const auto end = chunk.first_step + chunk.partial_steps + chunk.result_steps;
      for (uint32_t s = chunk.first_step; s < end; ++s) {
        const Step& step = plan.steps[s];
        EXPECT_LE(step.offset + step.count, chunk.end - chunk.begin);
        const int other = world.nodes[step.node].leaders[chunk.rail].rank;
        switch (step.kind) {
          case StepKind::send_partial:
            sent[{rank, other, true}].push_back(step.count);
            break;
          case StepKind::recv_partial:
            received[{other, rank, true}].push_back(step.count);
            break;
          case StepKind::send_result:
            sent[{rank, other, false}].push_back(step.count);
            break;
          case StepKind::recv_result:
            received[{other, rank, false}].push_back(step.count);
            break;
        }
      }
    }
    EXPECT_EQ(at, request.elements);
  }
  EXPECT_EQ(sent, received);
}

// All that a leader sends in a call, over the rates of the connections it goes by, is never less
// than the same bytes over the link's rate, and equal for the calls that a link matters to.
TEST(Pacing, connections_of_a_leader_come_to_the_rate_of_its_link) {
  EXPECT_EQ(connection_rate(0, 2), 0u);
  EXPECT_EQ(connection_rate(8'000'000, 1), 0u);
  constexpr uint64_t kLink = 8'000'000'000, kBytes = kLink / 8, kElements = 240'000'000;
  for (const size_t nodes : std::initializer_list<size_t>{2, 3, 4, 5, 8}) {
    const Traffic traffic{nodes, 4, 4};
    const Algorithm a = choose_algorithm(Tuning{}, traffic, kElements);
    const uint64_t connections = (nodes - 1) * (a == Algorithm::scatter ? 2 : 1);
    const double all = static_cast<double>(wire_bytes(a, traffic, kElements));
    const double paced =
        all / static_cast<double>(connections) / static_cast<double>(connection_rate(kLink, nodes));
    EXPECT_NEAR(paced, all / static_cast<double>(kBytes), 1e-6) << nodes;
  }
}

TEST(Plan, EverySendHasItsReceive) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> node_of(1 + random() % 9);
    const int nodes = 1 + static_cast<int>(random() % 4);
    for (int& n : node_of) {
      n = static_cast<int>(random() % static_cast<unsigned>(nodes));
    }
    const topo::World world = world_of(node_of, 1 + static_cast<int>(random() % 2));
    PlanRequest request;
    const uint64_t sizes[] = {0, 1, 63, 64, 65, 1000, 99'999, 1'000'003};
    request.elements = sizes[random() % std::size(sizes)];
    request.type = static_cast<DType>(random() % kNumDTypes);
    request.op = static_cast<Op>(random() % kNumOps);
    request.scope = static_cast<Scope>(random() % 3);
    Tuning tuning;
    tuning.chunk_bytes = size_t{4096} << random() % 7;
    tuning.forced = random() % 2 == 0 ? -1 : static_cast<int>(1 + random() % 3);
    check_matching(world, request, tuning);
  }
}

// Collectives that move data, on one and two rails: matching, within the slots, nothing twice.
TEST(Plan, MovesHaveTheirReceivesAndCoverEveryNode) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> node_of(1 + random() % 9);
    const int nodes = 1 + static_cast<int>(random() % 4);
    for (int& n : node_of) {
      n = static_cast<int>(random() % static_cast<unsigned>(nodes));
    }
    const topo::World world = world_of(node_of, 1 + static_cast<int>(random() % 2));
    const auto ranks = static_cast<uint64_t>(world.size);
    PlanRequest request;
    const uint64_t sizes[] = {0, 1, 63, 64, 65, 1000, 99'999, 300'003};
    request.elements = ranks * sizes[random() % std::size(sizes)];
    constexpr Collective kMoves[] = {Collective::broadcast, Collective::all_gather,
                                     Collective::reduce_scatter};
    request.collective = kMoves[random() % 3];
    const bool adds = request.collective == Collective::reduce_scatter;
    request.type = adds ? static_cast<DType>(random() % kNumDTypes) : DType::u8;
    request.op = adds ? static_cast<Op>(random() % kNumOps) : Op::sum;
    request.root = static_cast<int>(random() % ranks);
    Tuning tuning;
    tuning.chunk_bytes = size_t{4096} << random() % 7;
    check_matching(world, request, tuning);
    const size_t slot = std::max(tuning.chunk_bytes, Tuning::kInlineLimit);
    std::map<size_t, uint64_t> got;  // by node: elements of results that came from others
    for (int rank = 0; rank < world.size; ++rank) {
      const Plan plan = make_plan(world, rank, request, tuning);
      EXPECT_LE(plan.chunk_elements * std::max(size_of(plan.type), size_of(plan.partial)), slot);
      for (const Step& step : plan.steps) {
        got[static_cast<size_t>(world.node_of[static_cast<size_t>(rank)])] +=
            step.kind == StepKind::recv_result ? step.count : 0;
      }
      if (plan.algorithm != Algorithm::direct && plan.algorithm != Algorithm::chain) {
        got.clear();  // nothing of the kind
        break;
      }
    }
    const auto root_node = static_cast<size_t>(world.node_of[static_cast<size_t>(request.root)]);
    for (const auto& [node, elements] : got) {
      const uint64_t own = request.collective == Collective::broadcast
                               ? (node == root_node ? request.elements : 0)
                               : request.elements / ranks * world.nodes[node].ranks.size();
      EXPECT_EQ(elements, request.elements - own) << "node " << node;
    }
  }
}

TEST(Plan, ShardsAndPartsTileTheChunk) {
  const Tuning tuning;
  for (const uint64_t n :
       {uint64_t{0}, uint64_t{1}, uint64_t{17}, uint64_t{5000}, uint64_t{65536}}) {
    for (size_t pieces = 1; pieces <= 9; ++pieces) {
      for (const size_t bytes : {size_t{1}, size_t{2}, size_t{4}, size_t{8}}) {
        uint64_t shards = 0, parts = 0;
        for (size_t i = 0; i < pieces; ++i) {
          const Part shard = shard_of(n, pieces, i, 0, bytes, tuning);
          EXPECT_TRUE(shard.count == 0 || shard.offset == shards);
          shards += shard.count;
          const Part part = part_of(n, pieces, i, bytes);
          EXPECT_TRUE(part.count == 0 || part.offset == parts);
          parts += part.count;
        }
        EXPECT_EQ(shards, n);
        EXPECT_EQ(parts, n);
      }
    }
  }
}

TEST(Plan, ContributorsFollowTheScope) {
  const topo::World world = world_of({0, 0, 1});
  PlanRequest request{1000, DType::f32, Op::avg, Scope::leaders};
  EXPECT_EQ(make_plan(world, 1, request, {}).contributors, std::vector<int>{0});
  EXPECT_EQ(make_plan(world, 1, request, {}).divisor, 2u);
  request.scope = Scope::world;
  EXPECT_EQ(make_plan(world, 1, request, {}).contributors, (std::vector<int>{0, 1}));
  EXPECT_EQ(make_plan(world, 1, request, {}).divisor, 3u);
  request.scope = Scope::node;
  EXPECT_EQ(make_plan(world, 2, request, {}).divisor, 1u);
  EXPECT_EQ(make_plan(world, 0, request, {}).algorithm, Algorithm::local);
}

TEST(Plan, GoldenExchangeOfTwoNodes) {
  const topo::World world = world_of({0, 0, 1, 1});
  Tuning tuning;
  tuning.chunk_bytes = 65536;
  const Plan plan = make_plan(world, 2, {20000, DType::f32, Op::sum, Scope::world}, tuning);
  EXPECT_EQ(dump(plan, world, 2),
            "plan rank 2 of 4, node 1 of 2: exchange sum f32, 20000 elements, partial f32, divisor "
            "1, scope world\n"
            "chunk 0 [0,16384) rail 0 adds [0,+16384)\n"
            "  send partial to node 0 [0,+16384)\n"
            "  recv partial from node 0 [0,+16384)\n"
            "chunk 1 [16384,20000) rail 0 adds [0,+3616)\n"
            "  send partial to node 0 [0,+3616)\n"
            "  recv partial from node 0 [0,+3616)\n");
  // Whoever leads nothing sends nothing.
  EXPECT_EQ(dump(make_plan(world, 3, {20000, DType::f32, Op::sum, Scope::world}, tuning), world, 3),
            "plan rank 3 of 4, node 1 of 2: exchange sum f32, 20000 elements, partial f32, divisor "
            "1, scope world\n"
            "chunk 0 [0,16384) rail 0 adds [0,+16384)\n"
            "chunk 1 [16384,20000) rail 0 adds [0,+3616)\n");
}

TEST(Plan, GoldenScatterOfThreeNodes) {
  const topo::World world = world_of({0, 1, 2});
  const Plan plan = make_plan(world, 1, {30000, DType::f16, Op::avg, Scope::world}, {});
  EXPECT_EQ(dump(plan, world, 1),
            "plan rank 1 of 3, node 1 of 3: scatter avg f16, 30000 elements, partial f32, divisor "
            "3, scope world\n"
            "chunk 0 [0,16384) rail 0 adds [5472,+5472)\n"
            "  send partial to node 2 [10944,+5440)\n"
            "  recv partial from node 0 [5472,+5472)\n"
            "  send partial to node 0 [0,+5472)\n"
            "  recv partial from node 2 [5472,+5472)\n"
            "  send result to node 2 [5472,+5472)\n"
            "  recv result from node 0 [0,+5472)\n"
            "  send result to node 0 [5472,+5472)\n"
            "  recv result from node 2 [10944,+5440)\n"
            "chunk 1 [16384,30000) rail 0 adds [4544,+4544)\n"
            "  send partial to node 2 [9088,+4528)\n"
            "  recv partial from node 0 [4544,+4544)\n"
            "  send partial to node 0 [0,+4544)\n"
            "  recv partial from node 2 [4544,+4544)\n"
            "  send result to node 2 [4544,+4544)\n"
            "  recv result from node 0 [0,+4544)\n"
            "  send result to node 0 [4544,+4544)\n"
            "  recv result from node 2 [9088,+4528)\n");
}

}  // namespace
}  // namespace prunex::collective

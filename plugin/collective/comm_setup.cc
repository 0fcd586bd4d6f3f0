// SPDX-License-Identifier: Apache-2.0
#include "plugin/collective/comm_setup.h"

#include <algorithm>
#include <bit>

#include "plugin/base/digest.h"
#include "plugin/base/interfaces.h"
#include "plugin/collective/networks.h"
#include "topology/discover.h"

namespace prunex::collective {
namespace {

// More than this per rank would not fit beside others in a container's /dev/shm.
constexpr size_t kSharedBytesPerRank = 8 << 20;

Result<std::vector<topo::NicFacts>> usable_nics(const Config& config, const transport::Rdma& rdma) {
  auto have = list_interfaces();
  if (!have) {
    return tl::unexpected(have.error());
  }
  const auto fitting = of_family(*have, config.family);
  if (!fitting) {
    return tl::unexpected(fitting.error());
  }
  auto chosen = choose_interfaces(*fitting, config.socket_ifname);
  if (!chosen) {
    return tl::unexpected(chosen.error());
  }
  // Several usable networks: the one that leads to rank 0 comes first.
  if (!config.root.empty()) {
    if (auto at = parse_host_port(config.root)) {
      if (auto peers = resolve(*at); peers && !peers->empty()) {
        if (auto reachable = check_families(*chosen, *peers); !reachable) {
          return tl::unexpected(reachable.error());
        }
        prefer_route(*chosen, peers->front());
      }
    }
  }
  return nics_of(rdma, *chosen);
}

}  // namespace

Tuning tuning_of(const Config& config) {
  Tuning t;
  if (config.chunk_bytes > 0) {
    t.chunk_bytes = static_cast<size_t>(config.chunk_bytes) / 64 * 64;
    t.min_chunk_bytes = std::min(t.min_chunk_bytes, t.chunk_bytes);
  }
  if (config.algorithm == "exchange") {
    t.forced = static_cast<int>(Algorithm::exchange);
  } else if (config.algorithm == "scatter") {
    t.forced = static_cast<int>(Algorithm::scatter);
  }
  return t;
}

NodeShape shape_of(const topo::World& world, size_t node, const Tuning& tuning) {
  NodeShape shape;
  shape.local_size = world.nodes[node].ranks.size();
  shape.rails = static_cast<size_t>(world.rails);
  // An inlined call is one chunk, whatever the chunk size.
  shape.slot_bytes = std::max(tuning.chunk_bytes, Tuning::kInlineLimit);
  shape.slots = std::clamp<size_t>(kSharedBytesPerRank / 3 / shape.slot_bytes, 2, 8);
  return shape;
}

// Everything that makes ranks choose; a difference here would be a hang later.
uint64_t choice_digest(const topo::World& world, const Tuning& t) {
  return Digest()
      .add(world.digest)
      .add(t.inline_bytes)
      .add(t.exchange_bytes)
      .add(t.chunk_bytes)
      .add(t.min_chunk_bytes)
      .add(t.alone_bytes)
      .add(t.forced)
      .add(t.dense_below_bytes)
      .add(std::bit_cast<uint64_t>(t.dense_above))
      .value();
}

uint64_t connection_rate(uint64_t link_bit_s, size_t nodes) {
  if (link_bit_s == 0 || nodes < 2) {
    return 0;
  }
  // Every algorithm sends each peer the same share. Two nodes move their data on one connection
  // (the exchange). With more, large calls go by scatter, whose partial sums and results are under
  // way at the same time, on two connections and as many bytes on each. So nothing is faster than
  // the link, except averages of fp16 and integers on two nodes: their partial sums are wider, so
  // they are scattered there too, and take two thirds of the link's time.
  const uint64_t peers = nodes - 1, busy = nodes > 2 ? 2 : 1;
  return std::max<uint64_t>(link_bit_s / 8 / peers / busy, 1);
}

Result<topo::RankFacts> own_facts(const Config& config, const transport::Rdma& rdma) {
  auto nics = usable_nics(config, rdma);
  if (!nics) {
    return tl::unexpected(nics.error());
  }
  topo::FactsOptions options;
  options.rank = config.rank;
  options.node_id = config.node_id;
  options.nics = std::move(*nics);
  options.transports |= rdma.usable() ? topo::kTransportVerbs : 0U;
  return topo::local_facts(options);
}

}  // namespace prunex::collective

// SPDX-License-Identifier: Apache-2.0
#include "tools/bench_world.h"

#include <algorithm>
#include <utility>

namespace prunex::tools {
namespace {

Code code_of(prunex_result_t result) {
  switch (result) {
    case PRUNEX_ERROR_INVALID_ARGUMENT:
      return Code::invalid_argument;
    case PRUNEX_ERROR_CONFIG:
      return Code::config;
    default:
      return Code::system;  // every other kind ends in the same exit code here
  }
}

}  // namespace

Result<> checked(prunex_result_t result, const char* what) {
  if (result == PRUNEX_SUCCESS) {
    return {};
  }
  const std::string detail = prunex_last_error();
  return fail(code_of(result),
              strf("%s: %s", what, detail.empty() ? prunex_result_string(result) : detail.c_str()));
}

Result<World> World::open(const std::string& node_id) {
  prunex_comm_config_t config = PRUNEX_COMM_CONFIG_INIT;
  config.node_id = node_id.empty() ? nullptr : node_id.c_str();
  World world;
  if (auto made = checked(prunex_comm_create(&config, &world.comm_), "joining the world"); !made) {
    return tl::unexpected(made.error());
  }
  world.info_.struct_size = sizeof world.info_;
  if (auto told = checked(prunex_comm_info(world.comm_, &world.info_), "communicator"); !told) {
    return tl::unexpected(told.error());
  }
  const auto size = static_cast<size_t>(world.size());
  const auto rank = static_cast<size_t>(world.rank());
  std::vector<int64_t> facts(2 * size, 0);
  facts[rank] = world.info_.node;
  facts[size + rank] = world.info_.leader;
  if (auto gathered = world.sum(facts); !gathered) {
    return tl::unexpected(gathered.error());
  }
  for (size_t i = 0; i < size; ++i) {
    world.node_of_.push_back(static_cast<int>(facts[i]));
    world.leader_of_.push_back(static_cast<int>(facts[size + i]));
  }
  return world;
}

World::World(World&& other) noexcept
    : comm_(std::exchange(other.comm_, 0)),
      info_(other.info_),
      node_of_(std::move(other.node_of_)),
      leader_of_(std::move(other.leader_of_)) {}

World::~World() {
  if (comm_ != 0) {
    prunex_comm_destroy(comm_);
  }
}

std::vector<int> World::ranks_of(int node) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (node_of(rank) == node) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::vector<int> World::leaders() const {
  std::vector<int> leaders(leader_of_);
  std::sort(leaders.begin(), leaders.end());
  leaders.erase(std::unique(leaders.begin(), leaders.end()), leaders.end());
  return leaders;
}

Result<prunex_stats_t> World::stats() const {
  prunex_stats_t stats{};
  stats.struct_size = sizeof stats;
  if (auto read = checked(prunex_stats(comm_, &stats), "statistics"); !read) {
    return tl::unexpected(read.error());
  }
  return stats;
}

Result<> World::sum(std::span<int64_t> values) const {
  return checked(prunex_all_reduce(comm_, values.data(), values.data(), values.size(), PRUNEX_INT64,
                                   PRUNEX_SUM, 0, nullptr),
                 "gathering measurements");
}

Result<> World::max(std::span<int64_t> values) const {
  return checked(prunex_all_reduce(comm_, values.data(), values.data(), values.size(), PRUNEX_INT64,
                                   PRUNEX_MAX, 0, nullptr),
                 "gathering measurements");
}

Result<> World::sum(std::span<double> values) const {
  return checked(prunex_all_reduce(comm_, values.data(), values.data(), values.size(),
                                   PRUNEX_FLOAT64, PRUNEX_SUM, 0, nullptr),
                 "gathering measurements");
}

}  // namespace prunex::tools

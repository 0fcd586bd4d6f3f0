// SPDX-License-Identifier: Apache-2.0
// The communicator of a benchmark, and the small collectives that gather what ranks have measured.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/result.h"
#include "prunex/prunex.h"

namespace prunex::tools {

// A C result as a Result, with the library's text.
[[nodiscard]] Result<> checked(prunex_result_t result, const char* what);

class World {
 public:
  [[nodiscard]] static Result<World> open(const std::string& node_id);
  World(World&& other) noexcept;
  World& operator=(World&&) = delete;
  ~World();

  [[nodiscard]] prunex_comm_t comm() const { return comm_; }
  [[nodiscard]] int rank() const { return info_.rank; }
  [[nodiscard]] int size() const { return info_.size; }
  [[nodiscard]] int nodes() const { return info_.num_nodes; }
  [[nodiscard]] int node_of(int rank) const { return node_of_[static_cast<size_t>(rank)]; }
  [[nodiscard]] std::vector<int> ranks_of(int node) const;
  [[nodiscard]] std::vector<int> leaders() const;  // of each node, ascending by rank
  [[nodiscard]] std::string transport() const { return info_.transport; }
  [[nodiscard]] Result<prunex_stats_t> stats() const;

  // Collective, in place.
  [[nodiscard]] Result<> sum(std::span<int64_t> values) const;
  [[nodiscard]] Result<> max(std::span<int64_t> values) const;
  [[nodiscard]] Result<> sum(std::span<double> values) const;

 private:
  World() = default;

  prunex_comm_t comm_ = 0;
  prunex_comm_info_t info_{};
  std::vector<int> node_of_, leader_of_;  // by rank
};

}  // namespace prunex::tools

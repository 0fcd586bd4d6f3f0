// SPDX-License-Identifier: Apache-2.0
// What the commands' arguments mean: sizes, densities, worlds. Pure; errors name the value and what
// is allowed.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/dtype.h"
#include "plugin/base/result.h"

namespace prunex::tools {

// "1 to 4096"
[[nodiscard]] std::string whole_range(uint64_t least, uint64_t most);
[[nodiscard]] Result<uint64_t> parse_whole(std::string_view text, uint64_t least, uint64_t most);
[[nodiscard]] Result<double> parse_real(std::string_view text, double least, double most);

// "4096", "1k", "1K", "64M", "2G", "1T", each also with "B" or "iB" behind; 1k = 1K = 1024.
[[nodiscard]] Result<uint64_t> parse_size(std::string_view text);
// "1M,4M"
[[nodiscard]] Result<std::vector<uint64_t>> parse_sizes(std::string_view text);
// first, first*factor, … up to last. From 0 the range goes on with `unit`.
[[nodiscard]] Result<std::vector<uint64_t>> size_range(uint64_t first, uint64_t last,
                                                       uint64_t factor, uint64_t unit);
// "0.4" or "0.5,0.4": each in [0, 1].
[[nodiscard]] Result<std::vector<double>> parse_densities(std::string_view text);
// "f32", also float, float32, fp32; half, bfloat16, int32 and so on.
[[nodiscard]] Result<DType> parse_dtype(std::string_view text);
[[nodiscard]] Result<Op> parse_op(std::string_view text);

// Which node each rank is on.
struct WorldShape {
  std::vector<int> node_of;  // rank -> node
  int nodes = 0;
  [[nodiscard]] int size() const { return static_cast<int>(node_of.size()); }
  [[nodiscard]] std::vector<int> ranks_of(int node) const;
  [[nodiscard]] int local_rank(int rank) const;  // position among its node's ranks
  [[nodiscard]] int local_size(int rank) const;
};

// What the user said; 0 and "" are "nothing".
struct WorldRequest {
  int ranks = 0;
  int nodes = 0;
  int ranks_per_node = 0;
  std::string layout = {};  // "1,2,3": ranks of each node
  std::string order = {};   // "ABCABC": the node of each rank
  [[nodiscard]] bool says_anything() const {
    return ranks > 0 || nodes > 0 || ranks_per_node > 0 || !layout.empty() || !order.empty();
  }
};
inline constexpr int kMaxRanks = 4096;

[[nodiscard]] Result<WorldShape> make_world_shape(const WorldRequest& request);

// Can a machine of so much memory hold the buffers of its ranks?
[[nodiscard]] Result<> check_memory(uint64_t bytes_per_rank, uint64_t ranks,
                                    uint64_t machine_bytes);

}  // namespace prunex::tools

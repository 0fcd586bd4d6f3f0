// SPDX-License-Identifier: Apache-2.0
#include "tools/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "plugin/base/text.h"

namespace prunex::tools {
namespace {

std::string quoted(std::string_view text) {
  return strf("'%.*s'", static_cast<int>(std::min<size_t>(text.size(), 200)), text.data());
}

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(by);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(at + 1);
  }
}

// The power of 1024 that a unit stands for, -1: no unit that we know.
int unit_power(std::string_view unit) {
  if (unit.empty() || unit == "B" || unit == "b") {
    return 0;
  }
  const size_t power = std::string_view("kKmMgGtT").find(unit[0]);
  const std::string_view rest = unit.substr(1);
  if (power == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "iB")) {
    return -1;
  }
  return static_cast<int>(power) / 2 + 1;
}

Result<int> parse_count(std::string_view text, const char* what) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1 || value > kMaxRanks) {
    return fail(Code::invalid_argument, strf("%s %s is not a whole number from 1 to %d", what,
                                             quoted(text).c_str(), kMaxRanks));
  }
  return value;
}

Result<WorldShape> from_layout(std::string_view layout) {
  WorldShape shape;
  for (const std::string_view part : split(layout, ',')) {
    const Result<int> ranks = parse_count(part, "--layout: ranks of a node");
    if (!ranks) {
      return tl::unexpected(ranks.error());
    }
    shape.node_of.insert(shape.node_of.end(), static_cast<size_t>(*ranks), shape.nodes++);
  }
  return shape;
}

Result<WorldShape> from_order(std::string_view order) {
  WorldShape shape;
  for (const char letter : order) {
    if (letter < 'A' || letter > 'Z') {
      return fail(Code::invalid_argument,
                  strf("--order %s: '%c' is not a node; use A to Z, one letter per rank",
                       quoted(order).c_str(), letter));
    }
    shape.node_of.push_back(letter - 'A');
    shape.nodes = std::max(shape.nodes, letter - 'A' + 1);
  }
  for (int node = 0; node < shape.nodes; ++node) {
    if (shape.ranks_of(node).empty()) {
      return fail(Code::invalid_argument,
                  strf("--order %s: node %c has no rank", quoted(order).c_str(),
                       static_cast<char>('A' + node)));
    }
  }
  return shape;
}

// Consecutive ranks, as even as possible, larger nodes first.
WorldShape in_blocks(int ranks, int nodes) {
  WorldShape shape;
  shape.nodes = nodes;
  for (int node = 0; node < nodes; ++node) {
    const int here = ranks / nodes + (node < ranks % nodes ? 1 : 0);
    shape.node_of.insert(shape.node_of.end(), static_cast<size_t>(here), node);
  }
  return shape;
}

std::string in_gb(uint64_t bytes) { return strf("%.1f GB", static_cast<double>(bytes) / 1e9); }

}  // namespace

std::string whole_range(uint64_t least, uint64_t most) {
  return strf("%llu to %llu", static_cast<unsigned long long>(least),
              static_cast<unsigned long long>(most));
}

Result<uint64_t> parse_whole(std::string_view text, uint64_t least, uint64_t most) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
    return fail(Code::invalid_argument,
                quoted(text) + " is not a whole number from " + whole_range(least, most));
  }
  return value;
}

Result<double> parse_real(std::string_view text, double least, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() ||
      !(value >= least && value <= most)) {
    return fail(Code::invalid_argument,
                quoted(text) + strf(" is not a number from %.9g to %.9g", least, most));
  }
  return value;
}

Result<> check_memory(uint64_t bytes_per_rank, uint64_t ranks, uint64_t machine_bytes) {
  if (ranks == 0 || bytes_per_rank <= machine_bytes / ranks) {
    return {};
  }
  return fail(Code::invalid_argument,
              strf("the buffers of %s here need %s each, this machine has %s in all: choose a "
                   "smaller size",
                   counted(ranks, "rank").c_str(), in_gb(bytes_per_rank).c_str(),
                   in_gb(machine_bytes).c_str()));
}

Result<uint64_t> parse_size(std::string_view text) {
  uint64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  const int power = error == std::errc{} ? unit_power({end, static_cast<size_t>(last - end)}) : -1;
  if (error == std::errc::result_out_of_range ||
      (power > 0 && value > (std::numeric_limits<uint64_t>::max() >> (10 * power)))) {
    return fail(Code::invalid_argument, "size " + quoted(text) + " does not fit in 64 bits");
  }
  if (power < 0) {
    return fail(
        Code::invalid_argument,
        "size " + quoted(text) +
            " is not a whole number of bytes with an optional unit k, M, G or T (1k = 1024)");
  }
  return value << (10 * power);
}

Result<std::vector<uint64_t>> parse_sizes(std::string_view text) {
  std::vector<uint64_t> sizes;
  for (const std::string_view part : split(text, ',')) {
    const Result<uint64_t> size = parse_size(part);
    if (!size) {
      return tl::unexpected(size.error());
    }
    sizes.push_back(*size);
  }
  return sizes;
}

Result<std::vector<uint64_t>> size_range(uint64_t first, uint64_t last, uint64_t factor,
                                         uint64_t unit) {
  if (last < first) {
    return fail(
        Code::invalid_argument,
        strf("the range of sizes ends (%llu bytes) before it begins (%llu bytes)",
             static_cast<unsigned long long>(last), static_cast<unsigned long long>(first)));
  }
  if (factor < 2) {
    return fail(Code::invalid_argument, "the factor between sizes must be 2 or more");
  }
  std::vector<uint64_t> sizes{first};
  uint64_t size = first;
  for (;;) {
    if (size > last / factor) {
      return sizes;
    }
    size = size == 0 ? unit : size * factor;
    if (size > last) {
      return sizes;
    }
    sizes.push_back(size);
  }
}

Result<std::vector<double>> parse_densities(std::string_view text) {
  std::vector<double> densities;
  for (const std::string_view part : split(text, ',')) {
    double value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc{} || end != part.data() + part.size() || !(value >= 0 && value <= 1)) {
      return fail(Code::invalid_argument,
                  "--keep " + quoted(part) + " is not a fraction from 0 to 1");
    }
    densities.push_back(value);
  }
  return densities;
}

Result<DType> parse_dtype(std::string_view text) {
  struct Alias {
    std::string_view name;
    DType type;
  };
  static constexpr Alias kAliases[] = {
      {"f32", DType::f32},     {"fp32", DType::f32},      {"float", DType::f32},
      {"float32", DType::f32}, {"f64", DType::f64},       {"fp64", DType::f64},
      {"double", DType::f64},  {"float64", DType::f64},   {"f16", DType::f16},
      {"fp16", DType::f16},    {"half", DType::f16},      {"float16", DType::f16},
      {"bf16", DType::bf16},   {"bfloat16", DType::bf16}, {"i8", DType::i8},
      {"int8", DType::i8},     {"u8", DType::u8},         {"uint8", DType::u8},
      {"i32", DType::i32},     {"int32", DType::i32},     {"int", DType::i32},
      {"i64", DType::i64},     {"int64", DType::i64},     {"u32", DType::u32},
      {"uint32", DType::u32},  {"u64", DType::u64},       {"uint64", DType::u64},
  };
  for (const Alias& alias : kAliases) {
    if (alias.name == text) {
      return alias.type;
    }
  }
  return fail(Code::invalid_argument,
              "unknown type " + quoted(text) +
                  "; known are f32, f64, f16, bf16, i8, u8, i32, u32, i64, u64");
}

Result<Op> parse_op(std::string_view text) {
  for (int i = 0; i < kNumOps; ++i) {
    if (text == name_of(static_cast<Op>(i))) {
      return static_cast<Op>(i);
    }
  }
  return fail(Code::invalid_argument,
              "unknown operation " + quoted(text) + "; known are sum, avg, max, min, prod");
}

std::vector<int> WorldShape::ranks_of(int node) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (node_of[static_cast<size_t>(rank)] == node) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

int WorldShape::local_rank(int rank) const {
  return static_cast<int>(
      std::count(node_of.begin(), node_of.begin() + rank, node_of[static_cast<size_t>(rank)]));
}

int WorldShape::local_size(int rank) const {
  return static_cast<int>(
      std::count(node_of.begin(), node_of.end(), node_of[static_cast<size_t>(rank)]));
}

Result<WorldShape> make_world_shape(const WorldRequest& request) {
  if (!request.layout.empty() && !request.order.empty()) {
    return fail(Code::invalid_argument, "give --layout or --order, not both");
  }
  Result<WorldShape> shape = WorldShape{};
  if (!request.layout.empty()) {
    shape = from_layout(request.layout);
  } else if (!request.order.empty()) {
    shape = from_order(request.order);
  } else {
    const int per_node = request.ranks_per_node;
    const int nodes = request.nodes > 0 ? request.nodes
                      : request.ranks > 0 && per_node > 0
                          ? (request.ranks + per_node - 1) / per_node
                          : 1;
    const int64_t ranks =
        request.ranks > 0 ? request.ranks : int64_t{nodes} * (per_node > 0 ? per_node : 1);
    if (nodes > ranks) {
      return fail(Code::invalid_argument,
                  strf("%s cannot be spread over %s, every node needs at least one: ask for %d "
                       "ranks or more, or for fewer nodes",
                       counted(static_cast<uint64_t>(ranks), "rank").c_str(),
                       counted(static_cast<uint64_t>(nodes), "node").c_str(), nodes));
    }
    if (ranks > kMaxRanks) {
      return fail(Code::invalid_argument, strf("%lld ranks; at most %d are possible",
                                               static_cast<long long>(ranks), kMaxRanks));
    }
    shape = in_blocks(static_cast<int>(ranks), nodes);
  }
  if (!shape) {
    return shape;
  }
  if (shape->size() > kMaxRanks) {
    return fail(Code::invalid_argument,
                strf("%d ranks; at most %d are possible", shape->size(), kMaxRanks));
  }
  if (request.ranks > 0 && request.ranks != shape->size()) {
    return fail(Code::invalid_argument,
                strf("-n says %s, the nodes hold %d",
                     counted(static_cast<uint64_t>(request.ranks), "rank").c_str(), shape->size()));
  }
  if (request.nodes > 0 && request.nodes != shape->nodes) {
    return fail(Code::invalid_argument,
                strf("--nodes says %d, the layout has %d", request.nodes, shape->nodes));
  }
  for (int rank = 0; request.ranks_per_node > 0 && rank < shape->size(); ++rank) {
    if (shape->local_size(rank) != request.ranks_per_node) {
      return fail(Code::invalid_argument,
                  strf("--ranks-per-node says %d, node %d has %d", request.ranks_per_node,
                       shape->node_of[static_cast<size_t>(rank)], shape->local_size(rank)));
    }
  }
  return shape;
}

}  // namespace prunex::tools

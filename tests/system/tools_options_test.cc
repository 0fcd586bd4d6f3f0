// SPDX-License-Identifier: Apache-2.0
#include "tools/options.h"

#include <gtest/gtest.h>

#include "plugin/base/address.h"
#include "plugin/base/sockets.h"
#include "tools/launch.h"

namespace prunex::tools {
namespace {

using Ints = std::vector<int>;
using Sizes = std::vector<uint64_t>;

TEST(Sizes, units_are_powers_of_1024_in_either_case) {
  for (const char* text : {"1024", "1k", "1K", "1KB", "1KiB", "1024B"}) {
    EXPECT_EQ(parse_size(text).value_or(0), 1024u) << text;
  }
  EXPECT_EQ(parse_size("64M").value_or(0), uint64_t{64} << 20);
  EXPECT_EQ(parse_size("3g").value_or(0), uint64_t{3} << 30);
  EXPECT_EQ(parse_size("2T").value_or(0), uint64_t{2} << 40);
  EXPECT_EQ(parse_size("0").value_or(9), 0u);
  EXPECT_EQ(parse_size("18446744073709551615").value_or(0), UINT64_MAX);
}

TEST(Sizes, nonsense_is_an_error_naming_the_value) {
  for (const char* text : {"", "-1", "+1", "1X", "k", "1kk", "1 k", "1.5M", "0x10", "M1", "1ki",
                           "99999999999999G", "18446744073709551616", "16777216T"}) {
    const Result<uint64_t> size = parse_size(text);
    ASSERT_FALSE(size) << text;
    EXPECT_NE(size.error().text.find(std::string("'") + text + "'"), std::string::npos);
  }
}

TEST(Sizes, lists_and_ranges) {
  EXPECT_EQ(parse_sizes("1k,2K,5").value_or(Sizes{}), (Sizes{1024, 2048, 5}));
  EXPECT_FALSE(parse_sizes("1k,"));
  EXPECT_EQ(size_range(1024, 8192, 2, 4).value_or(Sizes{}), (Sizes{1024, 2048, 4096, 8192}));
  EXPECT_EQ(size_range(1000, 9000, 2, 4).value_or(Sizes{}), (Sizes{1000, 2000, 4000, 8000}));
  EXPECT_EQ(size_range(8, 8, 2, 4).value_or(Sizes{}), (Sizes{8}));
  EXPECT_EQ(size_range(0, 16, 2, 4).value_or(Sizes{}), (Sizes{0, 4, 8, 16}));
  EXPECT_EQ(size_range(0, 0, 2, 4).value_or(Sizes{}), (Sizes{0}));
  EXPECT_EQ(size_range(UINT64_MAX / 2, UINT64_MAX, 4, 4).value_or(Sizes{}),
            (Sizes{UINT64_MAX / 2}));
  EXPECT_FALSE(size_range(8, 4, 2, 4));
  EXPECT_FALSE(size_range(4, 8, 1, 4));
}

TEST(Numbers, are_whole_and_in_range_and_the_range_is_legible) {
  EXPECT_EQ(parse_whole("1", 1, 4096).value_or(0), 1u);
  EXPECT_EQ(parse_whole("4096", 1, 4096).value_or(0), 4096u);
  EXPECT_EQ(parse_whole("18446744073709551615", 0, UINT64_MAX).value_or(0), UINT64_MAX);
  for (const char* text : {"0", "4097", "-1", "+1", "", "1x", "1.0", "18446744073709551616"}) {
    const Result<uint64_t> value = parse_whole(text, 1, 4096);
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.error().text, strf("'%s' is not a whole number from 1 to 4096", text));
  }
  EXPECT_EQ(parse_real("0.5", 0, 1e6).value_or(-1), 0.5);
  for (const char* text : {"-1", "nan", "1000001", "", "1s"}) {
    const Result<double> value = parse_real(text, 0, 1e6);
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.error().text, strf("'%s' is not a number from 0 to 1000000", text));
  }
}

TEST(Memory, is_checked_before_anybody_starts) {
  EXPECT_TRUE(check_memory(1000, 4, 4000));
  EXPECT_TRUE(check_memory(UINT64_MAX, 0, 0));
  EXPECT_TRUE(check_memory(UINT64_MAX, 1, UINT64_MAX));
  EXPECT_FALSE(check_memory(1001, 4, 4000));
  EXPECT_FALSE(check_memory(uint64_t{9999999} << 40, 4, uint64_t{1} << 40));
  const Result<> one = check_memory(2'000'000'000, 1, 1'000'000'000);
  ASSERT_FALSE(one);
  EXPECT_NE(one.error().text.find("1 rank here"), std::string::npos) << one.error().text;
  EXPECT_NE(one.error().text.find("2.0 GB"), std::string::npos) << one.error().text;
}

TEST(Densities, are_fractions) {
  EXPECT_EQ(parse_densities("0.5,0.4,1,0").value_or(std::vector<double>{}),
            (std::vector<double>{0.5, 0.4, 1, 0}));
  for (const char* text : {"", "1.1", "-0.1", "nan", "inf", "0.4x", "0,5x", "0.4,,0.5"}) {
    EXPECT_FALSE(parse_densities(text)) << text;
  }
}

TEST(Types, are_known_by_several_names) {
  EXPECT_EQ(parse_dtype("float").value_or(DType::i8), DType::f32);
  EXPECT_EQ(parse_dtype("bfloat16").value_or(DType::i8), DType::bf16);
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto type = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(name_of(type)).value_or(DType::u8), type);
  }
  EXPECT_FALSE(parse_dtype("f31"));
  for (int i = 0; i < kNumOps; ++i) {
    const auto op = static_cast<Op>(i);
    EXPECT_EQ(parse_op(name_of(op)).value_or(Op::sum), op);
  }
  EXPECT_FALSE(parse_op("mean"));
}

Ints nodes_for(const WorldRequest& request) {
  const Result<WorldShape> shape = make_world_shape(request);
  return shape ? shape->node_of : Ints{};
}

TEST(Worlds, from_every_way_of_saying_it) {
  EXPECT_EQ(nodes_for({.ranks = 3}), (Ints{0, 0, 0}));
  EXPECT_EQ(nodes_for({.nodes = 2}), (Ints{0, 1}));
  EXPECT_EQ(nodes_for({.ranks = 4, .nodes = 2}), (Ints{0, 0, 1, 1}));
  EXPECT_EQ(nodes_for({.ranks = 5, .nodes = 2}), (Ints{0, 0, 0, 1, 1}));
  EXPECT_EQ(nodes_for({.nodes = 2, .ranks_per_node = 2}), (Ints{0, 0, 1, 1}));
  EXPECT_EQ(nodes_for({.ranks = 4, .ranks_per_node = 2}), (Ints{0, 0, 1, 1}));
  EXPECT_EQ(nodes_for({.layout = "1,2,3"}), (Ints{0, 1, 1, 2, 2, 2}));
  EXPECT_EQ(nodes_for({.order = "ABCABC"}), (Ints{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(nodes_for({.order = "BA"}), (Ints{1, 0}));
}

TEST(Worlds, contradictions_are_errors) {
  for (const WorldRequest& request :
       {WorldRequest{.ranks = 5, .ranks_per_node = 2}, WorldRequest{.ranks = 1, .nodes = 2},
        WorldRequest{.ranks = 4, .layout = "1,2"}, WorldRequest{.nodes = 3, .layout = "1,2"},
        WorldRequest{.layout = "1,2", .order = "AB"}, WorldRequest{.layout = "1,,2"},
        WorldRequest{.layout = "0,2"}, WorldRequest{.layout = "1,x"}, WorldRequest{.order = "AC"},
        WorldRequest{.order = "ab"}, WorldRequest{.ranks = 100000},
        WorldRequest{.nodes = 4096, .ranks_per_node = 4096},
        WorldRequest{.ranks_per_node = 2, .layout = "2,1"}}) {
    EXPECT_FALSE(make_world_shape(request)) << request.ranks << request.layout << request.order;
  }
}

TEST(Worlds, too_few_ranks_for_the_nodes_says_what_would_do) {
  const Result<WorldShape> shape = make_world_shape({.ranks = 2, .nodes = 3});
  ASSERT_FALSE(shape);
  EXPECT_EQ(shape.error().text,
            "2 ranks cannot be spread over 3 nodes, every node needs at least one: ask for 3 ranks "
            "or more, or for fewer nodes");
  EXPECT_NE(make_world_shape({.ranks = 1, .nodes = 2}).error().text.find("1 rank cannot"),
            std::string::npos);
}

Environment environment_of(std::vector<Variable> variables) {
  Environment environment;
  environment.lookup = [variables](std::string_view name) -> std::optional<std::string> {
    for (const Variable& v : variables) {
      if (v.name == name) {
        return v.value;
      }
    }
    return std::nullopt;
  };
  return environment;
}

std::string value_of(const std::vector<Variable>& variables, std::string_view name) {
  for (const Variable& v : variables) {
    if (v.name == name) {
      return v.value;
    }
  }
  return "(unset)";
}

TEST(Jobs, ranks_are_told_who_they_are) {
  const Result<Job> job = make_job({.order = "ABAB"}, NodeContext{}, "test", {"true"});
  ASSERT_TRUE(job);
  EXPECT_EQ(job->ranks_here(), (Ints{0, 1, 2, 3}));
  const std::vector<Variable> two = rank_variables(*job, 2);
  EXPECT_EQ(value_of(two, "RANK"), "2");
  EXPECT_EQ(value_of(two, "PRUNEX_RANK"), "2");
  EXPECT_EQ(value_of(two, "WORLD_SIZE"), "4");
  EXPECT_EQ(value_of(two, "PRUNEX_WORLD_SIZE"), "4");
  EXPECT_EQ(value_of(two, "LOCAL_RANK"), "1");
  EXPECT_EQ(value_of(two, "LOCAL_WORLD_SIZE"), "2");
  EXPECT_EQ(value_of(two, "PRUNEX_NODE_ID"), value_of(rank_variables(*job, 0), "PRUNEX_NODE_ID"));
  EXPECT_NE(value_of(two, "PRUNEX_NODE_ID"), value_of(rank_variables(*job, 1), "PRUNEX_NODE_ID"));
  EXPECT_TRUE(value_of(two, "PRUNEX_ROOT").starts_with("127.0.0.1:"));
  EXPECT_EQ(value_of(two, "MASTER_ADDR"), "127.0.0.1");
  EXPECT_NE("127.0.0.1:" + value_of(two, "MASTER_PORT"), value_of(two, "PRUNEX_ROOT"));
}

TEST(Jobs, one_node_keeps_the_machines_identity) {
  const Result<Job> job = make_job({.ranks = 2}, NodeContext{}, "test", {"true"});
  ASSERT_TRUE(job);
  EXPECT_EQ(value_of(rank_variables(*job, 0), "PRUNEX_NODE_ID"), "(unset)");
}

TEST(Jobs, rank_0_can_listen_at_the_port_that_is_kept_for_it) {
  const Result<Job> job = make_job({.ranks = 2}, NodeContext{}, "test", {"true"});
  ASSERT_TRUE(job);
  const Result<SocketAddress> root = parse_address(job->root);
  ASSERT_TRUE(root);
  EXPECT_TRUE(listen_tcp(*root));
}

TEST(Jobs, per_node_starter_starts_its_own_ranks_only) {
  const Result<NodeContext> context =
      node_context(environment_of({{"NODE_RANK", "1"}, {"NNODES", "2"}, {"PRUNEX_ROOT", "h:99"}}));
  ASSERT_TRUE(context);
  const Result<Job> job = make_job({.ranks_per_node = 2}, *context, "test", {"true"});
  ASSERT_TRUE(job);
  EXPECT_EQ(job->ranks_here(), (Ints{2, 3}));
  const std::vector<Variable> last = rank_variables(*job, 3);
  EXPECT_EQ(value_of(last, "WORLD_SIZE"), "4");
  EXPECT_EQ(value_of(last, "PRUNEX_ROOT"), "h:99");
  EXPECT_EQ(value_of(last, "PRUNEX_NODE_ID"), "node1");
  EXPECT_EQ(value_of(last, "MASTER_ADDR"), "h");
  EXPECT_FALSE(make_job({.nodes = 3}, *context, "test", {"true"})) << "NNODES says 2";
}

TEST(Jobs, starters_own_names_and_master_stay) {
  const Result<NodeContext> context = node_context(environment_of({{"NODE_RANK", "0"},
                                                                   {"NNODES", "2"},
                                                                   {"PRUNEX_ROOT", "[::1]:99"},
                                                                   {"PRUNEX_NODE_ID", "left"},
                                                                   {"MASTER_ADDR", "m"},
                                                                   {"MASTER_PORT", "5"}}));
  ASSERT_TRUE(context);
  const Result<Job> job = make_job({.ranks = 2}, *context, "test", {"true"});
  ASSERT_TRUE(job);
  EXPECT_EQ(value_of(rank_variables(*job, 0), "PRUNEX_NODE_ID"), "(unset)");
  EXPECT_EQ(value_of(rank_variables(*job, 0), "MASTER_ADDR"), "(unset)");
}

TEST(Jobs, node_context_is_checked) {
  EXPECT_EQ(node_context(environment_of({})).value_or(NodeContext{.node = 9}).node, -1);
  for (const auto& variables : std::vector<std::vector<Variable>>{
           {{"NODE_RANK", "2"}, {"NNODES", "2"}, {"PRUNEX_ROOT", "h:1"}},
           {{"NODE_RANK", "x"}, {"NNODES", "2"}, {"PRUNEX_ROOT", "h:1"}},
           {{"NODE_RANK", "0"}, {"NNODES", "2"}}}) {
    EXPECT_FALSE(node_context(environment_of(variables)));
  }
}

}  // namespace
}  // namespace prunex::tools

// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "plugin/base/edit_distance.h"

namespace prunex {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using Variables = std::map<std::string, std::string>;

Result<LoadedConfig> load(const Variables& set) {
  Environment environment;
  environment.lookup = [&set](std::string_view name) -> std::optional<std::string> {
    const auto found = set.find(std::string(name));
    return found == set.end() ? std::nullopt : std::optional(found->second);
  };
  for (const auto& [name, value] : set) {
    environment.names.push_back(name);
  }
  return load_config(environment);
}

Config good(const Variables& set) {
  auto loaded = load(set);
  EXPECT_TRUE(loaded) << loaded.error().text;
  return loaded ? loaded->config : Config{};
}

std::string fault(const Variables& set) {
  const auto loaded = load(set);
  EXPECT_FALSE(loaded);
  if (loaded) {
    return "";
  }
  EXPECT_EQ(loaded.error().code, Code::config);
  return loaded.error().text;
}

ConfigValue value_of(const Variables& set, std::string_view name) {
  const auto loaded = load(set);
  EXPECT_TRUE(loaded) << loaded.error().text;
  for (const ConfigValue& one : loaded->values) {
    if (one.name == name) {
      return one;
    }
  }
  ADD_FAILURE() << name << " is not listed";
  return {};
}

TEST(Config, nothing_set_gives_the_documented_defaults) {
  const auto loaded = load({});
  ASSERT_TRUE(loaded);
  EXPECT_THAT(loaded->warnings, IsEmpty());
  const Config& c = loaded->config;
  EXPECT_EQ(c.timeout_s, 1800);
  EXPECT_EQ(c.debug, LogLevel::warn);
  EXPECT_EQ(c.rank, -1);
  EXPECT_EQ(c.size, -1);
  EXPECT_EQ(c.on_mismatch, OnMismatch::dense);
  EXPECT_EQ(c.isa, Isa::automatic);
  ASSERT_EQ(loaded->values.size(), config_table().size());
  for (size_t i = 0; i < config_table().size(); ++i) {
    EXPECT_EQ(loaded->values[i].name, config_table()[i].name);
    EXPECT_EQ(loaded->values[i].value, config_table()[i].fallback);
    EXPECT_EQ(loaded->values[i].source, "default");
  }
}

TEST(Config, table_is_fit_for_print) {
  std::set<std::string> names;
  for (const ConfigRow& row : config_table()) {
    EXPECT_TRUE(std::string_view(row.name).starts_with("PRUNEX_"));
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " twice";
    EXPECT_STRNE(row.meaning, "");
    EXPECT_STRNE(row.range, "");
    if (row.twin != nullptr) {
      EXPECT_TRUE(std::string_view(row.twin).starts_with("NCCL_"));
    }
  }
}

TEST(Config, defaults_are_themselves_allowed_values) {
  for (const ConfigRow& row : config_table()) {
    if (*row.fallback != '\0') {
      EXPECT_TRUE(load({{row.name, row.fallback}})) << row.name;
    }
  }
}

TEST(Config, values_that_are_allowed) {
  EXPECT_EQ(good({{"PRUNEX_TIMEOUT", "0.1"}}).timeout_s, 0.1);
  EXPECT_EQ(good({{"PRUNEX_TIMEOUT", "1e6"}}).timeout_s, 1e6);
  EXPECT_EQ(good({{"PRUNEX_DEBUG", "info"}}).debug, LogLevel::info);
  EXPECT_EQ(good({{"PRUNEX_DEBUG", "TRACE"}}).debug, LogLevel::trace);
  EXPECT_EQ(good({{"PRUNEX_DEBUG", "NONE"}}).debug, LogLevel::none);
  EXPECT_EQ(good({{"PRUNEX_ROOT", "node7:4711"}}).root, "node7:4711");
  EXPECT_EQ(good({{"PRUNEX_ROOT", "[fd00::1]:4711"}}).root, "[fd00::1]:4711");
  EXPECT_EQ(good({{"PRUNEX_SOCKET_IFNAME", "^=docker0,lo"}}).socket_ifname, "^=docker0,lo");
  EXPECT_EQ(good({{"PRUNEX_PORT_RANGE", "41000-41003"}}).port_range, "41000-41003");
  EXPECT_EQ(good({{"PRUNEX_ON_MISMATCH", "error"}}).on_mismatch, OnMismatch::error);
  EXPECT_EQ(good({{"PRUNEX_ISA", "scalar"}}).isa, Isa::scalar);
  EXPECT_EQ(good({{"PRUNEX_ISA", "avx512"}}).isa, Isa::avx512);
  EXPECT_EQ(good({{"PRUNEX_RAILS", "2"}}).rails, 2);
  EXPECT_EQ(good({{"PRUNEX_STREAMS", "4"}}).streams, 4);
  EXPECT_EQ(good({}).pacing_bit_s, 0u);
  EXPECT_EQ(good({{"PRUNEX_PACING_RATE", "200mbit"}}).pacing_bit_s, 200'000'000u);
  EXPECT_EQ(good({{"PRUNEX_PACING_RATE", "2.5Gbit"}}).pacing_bit_s, 2'500'000'000u);
  EXPECT_EQ(good({{"PRUNEX_PACING_RATE", "8kbit"}}).pacing_bit_s, 8'000u);
  EXPECT_EQ(good({{"PRUNEX_PACING_RATE", "1000gbit"}}).pacing_bit_s, 1'000'000'000'000u);
  EXPECT_EQ(good({{"PRUNEX_CHUNK_BYTES", "65536"}}).chunk_bytes, 65536);
  EXPECT_EQ(good({{"PRUNEX_CHUNK_BYTES", "512K"}}).chunk_bytes, 512 << 10);
  EXPECT_EQ(good({{"PRUNEX_CHUNK_BYTES", "1M"}}).chunk_bytes, 1 << 20);
  EXPECT_EQ(good({{"PRUNEX_ALGORITHM", "scatter"}}).algorithm, "scatter");
}

TEST(Config, junk_is_an_error_with_name_value_and_range) {
  const Variables junk = {
      {"PRUNEX_TIMEOUT", "0"},       {"PRUNEX_DEBUG", "LOUD"},     {"PRUNEX_ROOT", "node7"},
      {"PRUNEX_SOCKET_IFNAME", "^"}, {"PRUNEX_PORT_RANGE", "9-8"}, {"PRUNEX_ON_MISMATCH", "ignore"},
      {"PRUNEX_ISA", "sse"},         {"PRUNEX_RAILS", "65"},       {"PRUNEX_STREAMS", "2.5"},
      {"PRUNEX_CHUNK_BYTES", "100"}, {"PRUNEX_ALGORITHM", "tree"}, {"PRUNEX_PACING_RATE", "fast"}};
  for (const ConfigRow& row : config_table()) {
    const auto bad = junk.find(row.name);
    if (bad == junk.end()) {
      continue;
    }
    EXPECT_THAT(fault({{bad->first, bad->second}}),
                AllOf(HasSubstr(bad->first + "=" + bad->second), HasSubstr(row.range)));
  }
}

TEST(Config, numbers_are_taken_whole_or_not_at_all) {
  for (const char* text : {"abc", "1x", "x1", " 1", "1 ", "+1", "0x1", "1e1", "", "-1", "nan",
                           "99999999999999999999", "1,5"}) {
    if (*text != '\0') {
      EXPECT_FALSE(load({{"PRUNEX_STREAMS", text}})) << text;
    }
  }
  for (const char* text : {"nan", "inf", "-1", "1s", "1,5", "1e7", "0.09"}) {
    EXPECT_FALSE(load({{"PRUNEX_TIMEOUT", text}})) << text;
  }
  for (const char* text : {"2G", "4095", "3", "3K", "9999999999G", "K", "1KK", "1T"}) {
    EXPECT_FALSE(load({{"PRUNEX_CHUNK_BYTES", text}})) << text;
  }
}

TEST(Config, rates_have_a_unit_and_bounds) {
  for (const char* text : {"1000000", "1mbits", "1m", "-1mbit", "nanmbit", "infgbit", "mbit",
                           "1 mbit", "0mbit", "7kbit", "1001gbit", "1,5gbit"}) {
    EXPECT_FALSE(load({{"PRUNEX_PACING_RATE", text}})) << text;
  }
}

TEST(Config, rdma_defaults_are_nccls) {
  const Config c = good({});
  EXPECT_EQ(c.transport, Choice::automatic);
  EXPECT_FALSE(c.ib.disable);
  EXPECT_EQ(c.ib.timeout, 20);
  EXPECT_EQ(c.ib.retry_count, 7);
  EXPECT_EQ(c.ib.queue_pairs, 1);
  for (const int unset : {c.ib.gid_index, c.ib.traffic_class, c.ib.service_level, c.ib.pkey}) {
    EXPECT_EQ(unset, -1);
  }
}

TEST(Config, rdma_variables_and_nccls_mean_the_same) {
  EXPECT_EQ(good({{"PRUNEX_TRANSPORT", "verbs"}}).transport, Choice::verbs);
  EXPECT_EQ(good({{"NCCL_IB_HCA", "^=mlx5_1:1,mlx5_2"}}).ib.hca, "^=mlx5_1:1,mlx5_2");
  EXPECT_EQ(good({{"NCCL_IB_HCA", "mlx5_0:1:3:0"}}).ib.hca, "mlx5_0:1:3:0") << "rail and plane";
  for (const char* lenient : {",a", "a,,b", "a,", ",", "^", "=", "^=", "a:", "a b", " a, b"}) {
    EXPECT_EQ(good({{"NCCL_IB_HCA", lenient}}).ib.hca, lenient) << "as NCCL";
  }
  EXPECT_EQ(good({{"NCCL_IB_GID_INDEX", "3"}}).ib.gid_index, 3);
  EXPECT_EQ(good({{"NCCL_IB_TC", "106"}, {"NCCL_IB_SL", "5"}}).ib.traffic_class, 106);
  EXPECT_EQ(good({{"NCCL_IB_TC", "106"}, {"NCCL_IB_SL", "5"}}).ib.service_level, 5);
  EXPECT_EQ(good({{"NCCL_IB_TIMEOUT", "22"}}).ib.timeout, 22);
  EXPECT_EQ(good({{"NCCL_IB_TIMEOUT", "22"}, {"PRUNEX_IB_TIMEOUT", "14"}}).ib.timeout, 14);
  EXPECT_EQ(good({{"NCCL_IB_RETRY_CNT", "0"}}).ib.retry_count, 0);
  EXPECT_EQ(good({{"NCCL_IB_QPS_PER_CONNECTION", "4"}}).ib.queue_pairs, 4);
  EXPECT_EQ(good({{"NCCL_IB_PCI_RELAXED_ORDERING", "0"}}).ib.relaxed_ordering, 0);
  EXPECT_TRUE(good({{"NCCL_IB_DISABLE", "1"}}).ib.disable);
  EXPECT_TRUE(good({{"NCCL_IB_DISABLE", "2"}}).ib.disable) << "as NCCL: any but 0";
  EXPECT_FALSE(good({{"NCCL_IB_DISABLE", "1"}, {"PRUNEX_IB_DISABLE", "0"}}).ib.disable);
}

TEST(Config, partition_keys_by_index_or_key) {
  EXPECT_EQ(good({{"PRUNEX_IB_PKEY", "0x8001"}}).ib.pkey, 0x8001);
  EXPECT_EQ(good({{"PRUNEX_IB_PKEY", "0"}}).ib.pkey, 0);
  EXPECT_EQ(good({{"NCCL_IB_PKEY", "2"}}).ib.pkey, 2);
  EXPECT_EQ(good({{"NCCL_IB_PKEY", "0"}}).ib.pkey, -1) << "NCCL's default chooses nothing";
}

// NCCL lowers what is above its limit of 64 sockets and takes -2 for "by the table".
TEST(Config, nccl_streams_beyond_the_limit_are_lowered_as_nccl_does) {
  EXPECT_EQ(good({{"NCCL_NSOCKS_PERTHREAD", "64"}}).streams, 64);
  EXPECT_EQ(good({{"NCCL_NSOCKS_PERTHREAD", "65"}}).streams, 64);
  EXPECT_EQ(good({{"NCCL_NSOCKS_PERTHREAD", "2000"}}).streams, 64);
  EXPECT_EQ(good({{"NCCL_NSOCKS_PERTHREAD", "-2"}}).streams, 0);
  EXPECT_THAT(fault({{"NCCL_NSOCKS_PERTHREAD", "many"}}), HasSubstr("NCCL_NSOCKS_PERTHREAD=many"));
  EXPECT_THAT(fault({{"PRUNEX_STREAMS", "65"}}), HasSubstr("PRUNEX_STREAMS=65"));
}

TEST(Config, rdma_junk_is_an_error_with_its_range) {
  const std::vector<std::pair<const char*, const char*>> junk = {
      {"PRUNEX_TRANSPORT", "rdma"},
      {"PRUNEX_IB_HCA", ":1"},
      {"PRUNEX_IB_HCA", "mlx5_0:x"},
      {"PRUNEX_IB_HCA", "mlx5_0:256"},
      {"PRUNEX_IB_GID_INDEX", "-2"},
      {"PRUNEX_IB_TC", "256"},
      {"PRUNEX_IB_SL", "16"},
      {"PRUNEX_IB_TIMEOUT", "32"},
      {"PRUNEX_IB_RETRY_CNT", "8"},
      {"PRUNEX_IB_PKEY", "0x10000"},
      {"PRUNEX_IB_PKEY", "0x"},
      {"PRUNEX_IB_PKEY", "0x-1"},
      {"PRUNEX_IB_QPS", "0"},
      {"PRUNEX_IB_QPS", "129"},
      {"PRUNEX_IB_DISABLE", "yes"},
      {"PRUNEX_IB_RELAXED_ORDERING", "3"},
      {"NCCL_IB_QPS_PER_CONNECTION", "a"},
      {"NCCL_IB_TIMEOUT", "fast"}};
  for (const auto& [name, value] : junk) {
    EXPECT_THAT(fault({{name, value}}), HasSubstr(std::string(name) + "=" + value));
  }
}

TEST(Config, every_fault_is_named) {
  EXPECT_THAT(fault({{"PRUNEX_STREAMS", "abc"}, {"PRUNEX_ISA", "neon"}, {"PRUNEX_RANK", "1"}}),
              AllOf(HasSubstr("PRUNEX_STREAMS=abc"), HasSubstr("PRUNEX_ISA=neon"),
                    HasSubstr("PRUNEX_WORLD_SIZE")));
}

TEST(Config, long_or_binary_values_stay_one_short_line) {
  const std::string text = fault({{"PRUNEX_ISA", std::string(10'000, 'x') + "\n"}});
  EXPECT_LT(text.size(), 400u);
  EXPECT_THAT(fault({{"PRUNEX_ISA", "a\nb"}}), Not(HasSubstr("\n")));
}

TEST(Config, one_process_of_a_node_speaks_for_it) {
  const auto speaks = [](const Variables& set) {
    const auto loaded = load(set);
    EXPECT_TRUE(loaded);
    return loaded && loaded->speaks_for_node;
  };
  EXPECT_TRUE(speaks({}));
  EXPECT_TRUE(speaks({{"RANK", "4"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "0"}}));
  EXPECT_FALSE(speaks({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}}));
  EXPECT_FALSE(speaks({{"OMPI_COMM_WORLD_LOCAL_RANK", "3"}}));
  EXPECT_FALSE(speaks({{"SLURM_LOCALID", "1"}}));
  EXPECT_TRUE(speaks({{"PRUNEX_RANK", "0"}, {"PRUNEX_WORLD_SIZE", "2"}}));
  EXPECT_FALSE(speaks({{"PRUNEX_RANK", "1"}, {"PRUNEX_WORLD_SIZE", "2"}}));
}

TEST(Config, an_empty_value_is_an_unset_one) {
  const auto loaded = load({{"PRUNEX_STREAMS", ""},
                            {"PRUNEX_RANK", ""},
                            {"PRUNEX_NODE_ID", ""},
                            {"NCCL_HOSTID", "a"},
                            {"PRUNEX_NOSUCH", ""}});
  ASSERT_TRUE(loaded) << loaded.error().text;
  EXPECT_EQ(loaded->config.node_id, "a");
  EXPECT_THAT(loaded->warnings, IsEmpty());
}

TEST(Config, nccl_twin_counts_unless_ours_is_set) {
  EXPECT_EQ(good({{"NCCL_SOCKET_IFNAME", "ib"}}).socket_ifname, "ib");
  EXPECT_EQ(good({{"NCCL_SOCKET_IFNAME", "ib"}, {"PRUNEX_SOCKET_IFNAME", "eth"}}).socket_ifname,
            "eth");
  EXPECT_EQ(value_of({{"NCCL_HOSTID", "n1"}}, "PRUNEX_NODE_ID").source, "NCCL_HOSTID");
  EXPECT_EQ(value_of({{"NCCL_HOSTID", "n1"}, {"PRUNEX_NODE_ID", "n2"}}, "PRUNEX_NODE_ID").source,
            "PRUNEX_NODE_ID");
  EXPECT_THAT(fault({{"NCCL_SOCKET_IFNAME", "="}}), HasSubstr("NCCL_SOCKET_IFNAME=="));
}

TEST(Config, nccl_debug_words_that_ask_nothing_of_us) {
  EXPECT_EQ(good({{"NCCL_DEBUG", "INFO"}}).debug, LogLevel::info);
  EXPECT_EQ(good({{"NCCL_DEBUG", "VERSION"}}).debug, LogLevel::warn);
  EXPECT_EQ(good({{"NCCL_DEBUG", "1"}}).debug, LogLevel::warn);
  EXPECT_EQ(good({{"NCCL_DEBUG", "INFO"}, {"PRUNEX_DEBUG", "NONE"}}).debug, LogLevel::none);
}

struct LauncherCase {
  const char* rank;
  const char* size;
};
constexpr LauncherCase kLaunchers[] = {
    {"PRUNEX_RANK", "PRUNEX_WORLD_SIZE"},
    {"RANK", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS"},
};

TEST(Config, rank_and_size_from_every_launcher_in_order) {
  Variables set;
  for (size_t i = std::size(kLaunchers); i-- > 0;) {  // each next one outranks those before
    set[kLaunchers[i].rank] = std::to_string(i);
    set[kLaunchers[i].size] = std::to_string(i + 10);
    const Config c = good(set);
    EXPECT_EQ(c.rank, int(i));
    EXPECT_EQ(c.size, int(i) + 10);
    EXPECT_EQ(value_of(set, "PRUNEX_RANK").source, kLaunchers[i].rank);
    EXPECT_EQ(value_of(set, "PRUNEX_WORLD_SIZE").source, kLaunchers[i].size);
  }
}

TEST(Config, half_a_pair_names_both_and_is_never_completed_elsewhere) {
  for (size_t i = 0; i + 1 < std::size(kLaunchers); ++i) {
    const auto [rank, size] = kLaunchers[i];
    EXPECT_THAT(fault({{rank, "0"}}), AllOf(HasSubstr(rank), HasSubstr(size)));
    EXPECT_THAT(fault({{size, "2"}}), AllOf(HasSubstr(rank), HasSubstr(size)));
    EXPECT_THAT(fault({{rank, "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}),
                AllOf(HasSubstr(rank), HasSubstr(size)));
  }
}

TEST(Config, slurm_sets_halves_outside_a_step) {
  EXPECT_EQ(good({{"SLURM_PROCID", "0"}}).rank, -1);
  EXPECT_EQ(good({{"SLURM_NTASKS", "8"}}).size, -1);
}

TEST(Config, rank_must_be_below_size) {
  EXPECT_THAT(fault({{"RANK", "4"}, {"WORLD_SIZE", "4"}}),
              AllOf(HasSubstr("RANK=4"), HasSubstr("WORLD_SIZE=4")));
  EXPECT_THAT(fault({{"RANK", "x"}, {"WORLD_SIZE", "4"}}), HasSubstr("RANK=x"));
  EXPECT_THAT(fault({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), HasSubstr("WORLD_SIZE=0"));
}

TEST(Reports, A20_typo_or_junk_is_seen) {
  EXPECT_THAT(fault({{"PRUNEX_STREAMS", "abc"}}),
              AllOf(HasSubstr("PRUNEX_STREAMS=abc"), HasSubstr("0 to 64")));
  auto loaded = load({{"PRUNEX_STREAMZ", "2"}});
  ASSERT_TRUE(loaded);
  ASSERT_THAT(loaded->warnings, SizeIs(1));
  EXPECT_THAT(loaded->warnings[0], AllOf(HasSubstr("PRUNEX_STREAMZ"), HasSubstr("PRUNEX_STREAMS")));
  for (const char* name : {"PRUNEX_QPZ", "PRUNEX_QPS"}) {
    loaded = load({{name, "2"}});
    ASSERT_TRUE(loaded);
    ASSERT_THAT(loaded->warnings, SizeIs(1));
    EXPECT_THAT(loaded->warnings[0], HasSubstr("the nearest is PRUNEX_IB_QPS"));
  }
  loaded = load({{"PRUNX_STREAMS", "2"}});
  ASSERT_TRUE(loaded);
  ASSERT_THAT(loaded->warnings, SizeIs(1));
  EXPECT_THAT(loaded->warnings[0], AllOf(HasSubstr("PRUNX_STREAMS"), HasSubstr("PRUNEX_STREAMS")));
  loaded = load({{"PRUNEX_COMPLETELY_ELSE", "2"}});
  ASSERT_TRUE(loaded);
  EXPECT_THAT(loaded->warnings, SizeIs(1));
}

TEST(Config, names_of_others_are_left_alone) {
  const auto loaded = load({{"PRUNE_RATIO", "0.4"},
                            {"PRUNER", "x"},
                            {"PATH", "/bin"},
                            {"P", "1"},
                            {"PRUNE_TIME", "3"},
                            {"NCCL_FOO", "1"}});
  ASSERT_TRUE(loaded);
  EXPECT_THAT(loaded->warnings, IsEmpty());
}

TEST(Config, reads_the_real_environment) {
  ASSERT_EQ(::setenv("PRUNEX_RAILS", "3", 1), 0);
  const Environment environment = process_environment();
  EXPECT_EQ(environment.lookup("PRUNEX_RAILS"), "3");
  EXPECT_EQ(environment.lookup("PRUNEX_SURELY_UNSET"), std::nullopt);
  EXPECT_THAT(environment.names, testing::Contains("PRUNEX_RAILS"));
  ::unsetenv("PRUNEX_RAILS");
}

TEST(EditDistance, counts_slips) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("rank", "rank"), 0u);
  EXPECT_EQ(edit_distance("rnak", "rank"), 1u);
  EXPECT_EQ(edit_distance("ran", "rank"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

}  // namespace
}  // namespace prunex

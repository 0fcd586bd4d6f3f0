// SPDX-License-Identifier: Apache-2.0
// What of NCCL's chooses a GID where no index is given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plugin/base/config.h"

namespace prunex {
namespace {

Result<LoadedConfig> load(std::string name, std::string value) {
  Environment environment;
  environment.names.push_back(name);
  environment.lookup = [=](std::string_view asked) -> std::optional<std::string> {
    return asked == name ? std::optional(value) : std::nullopt;
  };
  return load_config(environment);
}

IbConfig good(std::string name, std::string value) {
  const auto loaded = load(std::move(name), std::move(value));
  EXPECT_TRUE(loaded) << loaded.error().text;
  return loaded ? loaded->config.ib : IbConfig{};
}

TEST(ConfigOfGids, by_both_names) {
  EXPECT_EQ(good("NCCL_IB_ADDR_FAMILY", "AF_INET6").gid_family, Family::v6);
  EXPECT_EQ(good("PRUNEX_IB_ADDR_FAMILY", "AF_INET").gid_family, Family::v4);
  EXPECT_EQ(good("NCCL_IB_ADDR_RANGE", "10.8.0.0/13").gid_range, "10.8.0.0/13");
  EXPECT_EQ(good("PRUNEX_IB_ADDR_RANGE", "fd00::/64").gid_range, "fd00::/64");
  EXPECT_EQ(good("NCCL_IB_ROCE_VERSION_NUM", "1").roce_version, 1);
  EXPECT_EQ(good("PRUNEX_IB_ROCE_VERSION", "2").roce_version, 2);
  EXPECT_EQ(IbConfig{}.roce_version, 2);
}

TEST(ConfigOfGids, junk_is_an_error_that_names_it) {
  const std::pair<const char*, const char*> junk[] = {
      {"PRUNEX_IB_ADDR_FAMILY", "IPv4"},      {"PRUNEX_IB_ADDR_RANGE", "10.0.0.0/33"},
      {"NCCL_IB_ADDR_RANGE", "10.0.0/8"},     {"NCCL_IB_ADDR_RANGE", "fd00::/"},
      {"PRUNEX_IB_ADDR_RANGE", "node1/8"},    {"PRUNEX_IB_ADDR_RANGE", "fd00::/129"},
      {"PRUNEX_IB_ADDR_RANGE", "10.0.0.0/x"}, {"NCCL_IB_ROCE_VERSION_NUM", "3"}};
  for (const auto& [name, value] : junk) {
    const auto loaded = load(name, value);
    ASSERT_FALSE(loaded) << name << "=" << value;
    EXPECT_THAT(loaded.error().text, testing::HasSubstr(std::string(name) + "=" + value));
  }
}

}  // namespace
}  // namespace prunex

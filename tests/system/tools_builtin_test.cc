// SPDX-License-Identifier: Apache-2.0
// NCCL's own networks, found in libraries that are like libnccl in what matters.
#include "tools/net_builtin.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tools/net_api.h"

namespace prunex::tools {
namespace {

using testing::HasSubstr;

std::string library(const char* variable) {
  const char* const path = std::getenv(variable);
  EXPECT_NE(path, nullptr) << variable;
  return path == nullptr ? "" : path;
}

TEST(BuiltinNet, table_that_nothing_exports_is_found_with_the_version_of_its_release) {
  const auto net = open_net(library("BUILTIN_22809"), 0, "IB");
  ASSERT_TRUE(net) << net.error().text;
  EXPECT_EQ(net->api->version(), 11);
  EXPECT_STREQ(net->api->name(), "IB");
  const auto older = open_net(library("BUILTIN_22005"), 8, "IB");
  ASSERT_TRUE(older) << older.error().text;
  EXPECT_EQ(older->api->version(), 8);
}

TEST(BuiltinNet, another_version_than_the_release_has_is_refused) {
  const auto net = open_net(library("BUILTIN_22809"), 12, "IB");
  ASSERT_FALSE(net);
  EXPECT_THAT(net.error().text, HasSubstr("v11"));
}

TEST(BuiltinNet, network_that_is_not_there) {
  const auto net = open_net(library("BUILTIN_22809"), 0, "Socket");
  ASSERT_FALSE(net);
  EXPECT_THAT(net.error().text, HasSubstr("ncclNetSocket"));
  EXPECT_THAT(net.error().text, HasSubstr("stripped"));
}

TEST(BuiltinNet, release_whose_tables_nobody_knows) {
  const auto net = open_net(library("BUILTIN_99999"), 0, "IB");
  ASSERT_FALSE(net);
  EXPECT_THAT(net.error().text, HasSubstr("99999"));
}

TEST(BuiltinNet, nccl_that_cannot_be_loaded) {
  const auto net = open_net("libnccl-nowhere.so.2", 0, "IB");
  ASSERT_FALSE(net);
  EXPECT_THAT(net.error().text, HasSubstr("libnccl-nowhere.so.2"));
  EXPECT_THAT(net.error().text, HasSubstr("--plugin"));
  const auto plugin = open_net("libnccl-net-nowhere.so", 0, "");
  ASSERT_FALSE(plugin);
  EXPECT_THAT(plugin.error().text, HasSubstr("cannot load the plugin"));
}

TEST(BuiltinNet, library_that_is_not_nccl) {
  const auto net = open_net("libc.so.6", 0, "IB");
  ASSERT_FALSE(net);
  EXPECT_THAT(net.error().text, HasSubstr("ncclGetVersion"));
}

// Every prefix of the file, and a file whose tables point anywhere: an answer, and no read outside.
TEST(BuiltinNet, files_that_are_broken) {
  std::ifstream in(library("BUILTIN_22809"), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  ASSERT_GT(whole.size(), 1000U);
  char folder[] = "/tmp/prunex-builtin-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/lib.so";
  const auto answer_of = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return local_symbol(path, "ncclNetIb");
  };
  EXPECT_TRUE(answer_of(whole));
  for (const size_t length :
       {size_t{0}, size_t{1}, size_t{63}, size_t{64}, whole.size() / 2, whole.size() - 1}) {
    EXPECT_FALSE(answer_of(whole.substr(0, length))) << length;
  }
  for (size_t at = 40; at < 64; ++at) {  // where sections are, how long, how many
    std::string bent = whole;
    bent[at] = static_cast<char>(bent[at] ^ 0xFF);
    (void)answer_of(bent);
  }
  EXPECT_FALSE(local_symbol(std::string(folder) + "/none.so", "ncclNetIb"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace prunex::tools

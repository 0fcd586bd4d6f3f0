// SPDX-License-Identifier: Apache-2.0
// Which ports a machine offers under which settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "plugin/transport/choose.h"
#include "tests/transport/fake_verbs.h"

namespace prunex::transport {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> names(const Rdma& rdma) {
  std::vector<std::string> out;
  for (const RdmaPort& port : rdma.ports) {
    out.push_back(port.info.name());
  }
  return out;
}

fake::FakeDevice infiniband(const char* name) {
  fake::FakeDevice device = fake::plain_device(name, 2);
  device.ports[0].link_layer = IBV_LINK_LAYER_INFINIBAND;
  device.ports[0].lid = 4;
  device.ports[0].gids.resize(1);
  device.ports[0].gids[0].type = IBV_GID_TYPE_IB;
  device.ports[0].pkeys = {0xFFFF, 0x8001};
  return device;
}

class VerbsChoose : public testing::Test {
 protected:
  fake::World world_{{fake::plain_device("mlx5_0"), infiniband("mlx5_1")}};
  Config config_;

  Result<Rdma> found() { return find_rdma(config_, &world_.api()); }
};

TEST_F(VerbsChoose, every_port_without_settings) {
  const auto rdma = found();
  ASSERT_TRUE(rdma) << rdma.error().text;
  EXPECT_THAT(names(*rdma), ElementsAre("mlx5_0:1", "mlx5_1:1"));
  EXPECT_THAT(rdma->warnings, IsEmpty());
}

// InfiniBand and RoCE have tables of their own: what only one of them has is for its ports.
TEST_F(VerbsChoose, setting_for_some_ports_leaves_the_others_out) {
  config_.ib.pkey = 0x8001;
  auto rdma = found();
  ASSERT_TRUE(rdma) << rdma.error().text;
  EXPECT_THAT(names(*rdma), ElementsAre("mlx5_1:1"));
  ASSERT_EQ(rdma->warnings.size(), 1U);
  EXPECT_THAT(rdma->warnings[0], HasSubstr("mlx5_0:1 is not used: PRUNEX_IB_PKEY=0x8001"));
  config_.ib.pkey = -1;
  config_.ib.gid_index = 1;
  rdma = found();
  ASSERT_TRUE(rdma) << rdma.error().text;
  EXPECT_THAT(names(*rdma), ElementsAre("mlx5_0:1"));
  ASSERT_EQ(rdma->warnings.size(), 1U);
  EXPECT_THAT(rdma->warnings[0], HasSubstr("mlx5_1:1 is not used: PRUNEX_IB_GID_INDEX=1"));
}

TEST_F(VerbsChoose, setting_that_no_port_keeps_is_an_error) {
  config_.ib.pkey = 0x8009;
  auto rdma = found();
  ASSERT_FALSE(rdma);
  EXPECT_EQ(rdma.error().code, Code::config);
  EXPECT_THAT(rdma.error().text, HasSubstr("PRUNEX_IB_PKEY=0x8009"));
}

TEST_F(VerbsChoose, partition_of_a_roce_port_is_used) {
  world_.device(0).ports[0].pkeys = {0xFFFF, 0x8009};
  VerbsOptions options;
  options.api = &world_.api();
  options.pkey = 0x8009;
  options.hca = "mlx5_0";
  const auto transport = open_verbs_transport(options);
  ASSERT_TRUE(transport) << transport.error().text;
  config_.ib.pkey = 0x8009;
  const auto rdma = found();
  ASSERT_TRUE(rdma) << rdma.error().text;
  EXPECT_THAT(names(*rdma), ElementsAre("mlx5_0:1"));
}

// iWARP knows no write that announces itself, Amazon's EFA no reliable connection: both would be
// opened, and fail when the ends connect.
TEST(VerbsChooseKinds, devices_of_another_kind_are_left_out) {
  fake::FakeDevice iwarp = fake::plain_device("siw0", 2), efa = fake::plain_device("efa_0", 3);
  iwarp.kind = IBV_TRANSPORT_IWARP;
  efa.kind = IBV_TRANSPORT_UNSPECIFIED;
  efa.ports[0].link_layer = IBV_LINK_LAYER_UNSPECIFIED;
  {
    fake::World world({iwarp, fake::plain_device("mlx5_0"), efa});
    const auto rdma = find_rdma({}, &world.api());
    ASSERT_TRUE(rdma) << rdma.error().text;
    EXPECT_THAT(names(*rdma), ElementsAre("mlx5_0:1"));
    EXPECT_THAT(rdma->notes, testing::UnorderedElementsAre(HasSubstr("siw0:1 is not used: it is "
                                                                     "iWARP"),
                                                           HasSubstr("efa_0:1 is not used")));
  }
  fake::World world({iwarp, efa});
  const auto rdma = find_rdma({}, &world.api());
  ASSERT_TRUE(rdma) << rdma.error().text;
  EXPECT_FALSE(rdma->usable());
  EXPECT_THAT(rdma->why_not, HasSubstr("iWARP"));
}

// rdma-core before 32 cannot be asked for a GID's type, the kernel can.
TEST(VerbsChooseKinds, types_of_gids_are_read_from_the_kernel_where_the_library_is_old) {
  char folder[] = "/tmp/prunex-gids-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string types = std::string(folder) + "/ports/1/gid_attrs/types";
  std::filesystem::create_directories(types);
  fake::FakeDevice device = fake::plain_device("mlx5_0");
  auto& gids = device.ports[0].gids;
  gids = {gids[0], gids[1], gids[1]};  // as mlx5 has them: each address as v1, then as v2
  for (const auto& [index, type] :
       {std::pair(0, "IB/RoCE v1\n"), {1, "IB/RoCE v1\n"}, {2, "RoCE v2\n"}}) {
    std::ofstream(types + "/" + std::to_string(index)) << type;
  }
  device.sysfs = folder;
  {
    fake::World world({device});
    world.api_to_change().query_gid_ex = nullptr;
    VerbsOptions options;
    options.api = &world.api();
    const auto ports = list_verbs_ports(options);
    ASSERT_TRUE(ports) << ports.error().text;
    const auto gid = verbs::choose_gid(ports->at(0), -1);
    ASSERT_TRUE(gid) << gid.error().text;
    EXPECT_EQ(gid->index, 2);
    EXPECT_EQ(gid->type, verbs::GidType::roce_v2);
  }
  std::filesystem::remove_all(folder);
}

// A port that is in no partition is its machine's fault: another port, or TCP.
TEST_F(VerbsChoose, port_in_no_partition_is_left_out) {
  world_.device(1).ports[0].pkeys = {0};
  auto rdma = found();
  ASSERT_TRUE(rdma) << rdma.error().text;
  EXPECT_THAT(names(*rdma), ElementsAre("mlx5_0:1"));
  EXPECT_THAT(rdma->warnings, IsEmpty());
  config_.ib.hca = "mlx5_1";
  rdma = found();
  ASSERT_TRUE(rdma) << rdma.error().text;
  EXPECT_THAT(rdma->why_not, HasSubstr("subnet manager"));
}

TEST_F(VerbsChoose, list_that_matches_nothing_is_an_error) {
  config_.ib.hca = "mlxl5_7";
  auto rdma = found();
  ASSERT_FALSE(rdma);
  EXPECT_THAT(rdma.error().text, HasSubstr("\"mlxl5_7\""));
  EXPECT_THAT(rdma.error().text, HasSubstr("mlx5_0:1, mlx5_1:1"));
  config_.ib.hca = "^mlx5";  // nothing was named that is not there
  rdma = found();
  ASSERT_TRUE(rdma) << rdma.error().text;
  EXPECT_FALSE(rdma->usable());
  EXPECT_TRUE(rdma->named);  // TCP then, and a WARN that says so
  config_.ib.hca.clear();
  rdma = found();
  ASSERT_TRUE(rdma) << rdma.error().text;
  EXPECT_FALSE(rdma->named);
}

}  // namespace
}  // namespace prunex::transport

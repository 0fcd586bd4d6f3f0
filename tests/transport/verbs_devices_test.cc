// SPDX-License-Identifier: Apache-2.0
// Device, GID and partition choice on described machines.
#include <gtest/gtest.h>

#include "plugin/base/hca_filter.h"
#include "plugin/transport/verbs/devices.h"

namespace prunex::transport::verbs {
namespace {

PortInfo port_of(const char* device, int port = 1, const char* trouble = "") {
  PortInfo p;
  p.device = device;
  p.port = port;
  p.trouble = trouble;
  p.link = Link::ethernet;
  return p;
}

GidBytes ipv4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d};
}
constexpr GidBytes kLinkLocal = {0xFE, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xFF, 0xFE, 0, 0, 1};
constexpr GidBytes kGlobalV6 = {0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7};

std::vector<std::string> chosen(const std::vector<PortInfo>& have, std::string_view filter) {
  const auto r = select_ports(have, filter);
  std::vector<std::string> out;
  for (const size_t i : r ? r->ports : std::vector<size_t>()) {
    out.push_back(have[i].name());
  }
  return out;
}

using Names = std::vector<std::string>;

TEST(Reports, B15_hca_filter_grammar) {
  const std::vector<PortInfo> have = {port_of("mlx5_1"), port_of("mlx5_1", 2), port_of("mlx5_11")};
  EXPECT_EQ(chosen(have, ""), (Names{"mlx5_1:1", "mlx5_1:2", "mlx5_11:1"}));
  EXPECT_EQ(chosen(have, "=mlx5_1:1"), (Names{"mlx5_1:1"}));
  EXPECT_EQ(chosen(have, "mlx5_1"), (Names{"mlx5_1:1", "mlx5_1:2", "mlx5_11:1"}));
  EXPECT_EQ(chosen(have, "=mlx5_1"), (Names{"mlx5_1:1", "mlx5_1:2"}));
  EXPECT_EQ(chosen(have, "^mlx5_1"), Names{});
  EXPECT_EQ(chosen(have, "^=mlx5_1"), (Names{"mlx5_11:1"}));
  EXPECT_EQ(chosen(have, "^=mlx5_1:2,mlx5_11"), (Names{"mlx5_1:1"}));
  EXPECT_EQ(chosen(have, "mlx5:1:0:0"), (Names{"mlx5_1:1", "mlx5_11:1"}));  // rail, plane
  const Names all = {"mlx5_1:1", "mlx5_1:2", "mlx5_11:1"};
  for (const char* list : {",mlx5_11", "mlx5_11,", "mlx5_11,,mlx5_11", "mlx5_11:", "mlx5_11::0"}) {
    EXPECT_EQ(chosen(have, list), Names{"mlx5_11:1"}) << list;
  }
  for (const char* none_named : {"=", ",", ",,"}) {
    EXPECT_EQ(chosen(have, none_named), all) << none_named;
  }
  for (const char* all_excluded : {"^", "^=", "^,"}) {
    EXPECT_EQ(chosen(have, all_excluded), Names{}) << all_excluded;
  }
  const auto spaced = select_ports(have, "mlx5_11, mlx5_1");  // NCCL keeps the space as well
  ASSERT_TRUE(spaced);
  EXPECT_EQ(spaced->ports.size(), 1U);
  ASSERT_EQ(spaced->notes.size(), 1U);
  EXPECT_NE(spaced->notes[0].find("\" mlx5_1\""), std::string::npos) << spaced->notes[0];

  const auto none = select_ports(have, "mlxl5_7");
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().text.find("\"mlxl5_7\""), std::string::npos) << none.error().text;
  EXPECT_NE(none.error().text.find("NCCL_IB_HCA"), std::string::npos) << none.error().text;
  EXPECT_NE(none.error().text.find("mlx5_11:1"), std::string::npos) << none.error().text;
  const auto some = select_ports(have, "mlxl5_7,mlx5_11");
  ASSERT_TRUE(some);
  EXPECT_EQ(some->ports.size(), 1U);
  ASSERT_EQ(some->notes.size(), 1U);
  EXPECT_NE(some->notes[0].find("mlxl5_7"), std::string::npos) << some->notes[0];
  EXPECT_NE(some->notes[0].find("NCCL_IB_HCA"), std::string::npos) << some->notes[0];
  for (const char* junk : {"mlx5_0:x", "mlx5_0:0", ":1", "mlx5_0:1x", "a:999"}) {
    const auto r = parse_hca_filter(junk);
    ASSERT_FALSE(r) << junk;
    EXPECT_NE(r.error().text.find(junk), std::string::npos) << r.error().text;
  }
}

TEST(Reports, B16_unusable_ports_are_left_out_with_their_reason) {
  const std::vector<PortInfo> have = {port_of("rxe0"),
                                      port_of("rxe1", 1, "cannot be opened: EPERM"),
                                      port_of("rxe2", 1, "its state is DOWN")};
  const auto r = select_ports(have, "");
  ASSERT_TRUE(r);
  EXPECT_EQ(r->ports, std::vector<size_t>{0});
  ASSERT_EQ(r->notes.size(), 2U);
  EXPECT_NE(r->notes[0].find("EPERM"), std::string::npos);
  EXPECT_NE(r->notes[1].find("DOWN"), std::string::npos);
  const auto none = select_ports(have, "^rxe0");
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().text.find("EPERM"), std::string::npos) << none.error().text;
  ASSERT_FALSE(select_ports({}, ""));
}

TEST(Reports, B18_two_functions_are_two_devices) {
  auto a = port_of("mlx5_0"), b = port_of("mlx5_1");
  a.pci = "0000:3b:00.0";
  b.pci = "0000:3b:00.1";
  EXPECT_NE(a.identity(), b.identity());
  EXPECT_EQ(chosen({a, b}, ""), (Names{"mlx5_0:1", "mlx5_1:1"}));
  EXPECT_NE(port_of("rxe0").identity(), port_of("rxe1").identity());  // no PCI function at all
}

TEST(VerbsDevices, roce_v2_and_routable_gids_first) {
  PortInfo p = port_of("mlx5_0");
  p.gids = {{0, kLinkLocal, GidType::roce_v1},
            {1, kLinkLocal, GidType::roce_v2},
            {2, ipv4(10, 0, 0, 1), GidType::roce_v1},
            {4, kGlobalV6, GidType::roce_v2},
            {5, ipv4(10, 0, 0, 1), GidType::roce_v2}};
  EXPECT_EQ(choose_gid(p, -1)->index, 5);
  EXPECT_EQ(choose_gid(p, 2)->index, 2);
  p.gids.pop_back();
  EXPECT_EQ(choose_gid(p, -1)->index, 4);
  p.gids.pop_back();
  EXPECT_EQ(choose_gid(p, -1)->index, 1);
  const auto missing = choose_gid(p, 3);
  ASSERT_FALSE(missing);
  for (const char* part :
       {"PRUNEX_IB_GID_INDEX=3", "NCCL_IB_GID_INDEX", "mlx5_0:1", "10.0.0.1", "RoCE v1"}) {
    EXPECT_NE(missing.error().text.find(part), std::string::npos) << missing.error().text;
  }
  p.gids.clear();
  EXPECT_FALSE(choose_gid(p, -1));
  p.link = Link::infiniband;
  EXPECT_TRUE(choose_gid(p, -1));
}

// NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE and NCCL_IB_ROCE_VERSION_NUM: without an index only.
TEST(VerbsDevices, gids_of_the_family_network_and_version_that_are_asked_for) {
  PortInfo p = port_of("mlx5_0");
  p.gids = {{0, kLinkLocal, GidType::roce_v2},        {1, ipv4(10, 0, 0, 1), GidType::roce_v1},
            {2, ipv4(10, 0, 0, 1), GidType::roce_v2}, {3, kGlobalV6, GidType::roce_v1},
            {4, kGlobalV6, GidType::roce_v2},         {5, ipv4(192, 168, 5, 1), GidType::roce_v2}};
  const auto chosen_by = [&](Family family, std::string range, int version, int index = -1) {
    const auto gid = choose_gid(p, index, {family, std::move(range), version});
    return gid ? gid->index : -1;
  };
  EXPECT_EQ(chosen_by(Family::any, "", 2), 2);
  EXPECT_EQ(chosen_by(Family::v6, "", 2), 4);
  EXPECT_EQ(chosen_by(Family::v6, "", 1), 3);
  EXPECT_EQ(chosen_by(Family::v4, "", 1), 1);
  EXPECT_EQ(chosen_by(Family::any, "", 1), 1);
  EXPECT_EQ(chosen_by(Family::any, "192.168.4.0/22", 2), 5);
  EXPECT_EQ(chosen_by(Family::any, "192.168.0.0/22", 2), -1);
  EXPECT_EQ(chosen_by(Family::v4, "192.168.4.0/22", 1), 5);
  EXPECT_EQ(chosen_by(Family::v4, "", 2, 3), 3);  // the index comes first
  EXPECT_EQ(chosen_by(Family::v4, "172.16.0.0/12", 2, 3), 3);
  p.gids.resize(1);
  EXPECT_EQ(chosen_by(Family::v4, "", 1), 0);  // what there is
  const auto none = choose_gid(p, -1, {Family::any, "10.0.0.0/8", 2});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::config);
  for (const char* part :
       {"PRUNEX_IB_ADDR_RANGE=10.0.0.0/8", "NCCL_IB_ADDR_RANGE", "mlx5_0:1", "fe80::"}) {
    EXPECT_NE(none.error().text.find(part), std::string::npos) << none.error().text;
  }
  p.link = Link::infiniband;
  EXPECT_TRUE(choose_gid(p, -1, {Family::any, "10.0.0.0/8", 2}));
}

TEST(Reports, B5_partition_keys) {
  PortInfo p = port_of("mlx5_0");
  p.link = Link::infiniband;
  p.pkeys = {0x0000, 0x8005, 0x8000, 0x7FFF};
  EXPECT_EQ(*choose_pkey(p, -1), 1);
  EXPECT_EQ(*choose_pkey(p, 0x8005), 1);
  EXPECT_EQ(*choose_pkey(p, 1), 1);
  EXPECT_EQ(*choose_pkey(p, 3), 3);
  EXPECT_EQ(*choose_pkey(p, 0x7FFF), 3);
  for (const int bad : {0, 2, 0x8006, 4}) {
    const auto r = choose_pkey(p, bad);
    ASSERT_FALSE(r) << bad;
    EXPECT_NE(r.error().text.find("mlx5_0:1"), std::string::npos) << r.error().text;
    EXPECT_NE(r.error().text.find("0x8005"), std::string::npos) << r.error().text;
    EXPECT_NE(r.error().text.find("NCCL_IB_PKEY"), std::string::npos) << r.error().text;
  }
  p.pkeys = {0};
  EXPECT_FALSE(choose_pkey(p, -1));
  EXPECT_EQ(choose_pkey(p, -1).error().code, Code::unsupported) << "the machine's fault";
  p.link = Link::ethernet;
  EXPECT_EQ(*choose_pkey(p, -1), 0);
  p.pkeys = {0xFFFF, 0x8006};  // RoCE has a table, too
  EXPECT_EQ(*choose_pkey(p, -1), 0);
  EXPECT_EQ(*choose_pkey(p, 0), 0);
  EXPECT_EQ(*choose_pkey(p, 0x8006), 1);
  const auto missing = choose_pkey(p, 0x8001);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::config);
  for (const char* part : {"PRUNEX_IB_PKEY=0x8001", "NCCL_IB_PKEY", "mlx5_0:1", "0: 0xffff"}) {
    EXPECT_NE(missing.error().text.find(part), std::string::npos) << missing.error().text;
  }
}

TEST(Reports, B6_when_a_global_route_is_needed) {
  PortInfo p = port_of("mlx5_0");
  GidBytes own = kLinkLocal, peer = kLinkLocal;
  peer[15] = 9;
  EXPECT_TRUE(needs_global_route(p, own, peer));
  p.link = Link::infiniband;
  EXPECT_FALSE(needs_global_route(p, own, peer));
  p.grh_required = true;
  EXPECT_TRUE(needs_global_route(p, own, peer));
  p.grh_required = false;
  peer[7] = 1;
  EXPECT_TRUE(needs_global_route(p, own, peer));
}

}  // namespace
}  // namespace prunex::transport::verbs

// SPDX-License-Identifier: Apache-2.0
// Which devices NCCL is shown, and in which order.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plugin/nccl/net/devices.h"

namespace prunex::nccl {
namespace {

Interface interface(const std::string& name, const std::string& address, bool loopback = false) {
  return {name, *parse_host(address, 0), true, loopback};
}

topo::Nic nic(const std::string& name, std::vector<std::string> path, int speed) {
  topo::Nic out;
  out.netdev = name;
  out.speed_mbps = speed;
  out.place.path = std::move(path);
  return out;
}

struct Bench {
  std::vector<Interface> have{
      interface("lo", "127.0.0.1", true), interface("zeth", "10.1.0.1"),
      interface("aeth", "10.2.0.1"),      interface("ens1f1", "10.3.0.1"),
      interface("ens1f0", "10.4.0.1"),    interface("veth0", "10.5.0.1"),
  };
  topo::Machine machine;
  Config config;
  Bench() {
    machine.nics = {
        nic("aeth", {"pci0000:80", "0000:80:01.0", "0000:81:00.0"}, 200000),
        nic("zeth", {"pci0000:00", "0000:00:01.0", "0000:01:00.0"}, 100000),
        nic("ens1f0", {"pci0000:40", "0000:40:01.0", "0000:41:00.0"}, 25000),
        nic("ens1f1", {"pci0000:40", "0000:40:01.0", "0000:41:00.0"}, 25000),
        nic("veth0", {}, 0),
    };
  }
};

std::vector<std::string> names(const std::vector<Device>& devices) {
  std::vector<std::string> out;
  for (const Device& d : devices) {
    out.push_back(d.name);
  }
  return out;
}

TEST(Reports, A8_device_order_is_by_pci_address_whatever_the_kernel_lists) {
  Bench bench;
  std::mt19937 random(1);
  const std::vector<std::string> expected{"zeth", "ens1f0", "ens1f1", "aeth", "veth0"};
  std::vector<uint64_t> guids;
  for (int i = 0; i < 20; ++i) {
    std::shuffle(bench.have.begin(), bench.have.end(), random);
    std::shuffle(bench.machine.nics.begin(), bench.machine.nics.end(), random);
    const auto devices = choose_devices(bench.have, bench.machine, bench.config);
    ASSERT_TRUE(devices) << devices.error().text;
    ASSERT_EQ(names(*devices), expected) << "shuffle " << i;
    EXPECT_EQ((*devices)[0].pci_path, "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0");
    EXPECT_EQ((*devices)[0].speed_mbps, 100000);
    EXPECT_EQ((*devices)[1].port, 0);
    EXPECT_EQ((*devices)[2].port, 1) << "two interfaces of one function are two ports";
    EXPECT_EQ((*devices)[4].pci_path, "");
    EXPECT_EQ((*devices)[4].speed_mbps, kAssumedSpeedMbps);
    std::vector<uint64_t> now;
    for (const Device& d : *devices) {
      now.push_back(d.guid);
    }
    EXPECT_TRUE(guids.empty() || guids == now);
    guids = now;
  }
  std::sort(guids.begin(), guids.end());
  EXPECT_EQ(std::unique(guids.begin(), guids.end()), guids.end()) << "two devices look like one";
}

TEST(Devices, the_filter_is_that_of_nccl) {
  Bench bench;
  bench.config.socket_ifname = "ens1";
  EXPECT_EQ(names(*choose_devices(bench.have, bench.machine, bench.config)),
            (std::vector<std::string>{"ens1f0", "ens1f1"}));
  bench.config.socket_ifname = "=ens1f1,aeth";
  EXPECT_EQ(names(*choose_devices(bench.have, bench.machine, bench.config)),
            (std::vector<std::string>{"ens1f1", "aeth"}));
  bench.config.socket_ifname = "^ens1,veth";
  EXPECT_EQ(names(*choose_devices(bench.have, bench.machine, bench.config)),
            (std::vector<std::string>{"zeth", "aeth"}));
}

TEST(Reports, C1_filter_without_a_device_names_it_and_what_there_is) {
  Bench bench;
  bench.config.socket_ifname = "eth77";
  const auto devices = choose_devices(bench.have, bench.machine, bench.config);
  ASSERT_FALSE(devices);
  EXPECT_NE(devices.error().text.find("eth77"), std::string::npos) << devices.error().text;
  EXPECT_NE(devices.error().text.find("lo(127.0.0.1)"), std::string::npos) << devices.error().text;
}

TEST(Devices, the_family_decides_between_addresses_of_one_interface) {
  Bench bench;
  bench.have.push_back(interface("zeth", "fd00::1"));
  const auto both = choose_devices(bench.have, bench.machine, bench.config);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->size(), 5U);
  EXPECT_EQ(host_text((*both)[0].address), "10.1.0.1");
  bench.config.family = Family::v6;
  const auto six = choose_devices(bench.have, bench.machine, bench.config);
  ASSERT_TRUE(six);
  ASSERT_EQ(six->size(), 1U);
  EXPECT_EQ(host_text((*six)[0].address), "fd00::1");
  bench.have.pop_back();
  const auto none = choose_devices(bench.have, bench.machine, bench.config);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().text.find("IPv6"), std::string::npos) << none.error().text;
}

TEST(Devices, loopback_only_when_there_is_nothing_else) {
  Bench bench;
  bench.have.resize(1);
  EXPECT_EQ(names(*choose_devices(bench.have, bench.machine, bench.config)),
            (std::vector<std::string>{"lo"}));
}

}  // namespace
}  // namespace prunex::nccl

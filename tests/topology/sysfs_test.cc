// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/topology/support.h"

namespace prunex::topo {
namespace {

using test::FakeSysfs;
using test::nic_of;
using test::path_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Sysfs, numa_nodes_packages_and_nics) {
  FakeSysfs sys;
  sys.two_numas();
  sys.file("devices/pci0000:80/0000:80:02.0/0000:81:00.0/numa_node", "1");
  sys.net("eth0", "devices/pci0000:80/0000:80:02.0/0000:81:00.0", "100000");
  const Machine m = discover_sysfs(sys.root());
  ASSERT_EQ(m.packages.size(), 2U);
  ASSERT_EQ(m.numas.size(), 2U);
  EXPECT_EQ(m.numas[1].cpus.text(), "4-7");
  EXPECT_EQ(m.numas[1].package, 1);
  EXPECT_EQ(m.numas[1].memory_bytes, uint64_t{16} << 30);
  const Nic& nic = nic_of(m, "eth0");
  EXPECT_EQ(nic.speed_mbps, 100000);
  EXPECT_EQ(nic.place.numa, 1);
  EXPECT_EQ(nic.place.package, 1);
  EXPECT_THAT(nic.place.path, ElementsAre("pci0000:80", "0000:80:02.0", "0000:81:00.0"));
}

TEST(Sysfs, unknown_speeds_are_zero) {
  FakeSysfs sys;
  int i = 0;
  for (const char* text : {"-1", "4294967295", "0", "", "abc", "99999999999999999999"}) {
    sys.net("eth" + std::to_string(i), "devices/pci0000:00/0000:00:0" + std::to_string(i) + ".0",
            text);
    ++i;
  }
  sys.file("class/net/bonding_masters",
           "");  // a plain file among the links, as with the bonding module
  const Machine m = discover_sysfs(sys.root());
  ASSERT_EQ(m.nics.size(), 6U);
  for (const Nic& nic : m.nics) {
    EXPECT_EQ(nic.speed_mbps, 0) << nic.netdev;
  }
}

TEST(Sysfs, virtio_parents_and_numa_minus_one) {
  FakeSysfs sys;
  sys.two_numas();
  sys.file("devices/pci0000:00/0000:00:03.0/numa_node", "-1");
  sys.net("eth0", "devices/pci0000:00/0000:00:03.0/virtio2", "-1");
  const Machine m = discover_sysfs(sys.root());
  EXPECT_THAT(path_of(m, "eth0"), ElementsAre("pci0000:00", "0000:00:03.0"));
  EXPECT_EQ(nic_of(m, "eth0").place.numa, -1);
}

TEST(Sysfs, interfaces_without_a_device_are_left_out) {
  FakeSysfs sys;
  sys.file("devices/virtual/net/lo/mtu", "65536");
  sys.link("class/net/lo", "devices/virtual/net/lo");
  sys.file("devices/virtual/net/docker0/mtu", "1500");
  sys.link("class/net/docker0", "devices/virtual/net/docker0");
  EXPECT_THAT(discover_sysfs(sys.root()).nics, IsEmpty());
}

TEST(Sysfs, a_nic_without_pci_keeps_its_numa_node) {
  FakeSysfs sys;
  sys.two_numas();
  sys.file("devices/platform/soc/fe300000.ethernet/numa_node", "0");
  sys.net("eth0", "devices/platform/soc/fe300000.ethernet", "1000");
  const Machine m = discover_sysfs(sys.root());
  EXPECT_THAT(path_of(m, "eth0"), IsEmpty());
  EXPECT_EQ(nic_of(m, "eth0").place.numa, 0);
}

TEST(Sysfs, rdma_devices_join_their_interface) {
  FakeSysfs sys;
  sys.two_numas();
  const std::string a = "devices/pci0000:15/0000:15:01.0/0000:18:00.0";
  const std::string b = "devices/pci0000:80/0000:80:01.0/0000:81:00.0";
  sys.net("ib0", a, "");
  sys.infiniband("mlx5_0", a, "200 Gb/sec (4X HDR)");
  sys.infiniband("mlx5_10", b, "2.5 Gb/sec (1X SDR)");
  sys.file("class/infiniband/mlx5_10/ports/2/rate", "100 Gb/sec (4X EDR)");
  sys.infiniband("mlx5_2", "devices/pci0000:90/0000:90:00.0", "garbage");
  sys.file("class/infiniband/rxe0/parent", "ib0");  // Soft-RoCE beside the real one
  const Machine m = discover_sysfs(sys.root());
  EXPECT_EQ(nic_of(m, "mlx5_0").netdev, "ib0");
  EXPECT_EQ(nic_of(m, "mlx5_10").speed_mbps, 100000);
  EXPECT_EQ(nic_of(m, "mlx5_10").netdev, "");
  EXPECT_EQ(nic_of(m, "mlx5_2").speed_mbps, 0);
  // As people count.
  EXPECT_EQ(m.nics[1].ibdev, "mlx5_2");
  EXPECT_EQ(m.nics[2].ibdev, "mlx5_10");
  EXPECT_EQ(m.nics[3].ibdev, "rxe0");
}

TEST(Sysfs, soft_roce_lies_on_its_interface) {
  FakeSysfs sys;
  sys.net("eth0", "devices/pci0000:00/0000:00:03.0", "1000");
  sys.file("devices/virtual/infiniband/rxe0/parent", "eth0");
  sys.link("class/infiniband/rxe0", "devices/virtual/infiniband/rxe0");
  const Machine m = discover_sysfs(sys.root());
  ASSERT_EQ(m.nics.size(), 1U);
  EXPECT_EQ(m.nics[0].ibdev, "rxe0");
}

TEST(Sysfs, two_ports_of_one_function_are_two_nics) {
  FakeSysfs sys;
  const std::string device = "devices/pci0000:00/0000:00:02.0/0000:04:00.0";
  sys.net("eth2", device, "40000");
  sys.net("eth3", device, "40000");
  sys.infiniband("mlx4_0", device, "40 Gb/sec (4X QDR)");
  const Machine m = discover_sysfs(sys.root());
  ASSERT_EQ(m.nics.size(), 2U);
  EXPECT_EQ(m.nics[0].ibdev, "mlx4_0");
  EXPECT_EQ(m.nics[1].ibdev, "mlx4_0");
}

void make_bond(FakeSysfs& sys) {
  sys.file("devices/virtual/net/bond0/speed", "50000");
  sys.link("class/net/bond0", "devices/virtual/net/bond0");
  for (const char* lower : {"eth0", "eth1"}) {
    sys.link(std::string("devices/virtual/net/bond0/lower_") + lower,
             std::string("class/net/") + lower);
  }
}

TEST(Sysfs, a_bond_is_where_its_members_are) {
  FakeSysfs sys;
  sys.two_numas();
  for (const char* f : {"0", "1"}) {
    const std::string device = std::string("devices/pci0000:80/0000:80:02.0/0000:81:00.") + f;
    sys.file(device + "/numa_node", "1");
    sys.net(std::string("eth") + f, device, "25000");
  }
  make_bond(sys);
  // A VLAN on the bond, and a cycle that no kernel makes.
  sys.link("devices/virtual/net/bond0.7/lower_bond0", "class/net/bond0");
  sys.link("class/net/bond0.7", "devices/virtual/net/bond0.7");
  sys.link("devices/virtual/net/loop/lower_loop", "devices/virtual/net/loop");
  sys.link("class/net/loop", "devices/virtual/net/loop");
  const Machine m = discover_sysfs(sys.root());
  for (const char* name : {"bond0", "bond0.7"}) {
    EXPECT_EQ(nic_of(m, name).place.numa, 1);
    EXPECT_THAT(path_of(m, name), ElementsAre("pci0000:80", "0000:80:02.0"));
  }
  EXPECT_EQ(nic_of(m, "bond0").speed_mbps, 50000);
  EXPECT_THAT(m.notes, IsEmpty());
}

TEST(Sysfs, memory_without_cpus_is_no_error) {
  FakeSysfs sys;
  sys.two_numas();
  sys.file("devices/system/node/node2/cpulist", "");
  const Machine m = discover_sysfs(sys.root());
  ASSERT_EQ(m.numas.size(), 3U);
  EXPECT_TRUE(m.numas[2].cpus.empty());
}

TEST(Sysfs, a_kernel_without_numa_has_one_node) {
  FakeSysfs sys;
  sys.file("devices/system/cpu/cpu0/topology/physical_package_id", "0");
  sys.file("devices/system/cpu/cpu1/topology/physical_package_id", "0");
  sys.file("devices/system/cpu/cpufreq/boost", "1");
  const Machine m = discover_sysfs(sys.root());
  ASSERT_EQ(m.numas.size(), 1U);
  EXPECT_EQ(m.numas[0].cpus.text(), "0-1");
}

TEST(Sysfs, gpus_by_class_and_vendor) {
  FakeSysfs sys;
  const auto add = [&](const std::string& address, const char* vendor, const char* kind) {
    const std::string device = "devices/pci0000:00/0000:00:01.0/" + address;
    sys.file(device + "/vendor", vendor);
    sys.file(device + "/class", kind);
    sys.link("bus/pci/devices/" + address, device);
  };
  add("0000:01:00.0", "0x10de", "0x030200");
  add("0000:02:00.0", "0x10de", "0x030000");
  add("0000:03:00.0", "0x10de", "0x068000");  // an NVSwitch
  add("0000:04:00.0", "0x1a03", "0x030000");  // a server's own video chip
  const Machine m = discover_sysfs(sys.root());
  ASSERT_EQ(m.gpus.size(), 2U);
  EXPECT_EQ(m.gpus[1].bus_id, "0000:02:00.0");
  EXPECT_THAT(m.gpus[1].place.path, ElementsAre("pci0000:00", "0000:00:01.0", "0000:02:00.0"));
}

TEST(Reports, D8_virtual_functions_and_passthrough) {
  FakeSysfs sys;
  sys.two_numas();
  const std::string port = "devices/pci0000:80/0000:80:03.0";
  sys.file(port + "/numa_node", "1");
  sys.file(port + "/0000:81:00.0/numa_node", "1");
  sys.net("pf0", port + "/0000:81:00.0", "100000");
  sys.file(port + "/0000:81:00.2/numa_node", "-1");
  sys.net("vf0", port + "/0000:81:00.2", "100000");
  sys.link(port + "/0000:81:00.2/physfn", port + "/0000:81:00.0");
  sys.infiniband("mlx5_4", port + "/0000:81:00.2", "100 Gb/sec (4X EDR)");
  // Passed through to a guest: no NUMA node anywhere, no bridge.
  sys.file("devices/pci0000:00/0000:00:05.0/numa_node", "-1");
  sys.net("pt0", "devices/pci0000:00/0000:00:05.0", "-1");
  const Machine m = discover_sysfs(sys.root());
  EXPECT_THAT(path_of(m, "vf0"), ElementsAre("pci0000:80", "0000:80:03.0", "0000:81:00.2"));
  EXPECT_EQ(nic_of(m, "vf0").place.numa, 1);  // from the port above it
  EXPECT_EQ(nic_of(m, "vf0").ibdev, "mlx5_4");
  EXPECT_EQ(nic_of(m, "pf0").ibdev, "");
  EXPECT_EQ(nic_of(m, "pt0").place.numa, -1);
  const RankFacts f =
      facts_at(m, {0, CpuSet::parse("4").value(), {}, {test::nic("pt0"), test::nic("vf0")}});
  EXPECT_EQ(f.nics[0].distance, Distance::unknown);
  EXPECT_EQ(f.nics[0].speed_mbps, 0);
  EXPECT_EQ(f.nics[1].distance, Distance::same_numa);
  EXPECT_EQ(test::world_of({f}).rails, 1);
}

TEST(Reports, D9_a_bond_across_numa_nodes) {
  FakeSysfs sys;
  sys.two_numas();
  for (const auto& [name, root, numa] : {std::tuple{"eth0", "pci0000:00/0000:00:01.0", "0"},
                                         {"eth1", "pci0000:80/0000:80:01.0", "1"}}) {
    const std::string device = std::string("devices/") + root;
    sys.file(device + "/numa_node", numa);
    sys.net(name, device, "25000");
  }
  make_bond(sys);
  const Machine m = discover_sysfs(sys.root());
  EXPECT_EQ(nic_of(m, "bond0").place.numa, -1);
  EXPECT_THAT(path_of(m, "bond0"), IsEmpty());
  ASSERT_EQ(m.notes.size(), 1U);
  EXPECT_THAT(m.notes[0], HasSubstr("bond0 joins devices of several NUMA nodes"));
  std::vector<RankFacts> facts;
  for (const auto& [number, list] : {std::pair{0, "1"}, {1, "5"}}) {
    facts.push_back(facts_at(m, {number, CpuSet::parse(list).value(), {}, {test::nic("bond0")}}));
    facts.back().node_id = "n";
  }
  EXPECT_THAT(test::leaders(test::world_of(facts), 0), ElementsAre(0));
}

}  // namespace
}  // namespace prunex::topo

// SPDX-License-Identifier: Apache-2.0
#include "topology/machine.h"

#include <gmock/gmock.h>

#include "tests/topology/support.h"

namespace prunex::topo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CpuSet cpus(const char* list) { return CpuSet::parse(list).value(); }

TEST(CpuSet, reads_and_writes_the_kernels_lists) {
  for (const char* list : {"0", "0-3", "0-3,8", "1,3,5-7,64,127-130", ""}) {
    EXPECT_EQ(cpus(list).text(), list);
  }
  EXPECT_EQ(cpus("0-3,8\n").count(), 5U);
  for (const char* junk : {"x", "3-1", "1-", "-1", "1,,2x", "0x3"}) {
    EXPECT_FALSE(CpuSet::parse(junk).has_value()) << junk;
  }
  EXPECT_EQ(CpuSet::parse("0-4294967295")->count(), CpuSet::kLimit);  // absurd, but bounded
}

TEST(CpuSet, contains) {
  EXPECT_TRUE(cpus("0-127").contains(cpus("5,100")));
  EXPECT_FALSE(cpus("0-7").contains(cpus("5,100")));
  EXPECT_TRUE(cpus("0-7").contains(CpuSet{}));
  EXPECT_TRUE(CpuSet{}.empty());
  CpuSet grown = cpus("1");
  grown.add(cpus("200"));
  EXPECT_EQ(grown, cpus("1,200"));
  EXPECT_FALSE(grown == cpus("1"));
}

TEST(Machine, pci_addresses_have_one_form) {
  EXPECT_EQ(pci_address("0000:3B:00.0"), "0000:3b:00.0");
  EXPECT_EQ(pci_address("3b:00.0"), "0000:3b:00.0");
  EXPECT_EQ(pci_address("00000000:3B:00.0"), "0000:3b:00.0");  // as the CUDA driver writes it
  EXPECT_EQ(pci_address("10000:e1:00.0"), "10000:e1:00.0");    // a virtual domain
  for (const char* junk : {"", "eth0", "virtio2", "0000:3b:00", "0000:3b:0g.0", "pci0000:00",
                           "::::.", "000:3b:00.0", "0000:3b:00.0x"}) {
    EXPECT_EQ(pci_address(junk), "") << junk;
  }
}

TEST(Machine, distance_goes_from_switch_to_unknown) {
  const Place gpu{{"pci0000:15", "0000:15:01.0", "0000:19:00.0"}, 0, 0};
  EXPECT_EQ(distance(gpu, {{"pci0000:15", "0000:15:01.0", "0000:18:00.0"}, 0, 0}),
            Distance::same_switch);
  EXPECT_EQ(distance(gpu, {{"pci0000:15", "0000:15:02.0", "0000:20:00.0"}, 0, 0}),
            Distance::same_root);
  EXPECT_EQ(distance(gpu, {{"pci0000:25", "0000:25:01.0"}, 0, 0}), Distance::same_numa);
  EXPECT_EQ(distance(gpu, {{"pci0000:95", "0000:95:01.0"}, 1, 1}), Distance::same_machine);
  EXPECT_EQ(distance(gpu, {{"pci0000:95", "0000:95:01.0"}, -1, -1}), Distance::unknown);
  EXPECT_EQ(distance(gpu, {}), Distance::unknown);
  EXPECT_EQ(distance({}, {}), Distance::unknown);
  // A socket of several NUMA nodes whose firmware names only the socket.
  EXPECT_EQ(distance({{}, 3, 1}, {{"pci0000:95"}, -1, 1}), Distance::same_numa);
  EXPECT_EQ(distance({{}, 3, 1}, {{"pci0000:95"}, -1, 0}), Distance::same_machine);
}

Machine two_sockets() {
  Machine m;
  m.host = "m";
  m.packages = {{0, cpus("0-3")}, {1, cpus("4-7")}};
  m.numas = {{0, -1, cpus("0-3"), 0}, {1, -1, cpus("4-7"), 0}};
  m.nics = {{"eth0", "", 25000, {{"pci0000:00", "0000:00:01.0"}, 0, -1}},
            {"eth1", "mlx5_0", 100000, {{"pci0000:80", "0000:80:01.0"}, 1, -1}}};
  settle(m);
  return m;
}

RankFacts at(const Machine& m, const char* list, std::vector<NicFacts> nics) {
  return facts_at(m, {0, cpus(list), {}, std::move(nics)});
}

TEST(Machine, facts_of_a_bound_rank) {
  const RankFacts f = at(two_sockets(), "5", {test::nic("eth0"), test::nic("eth1")});
  EXPECT_EQ(f.numa, 1);
  EXPECT_EQ(f.nics[0].distance, Distance::same_machine);
  EXPECT_EQ(f.nics[0].speed_mbps, 25000);
  EXPECT_FALSE(f.nics[0].rdma);
  EXPECT_EQ(f.nics[1].distance, Distance::same_numa);
  EXPECT_EQ(f.nics[1].numa, 1);
  EXPECT_TRUE(f.nics[1].rdma);
  EXPECT_EQ(f.note, "");
  EXPECT_EQ(at(two_sockets(), "5", {test::nic("mlx5_0")}).nics[0].distance, Distance::same_numa);
}

TEST(Machine, the_callers_speed_wins) {
  EXPECT_EQ(at(two_sockets(), "5", {test::nic("eth0", 1000)}).nics[0].speed_mbps, 1000);
}

TEST(Machine, flat_locality_comes_with_one_line) {
  const RankFacts spread = at(two_sockets(), "0-7", {test::nic("eth0")});
  EXPECT_EQ(spread.numa, -1);
  EXPECT_EQ(spread.nics[0].distance, Distance::unknown);
  EXPECT_THAT(spread.note, HasSubstr("several NUMA nodes"));
  EXPECT_EQ(spread.note.find('\n'), std::string::npos);
  EXPECT_THAT(at(two_sockets(), "1", {test::nic("veth7")}).note, HasSubstr("veth7"));
  EXPECT_EQ(at(two_sockets(), "1", {}).note, "");  // nothing to be far from
}

TEST(Machine, a_machine_of_one_numa_node_has_no_far_devices) {
  Machine m;
  m.numas = {{0, -1, cpus("0-1"), 0}};
  m.nics = {{"eth0", "", 0, {}}};
  settle(m);
  EXPECT_EQ(at(m, "0-1", {test::nic("eth0")}).nics[0].distance, Distance::same_numa);
}

TEST(Machine, distance_is_from_the_gpu_when_the_rank_has_one) {
  Machine m = two_sockets();
  m.gpus = {{"0000:80:02.0", "GPU-a", "", {{"pci0000:80", "0000:80:02.0"}, 1, 1}}};
  const RankFacts f = facts_at(
      m, {0, cpus("0-3"), {{"00000000:80:02.0", "", -1}}, {test::nic("eth0"), test::nic("eth1")}});
  EXPECT_EQ(f.gpus[0].numa, 1);
  EXPECT_EQ(f.nics[0].distance, Distance::same_machine);
  EXPECT_EQ(f.nics[1].distance, Distance::same_root);
}

TEST(Machine, merge_takes_the_better_half_of_each) {
  Machine kernel;
  kernel.source = "sysfs";
  kernel.numas = {{0, -1, cpus("0-3"), 0}, {1, -1, cpus("4-7"), 0}};
  kernel.nics = {{"eth0", "", 25000, {}}, {"eth1", "", 0, {{"pci0000:80"}, 1, -1}}};
  Machine hwloc = two_sockets();
  hwloc.source = "hwloc";
  hwloc.gpus = {{"0000:80:02.0", "", "H100", {{}, 1, -1}}};
  const Machine both = merge(kernel, hwloc);
  EXPECT_EQ(both.source, "hwloc and sysfs");
  EXPECT_EQ(both.packages.size(), 2U);
  EXPECT_EQ(both.numas[1].package, 1);
  ASSERT_EQ(both.nics.size(), 2U);
  EXPECT_EQ(both.nics[0].place.numa, 0);      // only hwloc knew
  EXPECT_EQ(both.nics[0].speed_mbps, 25000);  // only the kernel knew
  EXPECT_EQ(both.nics[1].place.path.front(), "pci0000:80");
  ASSERT_EQ(both.gpus.size(), 1U);
  EXPECT_EQ(both.gpus[0].model, "H100");
  // hwloc without its Linux part sees one node and no package.
  Machine crippled;
  crippled.numas = {{0, -1, cpus("0-7"), 0}};
  EXPECT_EQ(merge(kernel, crippled).numas.size(), 2U);
}

TEST(Machine, assumed_ranks_spread_over_gpus_or_numa_nodes) {
  Machine m = two_sockets();
  const auto numa_of_ranks = [](const std::vector<RankFacts>& facts) {
    std::vector<int> out;
    for (const RankFacts& f : facts) {
      out.push_back(f.numa);
    }
    return out;
  };
  EXPECT_THAT(numa_of_ranks(assumed_facts(m, 0)), ElementsAre(0, 1));
  EXPECT_THAT(numa_of_ranks(assumed_facts(m, 4)), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(numa_of_ranks(assumed_facts(m, 1)), ElementsAre(0));
  // Only the RDMA device counts as the job's network.
  ASSERT_EQ(assumed_facts(m, 1)[0].nics.size(), 1U);
  EXPECT_EQ(assumed_facts(m, 1)[0].nics[0].name, "mlx5_0");
  EXPECT_EQ(assumed_facts(m, 1, {test::nic("eth0")})[0].nics[0].name, "eth0");
  m.gpus = {{"0000:80:02.0", "", "", {{}, 1, -1}}, {"0000:00:02.0", "", "", {{}, 0, -1}}};
  settle(m);
  EXPECT_THAT(numa_of_ranks(assumed_facts(m, 0)), ElementsAre(1, 0));
  EXPECT_EQ(assumed_facts(Machine{}, 0).size(), 1U);
}

}  // namespace
}  // namespace prunex::topo

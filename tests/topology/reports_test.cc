// SPDX-License-Identifier: Apache-2.0
// What users of such software reported, one test per case.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "tests/topology/support.h"
#include "topology/render.h"

namespace prunex::topo {
namespace {

using test::leaders;
using test::load;
using test::nic;
using test::rank;
using test::world_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

FactsOptions on(const std::string& sysfs) {
  FactsOptions options;
  options.rank = 0;
  options.nics = {nic("eth0")};
  options.discover.sysfs = sysfs;
  return options;
}

TEST(Reports, D1_no_pci_information_at_all) {
  test::FakeSysfs empty;
  const auto bare = local_facts(on(empty.root()));
  ASSERT_TRUE(bare.has_value()) << bare.error().text;
  EXPECT_EQ(bare->nics[0].distance, Distance::unknown);
  EXPECT_THAT(bare->note, HasSubstr("locality unknown"));
  EXPECT_FALSE(bare->node_id.empty());

  PRUNEX_NEEDS_HWLOC();
  const Machine flat = load("no-pci.xml");
  EXPECT_TRUE(flat.nics.empty());
  std::vector<RankFacts> facts;
  for (int r = 0; r < 4; ++r) {
    facts.push_back(
        facts_at(flat, {r, flat.numas[r < 2 ? 1U : 0U].cpus, {}, {nic("eth0", 10000)}}));
    facts.back().node_id = "n";
    EXPECT_EQ(facts.back().nics[0].distance, Distance::unknown);
  }
  const World w = world_of(facts);
  EXPECT_THAT(leaders(w, 0), ElementsAre(0));
  EXPECT_THAT(w.nodes[0].leaders[0].why,
              AllOf(HasSubstr("lowest rank"), HasSubstr("locality unknown")));
  EXPECT_THAT(render_text({w, facts, {&flat}}), HasSubstr("rail 0: rank 0, lowest rank"));
}

TEST(Reports, D1_hwloc_without_its_pci_and_linux_parts) {
  const test::ScopedVariable set("HWLOC_COMPONENTS", "-pci,-linux");
  const Machine m = discover_afresh({});
  EXPECT_EQ(m.numas.size(), std::max<size_t>(1, discover_sysfs("/sys").numas.size()));
  EXPECT_EQ(m.nics.size(), discover_sysfs("/sys").nics.size());
}

// Runs on one CPU only, for one scope.
class Pinned {
 public:
  Pinned() {
    sched_getaffinity(0, sizeof before_, &before_);
    for (int c = 0; c < CPU_SETSIZE; ++c) {
      cpu_ = CPU_ISSET(c, &before_) ? c : cpu_;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu_, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  Pinned(const Pinned&) = delete;
  ~Pinned() { sched_setaffinity(0, sizeof before_, &before_); }
  [[nodiscard]] size_t cpu() const { return static_cast<size_t>(cpu_); }

 private:
  cpu_set_t before_;
  int cpu_ = 0;
};

TEST(Reports, D4_cpuless_numa_and_a_restricted_cpuset) {
  const size_t live_numas = discover_afresh({}).numas.size();
  const Pinned pinned;
  const Machine live = discover_afresh({});
  EXPECT_EQ(live.numas.size(), live_numas);  // what we may not run on is still there
  FactsOptions options;
  options.rank = 0;
  const auto facts = local_facts(options);
  ASSERT_TRUE(facts.has_value());
  int expected = -1;
  for (const NumaNode& numa : live.numas) {
    expected = numa.cpus.contains(pinned.cpu()) ? numa.os_index : expected;
  }
  EXPECT_EQ(facts->numa, expected);

  PRUNEX_NEEDS_HWLOC();
  const Machine m = load("numa-without-cpus.xml");
  ASSERT_EQ(m.numas.size(), 3U);
  EXPECT_EQ(m.packages.size(), 2U);
  const auto at = [&](const char* list) {
    return facts_at(m, {0, CpuSet::parse(list).value(), {}, {nic("eth0")}});
  };
  EXPECT_EQ(at("1").numa, 0);
  EXPECT_EQ(at("1").nics[0].distance, Distance::same_machine);
  EXPECT_EQ(at("5").nics[0].distance, Distance::same_numa);
  // A container that may use one socket only still sees where the other one's devices are.
  std::ifstream file(test::fixture("two-package-2nic.xml"));
  std::string xml((std::istreambuf_iterator<char>(file)), {});
  for (const auto& [all, allowed] :
       {std::pair{"allowed_cpuset=\"0x000000ff\"", "allowed_cpuset=\"0x0000000f\""},
        {"allowed_nodeset=\"0x00000003\"", "allowed_nodeset=\"0x00000001\""}}) {
    const size_t found = xml.find(all);
    ASSERT_NE(found, std::string::npos);
    xml.replace(found, std::string_view(all).size(), allowed);
  }
  const auto confined = parse_hwloc_xml(kHwlocLibrary, xml, "confined");
  ASSERT_TRUE(confined.has_value()) << confined.error().text;
  EXPECT_EQ(confined->numas.size(), 2U);
  EXPECT_EQ(test::nic_of(*confined, "eth1").place.numa, 1);
  EXPECT_EQ(at("0-7").numa, -1);  // not the memory that has no CPUs of its own
}

TEST(Reports, D5_sixteen_threads_at_once) {
  const DiscoverOptions counting{"/sys", true, PRUNEX_FAKE_HWLOC_V2};
  std::vector<std::thread> threads;
  std::vector<Machine> seen(16);
  std::vector<std::string> loaded(16), facts(16);
  for (size_t t = 0; t < seen.size(); ++t) {
    threads.emplace_back([&, t] {
      seen[t] = discover(counting);
      const auto file = load_machine(test::fixture("dual-rail-4gpu.xml"));
      loaded[t] = file ? file->host : file.error().text;
      FactsOptions options;
      options.rank = 0;
      const auto own = local_facts(options);
      facts[t] = own ? own->node_id : own.error().text;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t t = 1; t < seen.size(); ++t) {
    EXPECT_EQ(seen[t].nics.size(), seen[0].nics.size());
    EXPECT_EQ(loaded[t], loaded[0]);
    EXPECT_EQ(facts[t], facts[0]);
  }
  void* library = dlopen(PRUNEX_FAKE_HWLOC_V2, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  const auto topologies = reinterpret_cast<int (*)()>(dlsym(library, "fake_hwloc_topologies"));
  ASSERT_NE(topologies, nullptr);
#ifdef PRUNEX_WITH_HWLOC
  EXPECT_EQ(topologies(), 1);
  ASSERT_FALSE(seen[0].notes.empty());
  EXPECT_THAT(seen[0].notes.back(), HasSubstr("hwloc is not used"));
#endif
  dlclose(library);
}

TEST(Reports, D6_hwloc_of_another_major_version) {
  const Machine plain = discover_sysfs("/sys");
  for (const char* library : {PRUNEX_FAKE_HWLOC_V3, "libno-such-hwloc.so.99", "/dev/null"}) {
    const Machine m = discover_afresh({"/sys", true, library});
    EXPECT_EQ(m.numas.size(), plain.numas.size());
    EXPECT_EQ(m.nics.size(), plain.nics.size());
    ASSERT_EQ(m.notes.size(), plain.notes.size() + 1);
    EXPECT_THAT(m.notes.back(), HasSubstr("hwloc is not used"));
    EXPECT_EQ(m.notes.back().find('\n'), std::string::npos);
    const auto file = load_machine(test::fixture("no-pci.xml"), library);
    ASSERT_FALSE(file.has_value());
    EXPECT_THAT(file.error().text, HasSubstr("no-pci.xml"));
  }
#ifdef PRUNEX_WITH_HWLOC
  EXPECT_THAT(discover_hwloc(PRUNEX_FAKE_HWLOC_V3).error().text, HasSubstr("0x30000"));
#endif
}

TEST(Reports, D7_a_nic_of_unknown_pci_class) {
  PRUNEX_NEEDS_HWLOC();
  const Machine m = load("nic-of-unknown-class.xml");
  EXPECT_EQ(test::nic_of(m, "eth1").place.numa, 1);
  EXPECT_EQ(test::nic_of(m, "eth1").place.path.back(), "0000:81:00.0");
  const World w = world_of(assumed_facts(m, 0));
  EXPECT_THAT(leaders(w, 0), ElementsAre(1));
}

TEST(Reports, D9_two_packages_with_one_nic_each) {
  PRUNEX_NEEDS_HWLOC();
  const Machine m = load("two-package-2nic.xml");
  const World w = world_of(assumed_facts(m, 6));
  EXPECT_EQ(w.rails, 2);
  EXPECT_THAT(leaders(w, 0), ElementsAre(0, 3));
  EXPECT_THAT(leaders(world_of(assumed_facts(m, 1)), 0), ElementsAre(0, 0));
}

TEST(Reports, D11_containers_share_a_node_only_if_they_share_memory) {
  const auto here = node_identity("/dev/shm");
  const auto other = node_identity("/proc");  // another file system stands for another container's
  const auto none = node_identity("/no/such/folder");
  ASSERT_TRUE(here && other && none);
  EXPECT_EQ(*here, node_identity("/dev/shm").value());
  EXPECT_NE(*here, *other);
  EXPECT_NE(*here, *none);
  const World w = world_of({rank(0, *here), rank(1, *other), rank(2, *here)});
  ASSERT_EQ(w.nodes.size(), 2U);
  EXPECT_THAT(w.nodes[0].ranks, ElementsAre(0, 2));

  FactsOptions options;
  options.rank = 0;
  EXPECT_EQ(local_facts(options)->node_id, *here);
  options.node_id = "my-node";
  EXPECT_EQ(local_facts(options)->node_id, "my-node");
  options.node_id = std::string(2000, 'x');
  EXPECT_THAT(local_facts(options).error().text,
              AllOf(HasSubstr("PRUNEX_NODE_ID"), HasSubstr("2000")));
}

// The identity as a child with its own mount of /dev/shm sees it; empty where mounting is not
// permitted.
std::string identity_in_own_namespace() {
  int ends[2];
  if (pipe(ends) != 0) {
    return {};
  }
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNS) == 0 &&
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") == 0) {
      const auto id = node_identity();
      if (id && write(ends[1], id->data(), id->size()) < 0) {
        _exit(1);
      }
    }
    _exit(0);
  }
  close(ends[1]);
  std::string out(4096, '\0');
  const ssize_t n = read(ends[0], out.data(), out.size());
  out.resize(n > 0 ? static_cast<size_t>(n) : 0);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return out;
}

TEST(Reports, D11_mount_namespaces_on_one_host) {
  const std::string a = identity_in_own_namespace();
  if (a.empty()) {
    GTEST_SKIP() << "mount namespaces are not permitted here";
  }
  const std::string here = node_identity().value();
  EXPECT_NE(a, here);
  EXPECT_EQ(a.substr(0, a.find(" shm ")),
            here.substr(0, here.find(" shm ")));  // host and boot id agree
}

TEST(Reports, D14_one_rank_without_a_device_decides_for_all) {
  const std::vector nics = {nic("mlx5_0", 200000), nic("mlx5_1", 200000)};
  std::vector<RankFacts> facts;
  for (int r = 0; r < 4; ++r) {
    facts.push_back(rank(r, r < 2 ? "a" : "b", nics));
    facts.back().transports |= kTransportVerbs;
  }
  EXPECT_EQ(world_of(facts).rails, 2);
  EXPECT_NE(world_of(facts).transports & kTransportVerbs, 0U);
  facts[3].transports &= ~uint32_t{kTransportVerbs};  // its probe failed
  facts[2].nics.clear();
  facts[3].nics.pop_back();
  const World w = world_of(facts);
  EXPECT_EQ(w.transports, uint32_t{kTransportSocket | kTransportShm});
  EXPECT_EQ(w.rails, 1);
  EXPECT_THAT(leaders(w, 1), ElementsAre(3));  // the only one there that still sees a NIC
  EXPECT_EQ(w.nodes[0].leaders.size(), 1U);
}

TEST(Reports, D15_equal_bus_ids_are_told_apart) {
  PRUNEX_NEEDS_HWLOC();
  const Machine m = load("equal-bus-ids.xml");
  ASSERT_EQ(m.gpus.size(), 2U);
  EXPECT_EQ(m.gpus[0].bus_id, m.gpus[1].bus_id);
  EXPECT_NE(m.gpus[0].uuid, m.gpus[1].uuid);
  const auto with = [&](const std::string& uuid) {
    return facts_at(m, {0, {}, {{"0000:00:00.0", uuid, -1}}, {nic("eth0"), nic("eth1")}});
  };
  const RankFacts first = with(m.gpus[0].uuid), second = with(m.gpus[1].uuid);
  EXPECT_EQ(first.gpus[0].numa, 0);
  EXPECT_EQ(second.gpus[0].numa, 1);
  EXPECT_LT(first.nics[0].distance, first.nics[1].distance);
  EXPECT_LT(second.nics[1].distance, second.nics[0].distance);
  // Without a uuid neither is taken for the other.
  EXPECT_EQ(with("").gpus[0].numa, -1);
  EXPECT_THAT(with("").note, HasSubstr("0000:00:00.0"));
  const World w = world_of(assumed_facts(m, 0));
  EXPECT_THAT(leaders(w, 0), ElementsAre(0, 1));

  // No uuid known at all: their order tells them apart.
  Machine anonymous = m;
  for (Gpu& gpu : anonymous.gpus) {
    gpu.uuid.clear();
  }
  settle(anonymous);
  EXPECT_NE(anonymous.gpus[0].uuid, anonymous.gpus[1].uuid);
  EXPECT_EQ(find_gpu(anonymous, "0000:00:00.0", "#1"), 1);
}

TEST(Reports, D16_containers_of_one_node_with_disjoint_devices) {
  PRUNEX_NEEDS_HWLOC();
  Machine first = load("dual-rail-4gpu.xml");
  Machine second = first;
  first.gpus.resize(2);
  first.nics.resize(1);
  second.gpus.erase(second.gpus.begin(), second.gpus.begin() + 2);
  second.nics.erase(second.nics.begin());
  auto a = assumed_facts(first, 0), b = assumed_facts(second, 0);
  for (RankFacts& f : b) {
    f.rank += 2;
  }
  std::vector<RankFacts> facts = a;
  facts.insert(facts.end(), b.begin(), b.end());
  const World w = world_of(facts);
  ASSERT_EQ(w.nodes.size(), 1U);
  EXPECT_EQ(w.rails, 2);
  EXPECT_THAT(leaders(w, 0), ElementsAre(0, 2));
  // A peer's device that our view lacks is merely unknown.
  const RankFacts lost = facts_at(first, {0, {}, b[0].gpus, {nic("mlx5_1")}});
  EXPECT_EQ(lost.nics[0].distance, Distance::unknown);
  EXPECT_EQ(lost.gpus[0].numa, b[0].gpus[0].numa);
  // The picture shows what anybody sees.
  const std::string text = render_text({w, facts, {&first}});
  EXPECT_THAT(text, AllOf(HasSubstr("mlx5_0"), HasSubstr("mlx5_1"), HasSubstr("rail 1 <- rank 2")));
}

}  // namespace
}  // namespace prunex::topo

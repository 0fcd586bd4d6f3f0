// SPDX-License-Identifier: Apache-2.0
// Machines of real shapes from XML files, loaded explicitly.
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>

#include "tests/topology/support.h"

namespace prunex::topo {
namespace {

using test::leaders;
using test::load;
using test::world_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Hwloc, dgx_like_every_gpu_leads_through_the_nic_beside_it) {
  PRUNEX_NEEDS_HWLOC();
  const Machine m = load("dual-socket-8gpu-8nic.xml");
  EXPECT_EQ(m.host, "dgx-like");
  EXPECT_EQ(m.packages.size(), 2U);
  EXPECT_EQ(m.numas.size(), 2U);
  ASSERT_EQ(m.gpus.size(), 8U);
  EXPECT_EQ(m.gpus[4].bus_id, "0000:99:00.0");
  EXPECT_EQ(m.gpus[4].model, "H100 SXM5 80GB");
  EXPECT_EQ(m.gpus[4].place.numa, 1);
  EXPECT_EQ(m.gpus[4].place.package, 1);
  ASSERT_EQ(m.nics.size(), 9U);
  const Nic& nic = test::nic_of(m, "ib0");
  EXPECT_EQ(nic.ibdev, "mlx5_0");
  EXPECT_EQ(nic.speed_mbps, 400000);
  EXPECT_THAT(nic.place.path, ElementsAre("pci0000:15", "0000:15:01.0", "0000:16:00.0",
                                          "0000:17:00.0", "0000:18:00.0"));
  const World w = world_of(assumed_facts(m, 0));
  EXPECT_EQ(w.rails, 8);
  EXPECT_THAT(leaders(w, 0), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  for (const Leader& leader : w.nodes[0].leaders) {
    EXPECT_THAT(leader.why, HasSubstr("same switch"));
  }
}

TEST(Hwloc, dual_rail_the_leaders_sit_on_different_sockets) {
  PRUNEX_NEEDS_HWLOC();
  const Machine m = load("dual-rail-4gpu.xml");
  const World w = world_of(assumed_facts(m, 0));
  EXPECT_EQ(w.rails, 2);
  EXPECT_THAT(leaders(w, 0), ElementsAre(0, 2));
  EXPECT_THAT(w.nodes[0].leaders[1].why,
              AllOf(HasSubstr("mlx5_1"), HasSubstr("100 Gb/s"), HasSubstr("same NUMA node")));
}

TEST(Hwloc, one_socket_one_nic) {
  PRUNEX_NEEDS_HWLOC();
  const Machine m = load("single-socket-1nic.xml");
  EXPECT_THAT(test::path_of(m, "eth0"), ElementsAre("pci0000:00", "0000:00:03.0", "0000:01:00.0"));
  const auto facts = assumed_facts(m, 3);
  EXPECT_EQ(facts[2].nics[0].distance, Distance::same_numa);
  EXPECT_THAT(leaders(world_of(facts), 0), ElementsAre(0));
}

TEST(Hwloc, a_missing_or_broken_file_is_an_error_that_names_it) {
  PRUNEX_NEEDS_HWLOC();
  const auto error = [](const std::string& path) {
    ::testing::internal::CaptureStderr();
    const auto machine = load_machine(path);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_FALSE(machine.has_value()) << path;
    return machine ? std::string() : machine.error().text;
  };
  EXPECT_THAT(error("/no/such/file.xml"),
              AllOf(HasSubstr("/no/such/file.xml"), HasSubstr("No such file")));
  EXPECT_THAT(error("/tmp"), AllOf(HasSubstr("/tmp"), HasSubstr("directory")));
  test::FakeSysfs folder;
  for (const char* text : {"", "not xml", "<?xml version=\"1.0\"?>\n<topology version=\"2.0\">\n",
                           "<?xml version=\"1.0\"?>\n<!-- <topology version=\"2.0\">",
                           "<?xml version=\"1.0\"?>\n<html></html>\n"}) {
    folder.file("broken.xml", text);
    EXPECT_THAT(error(folder.root() + "/broken.xml"),
                AllOf(HasSubstr("broken.xml"), HasSubstr("lstopo")));
  }
}

TEST(Hwloc, a_truncated_file_never_makes_half_a_machine) {
  PRUNEX_NEEDS_HWLOC();
  std::ifstream file(test::fixture("two-package-2nic.xml"));
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  for (size_t n = 0; n + 12 < whole.size(); n += 97) {
    EXPECT_FALSE(parse_hwloc_xml(kHwlocLibrary, whole.substr(0, n), "cut").has_value()) << n;
  }
}

// In a child of its own: hwloc 2.9 loses memory there, which is not ours to free.
TEST(HwlocDeathTest, a_file_with_a_hole_is_refused_quietly) {
  PRUNEX_NEEDS_HWLOC();
  std::ifstream file(test::fixture("two-package-2nic.xml"));
  std::string holed((std::istreambuf_iterator<char>(file)), {});
  holed.erase(holed.size() / 2, 300);
  EXPECT_EXIT(_exit(parse_hwloc_xml(kHwlocLibrary, holed, "holed").has_value() ? 1 : 0),
              ::testing::ExitedWithCode(0), "^$");
}

std::string summary(const Machine& m) {
  std::string out = m.host;
  for (const Package& p : m.packages) {
    out += " P" + p.cpus.text();
  }
  for (const NumaNode& n : m.numas) {
    out += " N" + n.cpus.text();
  }
  for (const Gpu& g : m.gpus) {
    out += " " + g.bus_id + g.uuid;
  }
  for (const Nic& n : m.nics) {
    out += " " + n.netdev + "/" + n.ibdev + "@" + std::to_string(n.place.numa);
  }
  return out;
}

// Another machine's file in a form that hwloc reads by itself.
class Elsewhere {
 public:
  Elsewhere() {
    std::ifstream file(test::fixture("dual-rail-4gpu.xml"));
    std::string xml((std::istreambuf_iterator<char>(file)), {});
    const size_t comment = xml.find("<!--");
    xml.erase(comment, xml.find("<topology") - comment);
    folder_.file("elsewhere.xml", xml);
  }
  [[nodiscard]] std::string path() const { return folder_.root() + "/elsewhere.xml"; }

 private:
  test::FakeSysfs folder_;
};

// What sites and other programs set; each must leave an explicit file and the job alone.
std::vector<std::pair<const char*, std::string>> foreign(const Elsewhere& elsewhere) {
  return {{"HWLOC_XMLFILE", "/no/such/file"},
          {"HWLOC_XMLFILE", elsewhere.path()},
          {"HWLOC_SYNTHETIC", "pack:4 numa:1 core:2 pu:1"},
          {"HWLOC_SYNTHETIC", "junk:"},
          {"HWLOC_FSROOT", "/no/such/folder"},
          {"HWLOC_CPUID_PATH", "/no/such/folder"},
          {"HWLOC_COMPONENTS", "-pci,-linux"},
          {"HWLOC_COMPONENTS", "-xml,stop"},
          {"HWLOC_COMPONENTS", "synthetic,junk"},
          {"HWLOC_THISSYSTEM", "0"},
          {"HWLOC_THISSYSTEM", "1"},
          {"HWLOC_LIBXML", "0"},
          {"HWLOC_PLUGINS_PATH", "/no/such/folder"},
          {"HWLOC_PCI_LOCALITY", "/no/such/file"}};
}

TEST(Hwloc, an_explicit_file_does_not_depend_on_the_environment) {
  PRUNEX_NEEDS_HWLOC();
  const Elsewhere elsewhere;
  const std::string plain = summary(load("dual-socket-8gpu-8nic.xml"));
  for (const auto& [name, value] : foreign(elsewhere)) {
    const test::ScopedVariable set(name, value);
    EXPECT_EQ(summary(load("dual-socket-8gpu-8nic.xml")), plain) << name << "=" << value;
  }
}

TEST(Hwloc, foreign_variables_never_break_the_live_machine) {
  const Elsewhere elsewhere;
  const Machine plain = discover_afresh({});
  for (const auto& [name, value] : foreign(elsewhere)) {
    const test::ScopedVariable set(name, value);
    const Machine m = discover_afresh({});
    EXPECT_EQ(m.nics.size(), plain.nics.size()) << name << "=" << value;
    EXPECT_EQ(m.numas.size(), plain.numas.size()) << name << "=" << value;
    EXPECT_EQ(m.host, plain.host);
    EXPECT_LE(m.notes.size(), plain.notes.size() + 1) << name << "=" << value;
    for (const std::string& note : m.notes) {
      EXPECT_EQ(note.find('\n'), std::string::npos);
    }
  }
}

TEST(Hwloc, a_redirected_hwloc_is_noticed) {
  PRUNEX_NEEDS_HWLOC();
  const Elsewhere elsewhere;
  const test::ScopedVariable set("HWLOC_XMLFILE", elsewhere.path());
  const Machine m = discover_afresh({});
  EXPECT_TRUE(m.gpus.empty() || m.gpus[0].model != "Tesla V100 SXM2 32GB");
  ASSERT_FALSE(m.notes.empty());
  EXPECT_THAT(m.notes.back(), HasSubstr("HWLOC_"));
}

}  // namespace
}  // namespace prunex::topo

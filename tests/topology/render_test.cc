// SPDX-License-Identifier: Apache-2.0
#include "topology/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>

#include <algorithm>
#include <cstdio>

#include "tests/topology/support.h"
#include "tests/topology/svg_reader.h"
#include "topology/svg.h"

namespace prunex::topo {
namespace {

using test::check_layout;
using test::nic;
using test::rank;
using test::read_svg;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Eight GPUs and eight NICs on two sockets, each pair behind its own switch, and a slow port.
Machine big_machine() {
  Machine m;
  m.host = "big";
  for (int p = 0; p < 2; ++p) {
    const std::string first = std::to_string(48 * p), last = std::to_string(48 * p + 47);
    const CpuSet cpus = CpuSet::parse(first + "-" + last).value();
    m.packages.push_back({p, cpus});
    m.numas.push_back({p, p, cpus, uint64_t{1} << 40});
  }
  for (int i = 0; i < 8; ++i) {
    char root[32], port[32], nic_id[32], gpu_id[32];
    std::snprintf(root, sizeof root, "pci0000:%02x", 0x10 * (i + 1));
    std::snprintf(port, sizeof port, "0000:%02x:01.0", 0x10 * (i + 1));
    std::snprintf(nic_id, sizeof nic_id, "0000:%02x:00.0", 0x10 * (i + 1) + 2);
    std::snprintf(gpu_id, sizeof gpu_id, "0000:%02x:00.0", 0x10 * (i + 1) + 3);
    m.gpus.push_back({gpu_id, "", "H100 SXM5 80GB", {{root, port, gpu_id}, i / 4, i / 4}});
    m.nics.push_back({"ib" + std::to_string(i),
                      "mlx5_" + std::to_string(i),
                      400000,
                      {{root, port, nic_id}, i / 4, i / 4}});
  }
  m.nics.push_back({"eno1", "", 10000, {{"pci0000:00", "0000:00:1c.0", "0000:02:00.0"}, 0, 0}});
  return m;
}

struct Scene {
  std::vector<Machine> machines;
  std::vector<RankFacts> facts;
  World world;

  [[nodiscard]] Picture picture() const {
    std::vector<const Machine*> views;
    for (const Machine& m : machines) {
      views.push_back(&m);
    }
    return {world, facts, views};
  }
};

Scene scene(const Machine& machine, int nodes, int ranks) {
  Scene s;
  for (int n = 0; n < nodes; ++n) {
    s.machines.push_back(machine);
    for (RankFacts f : assumed_facts(machine, ranks)) {
      f.rank = static_cast<int>(s.facts.size());
      f.node_id += std::to_string(n);
      s.facts.push_back(std::move(f));
    }
  }
  s.world = test::world_of(s.facts);
  return s;
}

Machine small_machine() {
  Machine m;
  m.host = "small";
  m.packages = {{0, CpuSet::parse("0-3").value()}, {1, CpuSet::parse("4-7").value()}};
  m.numas = {{0, 0, CpuSet::parse("0-3").value(), uint64_t{64} << 30},
             {1, 1, CpuSet::parse("4-7").value(), uint64_t{64} << 30}};
  m.nics = {{"eth0", "", 100000, {{"pci0000:80", "0000:80:02.0", "0000:81:00.0"}, 1, 1}}};
  return m;
}

TEST(Render, the_text_is_pinned) {
  const Scene s = scene(small_machine(), 1, 4);
  EXPECT_EQ(render_text(s.picture()),
            R"(1 node, 4 ranks, 1 rail; common transports: socket, shm

node 0: small (ranks 0-3)
  package 0
    NUMA 0: CPUs 0-3, 64 GiB                                  rank 0, 1
  package 1
    NUMA 1: CPUs 4-7, 64 GiB                                  rank 2, 3
      NIC eth0  100 Gb/s  0000:81:00.0                        rail 0 <- rank 2
  leaders
    rail 0: rank 2, lowest rank of those nearest to eth0 (100 Gb/s, same NUMA node)
)");
}

TEST(Render, text_shows_switches_gpus_and_why) {
  const std::string text = render_text(scene(big_machine(), 2, 0).picture());
  EXPECT_THAT(text, AllOf(HasSubstr("2 nodes, 16 ranks, 8 rails"), HasSubstr("switch 0000:80:01.0"),
                          HasSubstr("GPU 7  H100 SXM5 80GB  0000:83:00.0"),
                          HasSubstr("NIC mlx5_7 (ib7)  400 Gb/s RDMA  0000:82:00.0"),
                          HasSubstr("rail 7 <- rank 15"), HasSubstr("no rail"),
                          HasSubstr("rail 3: rank 11, nearest to mlx5_3 (400 Gb/s, same switch)")));
}

TEST(Render, nothing_overlaps_or_leaves_the_page) {
  for (const int ranks : {0, 1, 3, 8, 24, 100}) {
    const Scene s = scene(big_machine(), 2, ranks);
    check_layout(read_svg(render_svg(s.picture())));
    check_layout(read_svg(render_svg(scene(small_machine(), 3, ranks).picture())));
  }
  // Four NUMA nodes per socket, devices known only by socket, devices of unknown place.
  Machine odd;
  for (int n = 0; n < 8; ++n) {
    CpuSet cpus;
    cpus.add(static_cast<size_t>(n));
    odd.numas.push_back({n, n / 4, cpus, 0});
    odd.nics.push_back({"eth" + std::to_string(n), "", 1000, {{}, -1, n % 3 - 1}});
    odd.gpus.push_back({"0000:0" + std::to_string(n) + ":00.0", "", "", {{}, n, n / 4}});
  }
  odd.packages = {{0, CpuSet::parse("0-3").value()}, {1, CpuSet::parse("4-7").value()}};
  check_layout(read_svg(render_svg(scene(odd, 1, 16).picture())));
}

TEST(Render, the_picture_says_who_leads_and_why) {
  const std::string svg = render_svg(scene(big_machine(), 2, 0).picture());
  const auto texts = read_svg(svg).all_text();
  EXPECT_THAT(texts, AllOf(HasSubstr("2 nodes, 16 ranks, 8 rails"), HasSubstr("rank 15 leads"),
                           HasSubstr("nearest to mlx5_7 (400 Gb/s, same switch)"),
                           HasSubstr("GPU 7"), HasSubstr("mlx5_7 (ib7)"), HasSubstr("NUMA 1"),
                           HasSubstr("package 1"), HasSubstr("ranks 7, 15")));
  EXPECT_THAT(svg, Not(HasSubstr("href")));  // self-contained
}

TEST(Render, names_from_the_network_are_harmless) {
  const std::string evil = std::string("<script>&\"'\x1b[31m\xff\xc0\x80\n\0", 21);
  RankFacts f = rank(0, evil, {nic(evil, 1000)});
  f.note = evil;
  f.gpus = {{evil, evil + evil, -1}, {evil, "other", -1}};
  Machine m;
  m.host = evil;
  m.notes = {evil};
  m.gpus = {{evil, "", evil, {}}};
  m.nics = {{evil + "2", evil + "3", 0, {{evil, evil, evil}, -1, -1}}};
  const std::vector facts = {f};
  const World w = test::world_of(facts);
  for (const Machine* view :
       {static_cast<const Machine*>(nullptr), static_cast<const Machine*>(&m)}) {
    const std::string text = render_text({w, facts, {view}});
    for (const char c : text) {
      EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << static_cast<int>(c);
    }
    EXPECT_THAT(text, Not(HasSubstr("\xff")));
    const std::string svg = render_svg({w, facts, {view}});
    EXPECT_THAT(svg, Not(HasSubstr("<script")));
    const auto document = read_svg(svg);
    EXPECT_EQ(document.flaw, "");
    EXPECT_THAT(document.all_text(), HasSubstr("<script>&\"'?[31m"));
  }
}

TEST(Render, long_names_are_cut_and_kept_as_tooltips) {
  Machine m = small_machine();
  m.nics[0].netdev = std::string(60, 'W') + "\xc3\xa9\xc3\xa9";
  m.host = std::string(300, 'h');
  const Scene s = scene(m, 1, 1);
  const std::string svg = render_svg(s.picture());
  check_layout(read_svg(svg));
  EXPECT_THAT(svg, HasSubstr("<title>" + m.nics[0].netdev + "</title>"));
}

TEST(Render, a_large_world_is_counted_not_drawn) {
  std::vector<RankFacts> facts;
  for (int r = 0; r < 64; ++r) {
    facts.push_back(rank(r, "host" + std::to_string(r), {nic("eth0", 1000)}));
  }
  const World w = test::world_of(facts);
  const std::string svg = render_svg({w, facts, {}}, 3);
  check_layout(read_svg(svg));
  const std::string texts = read_svg(svg).all_text();
  EXPECT_THAT(texts,
              AllOf(HasSubstr("host2"), Not(HasSubstr("host3")), HasSubstr("and 61 more nodes")));
  EXPECT_THAT(render_text({w, facts, {}}), HasSubstr("host63"));
}

TEST(Render, ranks_that_publish_nothing_still_show) {
  const std::vector facts = {rank(0, "a"), rank(1, "a")};
  const World w = test::world_of(facts);
  EXPECT_THAT(render_text({w, facts, {}}), AllOf(HasSubstr("place unknown"), HasSubstr("rank 0, 1"),
                                                 HasSubstr("no NIC is known")));
  check_layout(read_svg(render_svg({w, facts, {}})));
  check_layout(read_svg(render_svg({w, {}, {}})));
}

TEST(Svg, the_reader_sees_faults) {
  const auto page = [](const std::string& body) {
    return read_svg("<svg width=\"100\" height=\"50\"><text y=\"12\" font-size=\"10\">t</text>" +
                    body + "</svg>");
  };
  check_layout(page(""));
  EXPECT_NONFATAL_FAILURE(check_layout(page("<rect x=\"90\" y=\"20\" width=\"20\" height=\"9\"/>")),
                          "leaves the page");
  EXPECT_NONFATAL_FAILURE(check_layout(page("<rect x=\"2\" y=\"1\" width=\"20\" height=\"30\"/>")),
                          "crosses a frame");
  EXPECT_NONFATAL_FAILURE(
      check_layout(page("<rect x=\"20\" y=\"20\" width=\"20\" height=\"9\"/><g "
                        "transform=\"translate(30 5)\"><rect y=\"20\" width=\"20\" "
                        "height=\"9\"/></g>")),
      "rectangles 0 and 1");
  EXPECT_NONFATAL_FAILURE(check_layout(page("<text y=\"15\" font-size=\"10\">u</text>")), "over");
  for (const char* body : {"<g>", "</g>", "<text>&</text>", "<text>\x01</text>"}) {
    EXPECT_NE(page(body).flaw, "") << body;
  }
}

TEST(Svg, pieces_add_up) {
  const svg::Piece a{10, 5, "<a/>"}, b{20, 7, "<b/>"};
  EXPECT_EQ(svg::row({a, b}, 3).width, 33);
  EXPECT_EQ(svg::row({a, b}, 3).height, 7);
  EXPECT_EQ(svg::column({a, b}, 3).height, 15);
  EXPECT_EQ(svg::wrap({a, a, a}, 2, 22).width, 22);
  EXPECT_EQ(svg::wrap({a, a, a}, 2, 22).height, 12);
  EXPECT_EQ(svg::wrap({b}, 2, 5).width, 20);
  EXPECT_EQ(svg::row({}, 3).width, 0);
  EXPECT_LE(svg::text(std::string(100, 'x'), {}, 50).width, 50);
}

}  // namespace
}  // namespace prunex::topo

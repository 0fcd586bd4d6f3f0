// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace prunex {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Interface at(const char* name, const char* address, bool up = true) {
  Interface out;
  out.name = name;
  if (*address != '\0') {
    out.address = *parse_host(address, 0);
  }
  out.up = up;
  out.loopback = out.name == "lo";
  return out;
}

const std::vector<Interface> kMachine = {
    at("lo", "127.0.0.1"), at("eth0", "10.0.0.1"),      at("eth1", "10.1.0.1"),
    at("ib0", "10.2.0.1"), at("docker0", "172.17.0.1"), at("eth2", "10.3.0.1", false),
    at("lo", "::1"),       at("eth0", "fe80::1"),       at("eth1", "fd00::1"),
    at("wlan0", ""),
};

std::vector<std::string> chosen(const std::vector<Interface>& have, const char* filter) {
  const auto got = choose_interfaces(have, filter);
  std::vector<std::string> out;
  if (!got) {
    return {got.error().text};
  }
  for (const Interface& one : *got) {
    out.push_back(one.name + " " + host_text(one.address));
  }
  return out;
}

TEST(Interfaces, default_is_all_but_lo_and_docker) {
  EXPECT_THAT(chosen(kMachine, ""),
              ElementsAre("eth0 10.0.0.1", "eth1 10.1.0.1", "eth1 fd00::1", "ib0 10.2.0.1"));
}

TEST(Interfaces, of_a_family) {
  const auto names = [](Family family) {
    std::vector<std::string> out;
    const auto fitting = of_family(kMachine, family);
    for (const Interface& one : *fitting) {
      out.push_back(one.name + " " + host_text(one.address));
    }
    return out;
  };
  EXPECT_EQ(of_family(kMachine, Family::any)->size(), kMachine.size());
  EXPECT_THAT(names(Family::v6), ElementsAre("lo ::1", "eth0 fe80::1", "eth1 fd00::1"));
  EXPECT_EQ(of_family(kMachine, Family::v4)->size(), 6U);
  const std::vector<Interface> four = {at("lo", "127.0.0.1"), at("eth0", "10.0.0.1")};
  const auto none = of_family(four, Family::v6);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().text, AllOf(HasSubstr("IPv6"), HasSubstr("eth0(10.0.0.1)"),
                                       HasSubstr("NCCL_SOCKET_FAMILY")));
}

TEST(Interfaces, filters) {
  EXPECT_THAT(chosen(kMachine, "eth"),
              ElementsAre("eth0 10.0.0.1", "eth1 10.1.0.1", "eth1 fd00::1"));
  EXPECT_THAT(chosen(kMachine, "ib,eth1"),
              ElementsAre("eth1 10.1.0.1", "eth1 fd00::1", "ib0 10.2.0.1"));
  EXPECT_THAT(chosen(kMachine, "=eth0"), ElementsAre("eth0 10.0.0.1"));
  EXPECT_THAT(chosen(kMachine, "^eth"), ElementsAre("ib0 10.2.0.1", "docker0 172.17.0.1"));
  EXPECT_THAT(chosen(kMachine, "^eth,docker"), ElementsAre("ib0 10.2.0.1"));
  EXPECT_THAT(chosen(kMachine, "^=eth0,ib0,docker0"), ElementsAre("eth1 10.1.0.1", "eth1 fd00::1"));
  EXPECT_THAT(chosen(kMachine, "docker0"), ElementsAre("docker0 172.17.0.1"));
  EXPECT_THAT(chosen(kMachine, "lo"), ElementsAre("lo 127.0.0.1", "lo ::1"));
  EXPECT_THAT(chosen(kMachine, ",eth0,"), ElementsAre("eth0 10.0.0.1"));
}

TEST(Interfaces, loopback_only_when_there_is_nothing_else) {
  EXPECT_THAT(chosen({at("lo", "127.0.0.1"), at("docker0", "172.17.0.1")}, ""),
              ElementsAre("lo 127.0.0.1"));
  EXPECT_THAT(chosen({at("docker0", "172.17.0.1")}, ""), ElementsAre("docker0 172.17.0.1"));
  EXPECT_THAT(chosen({at("lo", "127.0.0.1"), at("eth0", "10.0.0.1", false)}, ""),
              ElementsAre("lo 127.0.0.1"));
  EXPECT_THAT(chosen({at("lo", "127.0.0.1"), at("eth0", "10.0.0.1")}, "^eth"),
              ElementsAre("lo 127.0.0.1"));
}

TEST(Interfaces, link_local_counts_where_nothing_else_is) {
  EXPECT_THAT(chosen({at("eth0", "fe80::1"), at("eth1", "10.0.0.1")}, ""),
              ElementsAre("eth0 fe80::1", "eth1 10.0.0.1"));
}

TEST(Interfaces, filter_grammar_errors) {
  for (const char* text :
       {"^", "=", "^=", "a b", "eth0,^eth1", "eth0=", "name-that-is-far-too-long"}) {
    const auto got = parse_interface_filter(text);
    ASSERT_FALSE(got) << text;
    EXPECT_EQ(got.error().code, Code::config);
    EXPECT_THAT(got.error().text, HasSubstr(text));
  }
  EXPECT_TRUE(parse_interface_filter("")->matches("anything"));
}

TEST(Reports, C1_filter_matches_nothing) {
  const auto got = choose_interfaces(kMachine, "eth77");
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::config);
  EXPECT_THAT(got.error().text,
              AllOf(HasSubstr("'eth77'"), HasSubstr("lo(127.0.0.1)"), HasSubstr("eth0(10.0.0.1)"),
                    HasSubstr("eth2(10.3.0.1, down)"), HasSubstr("wlan0(no address")));
  EXPECT_FALSE(choose_interfaces(kMachine, "eth2"));   // down
  EXPECT_FALSE(choose_interfaces(kMachine, "wlan0"));  // no address
  EXPECT_FALSE(choose_interfaces({}, ""));
}

TEST(Reports, C18_routed_address_on_lo) {
  const std::vector<Interface> machine = {at("lo", "127.0.0.1"), at("lo", "10.77.0.1"),
                                          at("lo", "::1"), at("eth0", "10.0.0.1")};
  EXPECT_THAT(chosen(machine, "lo"), ElementsAre("lo 10.77.0.1", "lo 127.0.0.1", "lo ::1"));
  EXPECT_THAT(chosen(machine, "=lo")[0], "lo 10.77.0.1");
}

TEST(Reports, C4_route_to_the_peer_is_preferred) {
  const RouteLookup through_ib = [](const SocketAddress&) { return parse_host("10.2.0.1", 0); };
  const RouteLookup nowhere = [](const SocketAddress&) -> Result<SocketAddress> {
    return fail(Code::system, "no route");
  };
  auto list = *choose_interfaces(kMachine, "^docker");
  prefer_route(list, *parse_host("10.9.9.9", 1), nowhere);
  EXPECT_EQ(list[0].name, "eth0");
  prefer_route(list, *parse_host("10.9.9.9", 1), through_ib);
  EXPECT_THAT(to_text(list), testing::StartsWith("ib0(10.2.0.1), eth0(10.0.0.1), eth1"));
}

TEST(Interfaces, the_carrier_brings_its_other_addresses_along) {
  std::vector<Interface> list = {at("a", "10.0.0.1"), at("b", "10.1.0.1"), at("b", "fd00::1"),
                                 at("c", "10.2.0.1")};
  prefer_route(list, *parse_host("fd00::9", 1),
               [](const SocketAddress&) { return parse_host("fd00::1", 0); });
  EXPECT_EQ(to_text(list), "b(fd00::1), b(10.1.0.1), a(10.0.0.1), c(10.2.0.1)");
}

TEST(Reports, C6_families_that_do_not_meet) {
  const std::vector<Interface> v6 = {at("eth0", "fd00::2")}, v4 = {at("eth0", "10.0.0.2")};
  const SocketAddress peer4 = *parse_host("10.0.0.1", 80), peer6 = *parse_host("fd00::1", 80);
  const auto wrong = check_families(v6, std::vector{peer4});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().text, AllOf(HasSubstr("10.0.0.1:80"), HasSubstr("IPv4"),
                                        HasSubstr("IPv6"), HasSubstr("eth0")));
  EXPECT_FALSE(check_families(v4, std::vector{peer6}));
  EXPECT_TRUE(check_families(v4, std::vector{peer4}));
  EXPECT_TRUE(check_families(v6, std::vector{peer4, peer6}));
  EXPECT_TRUE(check_families(v6, std::vector{*parse_host("127.0.0.1", 80)}));
}

TEST(Interfaces, this_machine_has_loopback) {
  const auto list = list_interfaces();
  ASSERT_TRUE(list) << list.error().text;
  EXPECT_THAT(to_text(*list), HasSubstr("lo("));
  const auto source = route_source(*parse_host("127.0.0.1", 0));
  ASSERT_TRUE(source) << source.error().text;
  EXPECT_EQ(host_text(*source), "127.0.0.1");
}

}  // namespace
}  // namespace prunex

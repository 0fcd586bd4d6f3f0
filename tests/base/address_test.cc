// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace prunex {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(HostPort, what_is_taken) {
  const struct {
    const char* text;
    const char* host;
    uint16_t port;
  } kCases[] = {{"10.0.0.1:80", "10.0.0.1", 80},
                {"node-7.example.org:65535", "node-7.example.org", 65535},
                {"[fd00::1]:1", "fd00::1", 1},
                {"[::]:4711", "::", 4711},
                {"a:1", "a", 1},
                {"[::ffff:10.0.0.1]:5", "::ffff:10.0.0.1", 5}};
  for (const auto& one : kCases) {
    const auto got = parse_host_port(one.text);
    ASSERT_TRUE(got) << one.text << ": " << got.error().text;
    EXPECT_EQ(got->host, one.host);
    EXPECT_EQ(got->port, one.port);
    EXPECT_EQ(to_text(*got), one.text);
  }
}

TEST(HostPort, what_is_refused_is_shown) {
  for (const std::string text : {"",
                                 ":",
                                 "host",
                                 "host:",
                                 ":80",
                                 "host:0",
                                 "host:65536",
                                 "host:-1",
                                 "host:8x",
                                 "host: 80",
                                 "fd00::1:80",
                                 "[fd00::1]",
                                 "[fd00::1]80",
                                 "[fd00::1]:",
                                 "[]:80",
                                 "[10.0.0.1]:80",
                                 "[fd00::1:80",
                                 "[host]:80",
                                 "two words:80",
                                 "a@b:80",
                                 "host:80:90",
                                 "http://host:80",
                                 "]:80",
                                 "[",
                                 "host\n:80"}) {
    const auto got = parse_host_port(text);
    ASSERT_FALSE(got) << text;
    EXPECT_EQ(got.error().code, Code::config);
    EXPECT_THAT(got.error().text, AllOf(HasSubstr("'" + text + "'"), HasSubstr("host:port")));
  }
  EXPECT_FALSE(parse_host_port(std::string("a\0b:80", 6)));
  EXPECT_LT(parse_host_port(std::string(100'000, 'a')).error().text.size(), 500u);
}

TEST(Address, numbers_go_round) {
  for (const std::string text :
       {"10.0.0.1:80", "255.255.255.255:65535", "[::1]:443", "[fd00::a:1]:9"}) {
    const auto got = parse_address(text);
    ASSERT_TRUE(got) << text;
    EXPECT_EQ(to_text(*got), text);
  }
  for (const char* text :
       {"localhost:80", "1.2.3:80", "1.2.3.4.5:80", "[::g]:80", "256.0.0.1:80"}) {
    EXPECT_FALSE(parse_address(text)) << text;
  }
}

SocketAddress host(const char* text) {
  const auto got = parse_host(text, 7);
  EXPECT_TRUE(got) << text;
  return got ? *got : SocketAddress{};
}

TEST(Address, kinds) {
  EXPECT_TRUE(host("127.0.0.1").is_loopback());
  EXPECT_TRUE(host("127.1.2.3").is_loopback());
  EXPECT_TRUE(host("::1").is_loopback());
  EXPECT_TRUE(host("::ffff:127.0.0.1").is_loopback());
  EXPECT_FALSE(host("10.0.0.1").is_loopback());
  EXPECT_FALSE(host("::2").is_loopback());
  EXPECT_TRUE(host("169.254.9.9").is_link_local());
  EXPECT_TRUE(host("fe80::1").is_link_local());
  EXPECT_FALSE(host("fd00::1").is_link_local());
  EXPECT_FALSE(SocketAddress{});
  EXPECT_EQ(SocketAddress{}.port(), 0);
  EXPECT_FALSE(SocketAddress{}.is_loopback());
}

TEST(Address, same_host_whatever_the_port_or_notation) {
  SocketAddress other = host("10.0.0.1");
  other.set_port(9);
  EXPECT_TRUE(same_host(host("10.0.0.1"), other));
  EXPECT_TRUE(same_host(host("10.0.0.1"), host("::ffff:10.0.0.1")));
  EXPECT_FALSE(same_host(host("10.0.0.1"), host("10.0.0.2")));
  EXPECT_FALSE(same_host(host("10.0.0.1"), host("fd00::1")));
  EXPECT_TRUE(same_host(host("fd00::1"), host("fd00:0::1")));
  EXPECT_EQ(host_text(host("::ffff:10.0.0.1")), "10.0.0.1");
  EXPECT_FALSE(same_host(SocketAddress{}, SocketAddress{}));
}

TEST(Address, resolves_numbers_and_localhost) {
  const auto number = resolve({"10.1.2.3", 99});
  ASSERT_TRUE(number);
  ASSERT_EQ(number->size(), 1u);
  EXPECT_EQ(to_text(number->front()), "10.1.2.3:99");
  const auto local = resolve({"localhost", 98});
  ASSERT_TRUE(local) << local.error().text;
  for (const SocketAddress& one : *local) {
    EXPECT_TRUE(one.is_loopback());
    EXPECT_EQ(one.port(), 98);
  }
  const auto nobody = resolve({"no-such-host.invalid", 1});
  ASSERT_FALSE(nobody);
  EXPECT_THAT(nobody.error().text, HasSubstr("no-such-host.invalid"));
}

TEST(PortRange, grammar) {
  EXPECT_EQ(parse_port_range("")->lo, 0);
  EXPECT_EQ(parse_port_range("41000-41003")->count(), 4);
  EXPECT_EQ(parse_port_range("80")->count(), 1);
  EXPECT_EQ(parse_port_range("1-65535")->hi, 65535);
  for (const char* text :
       {"-", "0-5", "5-", "-5", "9-8", "1-65536", "1-2-3", "a-b", "1 - 2", "1,2"}) {
    const auto got = parse_port_range(text);
    ASSERT_FALSE(got) << text;
    EXPECT_THAT(got.error().text, HasSubstr(text));
  }
}

}  // namespace
}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/sockets.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <set>

#include "plugin/base/interfaces.h"
#include "tests/base/netns.h"

namespace prunex {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

SocketAddress loopback(uint16_t port = 0) { return *parse_host("127.0.0.1", port); }

struct Pair {
  Fd here, there;
};
Pair connected_pair() {
  auto listening = listen_tcp(loopback());
  EXPECT_TRUE(listening) << listening.error().text;
  auto here = start_connect(listening->address);
  EXPECT_TRUE(here) << here.error().text;
  pollfd waiting{listening->fd.get(), POLLIN, 0};
  ::poll(&waiting, 1, 10'000);
  auto there = accept_tcp(listening->fd.get());
  EXPECT_TRUE(there && *there);
  EXPECT_TRUE(connect_done(here->get(), listening->address).value());
  return {std::move(*here), std::move((*there)->fd)};
}

int option(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof value;
  EXPECT_EQ(::getsockopt(fd, level, name, &value, &length), 0);
  return value;
}

TEST(Sockets, are_nonblocking_and_close_on_exec) {
  const auto listening = listen_tcp(loopback());
  ASSERT_TRUE(listening);
  const Pair pair = connected_pair();
  for (const int fd : {listening->fd.get(), pair.here.get(), pair.there.get()}) {
    EXPECT_NE(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(option(listening->fd.get(), SOL_SOCKET, SO_REUSEADDR), 1);
  EXPECT_NE(listening->address.port(), 0);
  EXPECT_FALSE(accept_tcp(listening->fd.get()).value().has_value());
}

TEST(Sockets, streams_notice_a_vanished_host) {
  const Pair pair = connected_pair();
  tune_stream(pair.here.get(), Vigilance::user_timeout);
  tune_stream(pair.there.get(), Vigilance::keepalive_only);
  for (const int fd : {pair.here.get(), pair.there.get()}) {
    EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    EXPECT_EQ(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_LE(option(fd, IPPROTO_TCP, TCP_KEEPIDLE) +
                  option(fd, IPPROTO_TCP, TCP_KEEPINTVL) * option(fd, IPPROTO_TCP, TCP_KEEPCNT),
              kVanishedAfterS);
  }
  EXPECT_EQ(option(pair.here.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), kVanishedAfterS * 1000);
  EXPECT_EQ(option(pair.there.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
}

TEST(Sockets, moves_bytes_and_sees_the_end) {
  Pair pair = connected_pair();
  std::array<std::byte, 8> out{std::byte{1}, std::byte{2}}, in{};
  EXPECT_EQ(recv_some(pair.there.get(), in).state, Transfer::again);
  EXPECT_EQ(send_some(pair.here.get(), out).bytes, 8u);
  pollfd waiting{pair.there.get(), POLLIN, 0};
  ::poll(&waiting, 1, 10'000);
  EXPECT_EQ(recv_some(pair.there.get(), in).bytes, 8u);
  EXPECT_EQ(in, out);
  pair.here.reset();
  ::poll(&waiting, 1, 10'000);
  EXPECT_EQ(recv_some(pair.there.get(), in).state, Transfer::closed);
}

TEST(Sockets, a_gone_peer_is_an_error_and_not_a_signal) {
  struct sigaction before {};
  ::sigaction(SIGPIPE, nullptr, &before);
  Pair pair = connected_pair();
  pair.there.reset();
  const std::array<std::byte, 1024> data{};
  Moved moved;
  for (int i = 0; i < 100; ++i) {  // SIGPIPE's default would end this process
    moved = send_some(pair.here.get(), data);
    ::usleep(moved.state == Transfer::broken ? 0 : 1000);
  }
  EXPECT_EQ(moved.state, Transfer::broken);
  EXPECT_TRUE(moved.sys_errno == EPIPE || moved.sys_errno == ECONNRESET);
  struct sigaction after {};
  ::sigaction(SIGPIPE, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST(Sockets, refused_connection_names_the_peer) {
  auto listening = listen_tcp(loopback());
  const SocketAddress nobody = listening->address;
  listening->fd.reset();
  const auto fd = start_connect(nobody);
  ASSERT_TRUE(fd);
  pollfd waiting{fd->get(), POLLOUT, 0};
  ::poll(&waiting, 1, 10'000);
  const auto done = connect_done(fd->get(), nobody);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().sys_errno, ECONNREFUSED);
  EXPECT_THAT(done.error().text, HasSubstr(to_text(nobody)));
}

TEST(Sockets, port_in_use_names_the_address) {
  const auto first = listen_tcp(loopback());
  const auto second = listen_tcp(first->address);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().sys_errno, EADDRINUSE);
  EXPECT_THAT(second.error().text, HasSubstr(to_text(first->address)));
}

TEST(Sockets, cookies_differ) {
  std::set<Cookie> seen;
  for (int i = 0; i < 100; ++i) {
    seen.insert(*random_cookie());
  }
  EXPECT_EQ(seen.size(), 100u);
  const Cookie a = *seen.begin();
  Cookie b = a;
  EXPECT_TRUE(same_cookie(a, b));
  b.back() ^= std::byte{0x80};
  EXPECT_FALSE(same_cookie(a, b));
}

TEST(Reports, C14_port_range_is_kept_and_its_end_is_told) {
  const auto got = test::in_network_namespace("ip link set lo up", [] {
    const PortRange range = *parse_port_range("41000-41003");
    std::set<int> ports;
    std::vector<Listening> open;
    for (int i = 0; i < 4; ++i) {
      auto one = listen_tcp(loopback(), range);
      if (!one) {
        return "early: " + one.error().text;
      }
      ports.insert(one->address.port());
      open.push_back(std::move(*one));
    }
    const auto fifth = listen_tcp(loopback(), range);
    return strf("%zu ports from %d to %d; %s", ports.size(), *ports.begin(), *ports.rbegin(),
                fifth ? "not exhausted" : fifth.error().text.c_str());
  });
  if (!got.possible) {
    GTEST_SKIP() << "network namespaces are not permitted here";
  }
  EXPECT_THAT(got.text, StartsWith("4 ports from 41000 to 41003; "));
  EXPECT_THAT(got.text, AllOf(HasSubstr("41000-41003"), HasSubstr("has 4 ports,")));
}

TEST(Reports, C14_nine_listeners_on_a_machine_with_eight_ports) {
  const auto got = test::in_network_namespace(
      "ip link set lo up && echo 42000 42007 > /proc/sys/net/ipv4/ip_local_port_range", [] {
        std::vector<Listening> open;
        for (int i = 0; i < 9; ++i) {
          auto one = listen_tcp(loopback());
          if (!one) {
            return strf("%d then %s", i, one.error().text.c_str());
          }
          open.push_back(std::move(*one));
        }
        return std::string("no error");
      });
  if (!got.possible) {
    GTEST_SKIP() << "network namespaces are not permitted here";
  }
  EXPECT_THAT(got.text, StartsWith("8 then cannot listen on 127.0.0.1:0: "));
}

TEST(Reports, C18_kernel_lists_the_routed_address_on_lo) {
  const auto got =
      test::in_network_namespace("ip link set lo up && ip addr add 10.77.0.1/32 dev lo", [] {
        const auto have = list_interfaces();
        const auto chosen = choose_interfaces(*have, "lo");
        return chosen ? to_text(*chosen) : chosen.error().text;
      });
  if (!got.possible) {
    GTEST_SKIP() << "network namespaces are not permitted here";
  }
  EXPECT_THAT(got.text, StartsWith("lo(10.77.0.1), lo(127.0.0.1)"));
}

TEST(Reports, C4_kernel_route_decides) {
  const auto got = test::in_network_namespace(
      "ip link set lo up && ip link add eno2 type veth peer name p2 && ip link add eno1 type veth "
      "peer "
      "name p1 && ip link set eno1 up && ip link set p1 up && ip link set eno2 up && ip link set "
      "p2 up "
      "&& ip addr add 10.8.0.2/24 dev eno2 && ip addr add 10.9.0.2/24 dev eno1 && "
      "ip route add 10.50.0.0/16 via 10.9.0.1",
      [] {
        const auto have = list_interfaces();
        auto chosen = choose_interfaces(*have, "^lo,p");
        if (!chosen) {
          return chosen.error().text;
        }
        prefer_route(*chosen, *parse_host("10.50.0.7", 80));
        return to_text(*chosen);
      });
  if (!got.possible) {
    GTEST_SKIP() << "network namespaces are not permitted here";
  }
  EXPECT_THAT(got.text, StartsWith("eno1(10.9.0.2), eno2(10.8.0.2)"));
}

TEST(Reports, C16_too_few_descriptors_names_the_limit) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit old = limit;
  const auto listening = listen_tcp(loopback());
  std::vector<Fd> open;
  Error error;
  limit.rlim_cur = 40;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  for (int i = 0; i < 100; ++i) {
    auto fd = start_connect(listening->address);
    if (!fd) {
      error = fd.error();
      break;
    }
    open.push_back(std::move(*fd));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(error.sys_errno, EMFILE);
  EXPECT_THAT(error.text, AllOf(HasSubstr("40"), HasSubstr("ulimit -n")));
}

TEST(Sockets, raises_the_soft_limit_only_as_far_as_asked_and_allowed) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit low = old;
  low.rlim_cur = 64;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  raise_descriptor_limit(32);
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, 64u);
  raise_descriptor_limit(128);
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, std::min<rlim_t>(128, old.rlim_max));
  ::setrlimit(RLIMIT_NOFILE, &old);
}

}  // namespace
}  // namespace prunex

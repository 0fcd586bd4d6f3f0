// SPDX-License-Identifier: Apache-2.0
// How the two ends of a socket connection meet: strangers, versions, late and stopped listeners.
#include "plugin/transport/socket/socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tests/transport/pair.h"
#include "tests/transport/raw.h"

namespace prunex::transport {
namespace {

std::unique_ptr<Transport> open(const SocketOptions& options = {}) {
  auto t = open_socket_transport(options);
  EXPECT_TRUE(t);
  return std::move(*t);
}

bool names_versions(const Error& error, unsigned a, unsigned b) {
  return error.text.find("version " + std::to_string(a)) != std::string::npos &&
         error.text.find("version " + std::to_string(b)) != std::string::npos;
}

TEST(Socket, strangers_are_dropped_and_never_an_error) {
  SocketOptions options;
  options.stray_timeout_s = 0.05;
  auto transport = open(options);
  auto listener = transport->listen();
  ASSERT_TRUE(listener);
  const Handle handle = *decode_handle((*listener)->handle());
  const auto turn = [&] {
    auto r = (*listener)->accept();
    ASSERT_TRUE(r) << r.error().text;
    ASSERT_FALSE(*r);
  };
  Hello wrong = hello_for(handle, 1, 0, 1);
  wrong.cookie[15] ^= std::byte{1};
  Hello beyond = hello_for(handle, 2, 0, 1);
  beyond.stream = 5;
  Hello none = hello_for(handle, 3, 0, 1);
  none.streams = 0;
  std::vector<RawPeer> strangers;
  for (int i = 0; i < 8; ++i) {
    strangers.emplace_back(handle.address);
  }
  strangers[0].send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  strangers[1].send(std::string(100'000, '\x7f'));
  // strangers[2] says nothing
  strangers[3].send(encode(wrong));
  strangers[4].send(encode(beyond));
  strangers[5].send(encode(none));
  const auto cut = encode(hello_for(handle, 4, 0, 1));
  strangers[6].send(std::span(cut).first(39));            // and no more
  strangers[7].send(encode(hello_for(handle, 5, 0, 2)));  // the second stream never comes
  for (RawPeer& s : strangers) {
    EXPECT_EQ(s.read(1, turn), "");  // hung up on
  }
  Pair p;
  auto connecting = transport->connect((*listener)->handle(), "friend", 30);
  ASSERT_TRUE(connecting);
  const Deadline deadline = Deadline::after(kPatience);
  while ((!p.a || !p.b) && !deadline.passed()) {
    if (!p.a) {
      p.a = *(*connecting)->step();
    }
    if (!p.b) {
      p.b = *(*listener)->accept();
    }
  }
  ASSERT_TRUE(p.a && p.b);
  EXPECT_EQ(p.b->hello(), "friend");
}

// How many TCP sockets of this process the kernel paces at this rate.
int paced_at(uint64_t bytes_per_s) {
  int found = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    uint64_t rate = 0;
    socklen_t length = sizeof rate;
    if (::getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &length) == 0) {
      found += rate == bytes_per_s ? 1 : 0;
    }
  }
  return found;
}

TEST(Socket, a_rate_is_shared_by_the_streams_at_both_ends) {
  SocketOptions options;
  options.streams = 4;
  options.pacing_rate = 400'000'000;
  auto transport = open_socket_transport(options);
  if (!transport) {
    GTEST_SKIP() << transport.error().text;
  }
  const Pair paced = make_pair(**transport, **transport);
  ASSERT_TRUE(paced.a && paced.b);
  EXPECT_EQ(paced_at(100'000'000), 8);
  options.pacing_rate = 0;
  auto free = open(options);
  const Pair unpaced = make_pair(*free, *free);
  ASSERT_TRUE(unpaced.a && unpaced.b);
  EXPECT_EQ(paced_at(100'000'000), 8) << "nobody else is slowed";
}

TEST(Socket, a_silent_stranger_delays_nobody) {
  auto transport = open();  // strangers may stay for 10 s
  auto listener = transport->listen();
  ASSERT_TRUE(listener);
  const Handle handle = *decode_handle((*listener)->handle());
  std::vector<RawPeer> strangers;
  for (int i = 0; i < 300; ++i) {  // more than are kept
    strangers.emplace_back(handle.address);
    ASSERT_TRUE((*listener)->accept());
  }
  RawPeer known(handle.address);
  known.send(encode(hello_for(handle, 7, 0, 1)));
  auto c = accept_one(**listener);
  ASSERT_TRUE(c && *c);
}

TEST(Socket, a_peer_of_another_version_is_told_and_named) {
  auto transport = open();
  auto listener = transport->listen();
  ASSERT_TRUE(listener);
  const Handle handle = *decode_handle((*listener)->handle());
  Hello old = hello_for(handle, 99, 0, 2);
  old.version = 77;
  RawPeer a(handle.address), b(handle.address);
  a.send(encode(old));
  old.stream = 1;
  b.send(encode(old));
  auto r = accept_one(**listener);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code, Code::mismatch);
  EXPECT_TRUE(names_versions(r.error(), 77, kWireVersion)) << r.error().text;
  for (RawPeer* peer : {&a, &b}) {
    const std::string said = peer->read(kReplyBytes, [&] {
      auto again = (*listener)->accept();  // reported once, not once per stream
      EXPECT_TRUE(again) << again.error().text;
    });
    Reply reply;
    ASSERT_EQ(said.size(), kReplyBytes);
    ASSERT_TRUE(decode_reply(std::as_bytes(std::span(said)).first<kReplyBytes>(), &reply));
    EXPECT_EQ(reply.code, ReplyCode::wrong_version);
    EXPECT_EQ(reply.version, kWireVersion);
  }
  RawPeer good(handle.address);
  good.send(encode(hello_for(handle, 100, 0, 1)));
  auto c = accept_one(**listener);
  ASSERT_TRUE(c && *c);
}

TEST(Socket, a_listener_of_another_version_is_named) {
  auto at = listen_tcp(*parse_host("127.0.0.1", 0));
  ASSERT_TRUE(at);
  auto transport = open();
  const std::string handle = encode(Handle{at->address, *random_cookie()});
  for (const auto code : {ReplyCode::wrong_version, ReplyCode::accepted}) {
    auto connecting = transport->connect(handle, "", 30);
    ASSERT_TRUE(connecting);
    std::optional<RawPeer> server;
    const Deadline deadline = Deadline::after(kPatience);
    for (bool failed = false; !failed && !deadline.passed();) {
      auto r = (*connecting)->step();
      failed = !r;
      if (failed) {
        EXPECT_EQ(r.error().code, Code::mismatch);
        EXPECT_TRUE(names_versions(r.error(), 9, kWireVersion)) << r.error().text;
      }
      auto accepted = server ? std::nullopt : *accept_tcp(at->fd.get());
      if (accepted) {
        server.emplace(std::move(accepted->fd));
        server->send(encode(Reply{9, code}));
      }
    }
    EXPECT_FALSE(deadline.passed());
  }
  std::string other = handle;
  other[4] = 9;
  auto r = transport->connect(other, "", 1);
  ASSERT_FALSE(r);
  EXPECT_TRUE(names_versions(r.error(), 9, kWireVersion)) << r.error().text;
}

TEST(Socket, connects_when_the_listener_comes_late) {
  SocketAddress address;
  {
    auto reserved = listen_tcp(*parse_host("127.0.0.1", 0));
    ASSERT_TRUE(reserved);
    address = reserved->address;
  }
  auto transport = open();
  const Cookie cookie = *random_cookie();
  auto connecting = transport->connect(encode(Handle{address, cookie}), "", 30);
  ASSERT_TRUE(connecting);
  for (int i = 0; i < 100; ++i) {
    auto r = (*connecting)->step();
    ASSERT_TRUE(r) << r.error().text;
  }
  auto late = listen_tcp(address);
  ASSERT_TRUE(late) << late.error().text;
  std::optional<RawPeer> server;
  const Deadline deadline = Deadline::after(kPatience);
  for (;;) {
    ASSERT_FALSE(deadline.passed());
    auto r = (*connecting)->step();
    ASSERT_TRUE(r) << r.error().text;
    if (*r) {
      break;
    }
    auto accepted = server ? std::nullopt : *accept_tcp(late->fd.get());
    if (accepted) {
      server.emplace(std::move(accepted->fd));
      server->send(encode(Reply{}));
    }
  }
}

TEST(Socket, a_stranger_at_the_port_is_named_at_the_deadline) {
  auto at = listen_tcp(*parse_host("127.0.0.1", 0));
  ASSERT_TRUE(at);
  auto transport = open();
  auto connecting = transport->connect(encode(Handle{at->address, *random_cookie()}), "", 0.3);
  ASSERT_TRUE(connecting);
  const Deadline deadline = Deadline::after(kPatience);
  while (!deadline.passed()) {
    auto r = (*connecting)->step();
    if (!r) {
      EXPECT_EQ(r.error().code, Code::timeout);
      EXPECT_NE(r.error().text.find("not prunex"), std::string::npos) << r.error().text;
      EXPECT_NE(r.error().text.find(to_text(at->address)), std::string::npos) << r.error().text;
      return;
    }
    auto accepted = accept_tcp(at->fd.get());
    ASSERT_TRUE(accepted) << accepted.error().text;
    if (accepted->has_value()) {
      RawPeer(std::move((*accepted)->fd)).send("HTTP/1.1 400 Bad Request\r\n\r\n");
    }
  }
  FAIL() << "hangs";
}

TEST(Socket, a_listener_that_never_accepts_is_named_at_the_deadline) {
  auto transport = open();
  auto listener = transport->listen();
  ASSERT_TRUE(listener);
  auto connecting = transport->connect((*listener)->handle(), "", 0.2);
  ASSERT_TRUE(connecting);
  const Deadline deadline = Deadline::after(kPatience);
  std::vector<pollfd> fds;
  while (!deadline.passed()) {
    auto r = (*connecting)->step();
    if (!r) {
      EXPECT_EQ(r.error().code, Code::timeout);
      EXPECT_NE(r.error().text.find("did not accept"), std::string::npos) << r.error().text;
      return;
    }
    fds.clear();
    (*connecting)->poll_fds(fds);
    ASSERT_GT(poll(fds.data(), fds.size(), 30'000), 0) << "a sleeper misses the deadline";
  }
  FAIL() << "hangs";
}

TEST(Socket, unequal_families_name_both) {
  SocketOptions options;
  options.address = *parse_host("::1", 0);
  auto transport = open(options);
  auto r = transport->connect(encode(Handle{*parse_address("10.1.2.3:4711"), Cookie{}}), "", 1);
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().text.find("IPv4"), std::string::npos) << r.error().text;
  EXPECT_NE(r.error().text.find("IPv6"), std::string::npos) << r.error().text;
}

TEST(Socket, speaks_ipv6_and_keeps_to_its_port_range) {
  SocketOptions options;
  options.address = *parse_host("::1", 0);
  options.ports = {41'800, 41'899};
  options.streams = 3;
  auto transport = open(options);
  auto probe = listen_tcp(options.address);
  if (!probe) {
    GTEST_SKIP() << "no IPv6 here: " << probe.error().text;
  }
  Pair p = make_pair(*transport, *transport);
  ASSERT_TRUE(p.a && p.b);
  const uint16_t port = decode_handle(p.listener->handle())->address.port();
  EXPECT_GE(port, 41'800);
  EXPECT_LE(port, 41'899);
  EXPECT_NE(p.a->describe().find("[::1]:"), std::string::npos) << p.a->describe();
  EXPECT_NE(p.a->describe().find("3 streams"), std::string::npos) << p.a->describe();
}

TEST(Socket, options_out_of_range_are_errors) {
  for (const int streams : {-1, 65, 1000}) {
    SocketOptions options;
    options.streams = streams;
    auto t = open_socket_transport(options);
    ASSERT_FALSE(t);
    EXPECT_NE(t.error().text.find(std::to_string(streams)), std::string::npos);
  }
}

}  // namespace
}  // namespace prunex::transport

// SPDX-License-Identifier: Apache-2.0
// The streams of the socket transport: damaged ones, slow ones, silent ones, and how they are used.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>

#include <cstdlib>
#include <cstring>

#include "plugin/transport/socket/socket.h"
#include "tests/transport/child.h"
#include "tests/transport/pair.h"
#include "tests/transport/raw.h"

namespace prunex::transport {
namespace {

std::unique_ptr<Transport> open(const SocketOptions& options = {}) {
  auto t = open_socket_transport(options);
  EXPECT_TRUE(t);
  return std::move(*t);
}

// The bytes on the stream, after a connection was accepted.
struct Accepted1 {
  std::unique_ptr<Transport> transport = open();
  std::unique_ptr<Listener> listener = std::move(*transport->listen());
  RawPeer peer{decode_handle(listener->handle())->address};
  std::unique_ptr<Connection> c;
  std::vector<std::byte> into = std::vector<std::byte>(1000);
  Ticket ticket = 0;
  Accepted1() {
    peer.send(encode(hello_for(*decode_handle(listener->handle()), 5, 0, 1)));
    c = std::move(*accept_one(*listener));
    EXPECT_EQ(peer.read(kReplyBytes, [] {}).size(), kReplyBytes);  // unread, a close would reset
    EXPECT_EQ(c->irecv(into.data(), into.size(), nullptr, &ticket), Io::done);
  }
  Io outcome() {
    size_t bytes = 0;
    return finish(*c, nullptr, ticket, &bytes);
  }
};

TEST(Stream, damaged_headers_break_the_connection) {
  using H = FragmentHeader;
  for (const H& h : {H{1, 0, 0, 10, 0, 10}, H{0, 1, 0, 10, 0, 10}, H{0, 0, 0, 10, 5, 10},
                     H{0, 0, 0, 10, 11, 0}, H{0, 0, 0, 10, ~uint64_t{0}, 5},
                     H{0, 0, 0xFFFFFFFF, 10, 0, 10}, H{0, 0, 0, ~uint64_t{0}, 0, 1}}) {
    Accepted1 x;
    x.peer.send(encode(h));
    EXPECT_EQ(x.outcome(), Io::failed);
    EXPECT_EQ(x.c->error().code, Code::mismatch) << x.c->error().text;
  }
  Accepted1 x;
  x.peer.send(std::string(32, 'A'));
  EXPECT_EQ(x.outcome(), Io::failed);
}

TEST(Stream, contradicting_fragments_break_the_connection) {
  for (const FragmentHeader& second : {FragmentHeader{0, 0, 0, 11, 0, 5},     // another size
                                       FragmentHeader{0, 0, 0, 10, 0, 6}}) {  // more than is left
    Accepted1 x;
    x.peer.send(encode(FragmentHeader{0, 0, 0, 10, 0, 5}));
    x.peer.send("12345");
    x.peer.send(encode(second));
    x.peer.send("12345");
    EXPECT_EQ(x.outcome(), Io::failed);
    EXPECT_EQ(x.c->error().code, Code::mismatch) << x.c->error().text;
  }
}

TEST(Stream, an_end_in_the_middle_is_a_lost_peer) {
  for (const size_t n : {size_t{1}, kFragmentBytes, kFragmentBytes + 3}) {
    Accepted1 x;
    std::string bytes(
        reinterpret_cast<const char*>(encode(FragmentHeader{0, 0, 0, 10, 0, 10}).data()),
        kFragmentBytes);
    bytes += "0123456789";
    x.peer.send(bytes.substr(0, n));
    x.peer.close();
    EXPECT_EQ(x.outcome(), Io::failed);
    EXPECT_EQ(x.c->error().code, Code::peer_lost);
    EXPECT_NE(x.c->error().text.find("middle"), std::string::npos) << x.c->error().text;
  }
}

TEST(Stream, bytes_may_come_one_by_one) {
  Accepted1 x;
  std::string all(reinterpret_cast<const char*>(encode(FragmentHeader{0, 0, 0, 10, 0, 10}).data()),
                  kFragmentBytes);
  all += "0123456789";
  for (const char byte : all) {
    x.peer.send(std::string_view(&byte, 1));
    (void)x.c->progress();
  }
  EXPECT_EQ(x.outcome(), Io::done);
  EXPECT_EQ(memcmp(x.into.data(), "0123456789", 10), 0);
}

TEST(Stream, data_sockets_are_tuned) {
  Accepted1 x;
  std::vector<pollfd> fds;
  x.c->poll_fds(fds);
  ASSERT_EQ(fds.size(), 1U);
  int value = 0;
  socklen_t length = sizeof value;
  ASSERT_EQ(getsockopt(fds[0].fd, IPPROTO_TCP, TCP_NODELAY, &value, &length), 0);
  EXPECT_NE(value, 0);
  ASSERT_EQ(getsockopt(fds[0].fd, SOL_SOCKET, SO_KEEPALIVE, &value, &length), 0);
  EXPECT_NE(value, 0);
  EXPECT_NE(fcntl(fds[0].fd, F_GETFD) & FD_CLOEXEC, 0);
}

// The machine of the peer vanishes while data are out: its packets, and ours, go nowhere.
TEST(Stream, a_vanished_machine_is_a_lost_peer) {
  PRUNEX_EXPECT_CHILD(in_child([]() -> std::string {
    if (unshare(CLONE_NEWNET) != 0 || system("ip link set lo up >/dev/null 2>&1") != 0) {
      return "skip: network namespaces are not permitted";
    }
    SocketOptions options;
    options.silence_s = 1;
    auto transport = open(options);
    Pair p = make_pair(*transport, *transport);
    std::byte byte{};
    Ticket s = 0, r = 0;
    size_t bytes = 0;
    if (system("ip link set lo down >/dev/null 2>&1") != 0 ||
        p.a->isend(&byte, 1, nullptr, &s) != Io::done ||
        p.a->irecv(&byte, 1, nullptr, &r) != Io::done ||
        finish(*p.a, nullptr, s, &bytes) != Io::done) {
      return "skip: the link cannot be taken down";
    }
    if (finish(*p.a, nullptr, r, &bytes) != Io::failed || p.a->error().code != Code::peer_lost) {
      return "not noticed";
    }
    const bool named = p.a->error().text.find("acknowledged nothing for 1 s") != std::string::npos;
    return named ? "" : p.a->error().text;
  }));
}

// A live peer that reads nothing for long is not lost: it may compute for minutes.
TEST(Stream, a_peer_that_does_not_read_is_not_lost) {
  SocketOptions options;
  options.silence_s = 0.5;
  auto transport = open(options);
  Pair p = make_pair(*transport, *transport);
  ASSERT_TRUE(p.a && p.b);
  const auto data = pattern(64 << 20, 1);
  std::vector<std::byte> into(data.size());
  Ticket s = 0, r = 0;
  size_t bytes = 0;
  ASSERT_EQ(p.a->isend(data.data(), data.size(), nullptr, &s), Io::done);
  const Deadline end = Deadline::after(2.5);
  while (!end.passed()) {
    ASSERT_NE(p.a->progress(), Io::failed) << p.a->error().text;
  }
  ASSERT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &r), Io::done);
  ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done) << p.b->error().text;
  ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done) << p.a->error().text;
  EXPECT_EQ(into, data);
}

// A stopped sender: half a message and then nothing, while its kernel answers.
TEST(Stream, half_a_message_is_not_waited_for_beyond_the_deadline) {
  SocketOptions options;
  options.stall_s = 1;
  auto transport = open(options);
  Pair p = make_pair(*transport, *transport);
  ASSERT_TRUE(p.a && p.b);
  const auto data = pattern(64 << 20, 1);
  std::vector<std::byte> into(data.size());
  Ticket s = 0, r = 0;
  size_t bytes = 0;
  ASSERT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &r), Io::done);
  // Without a message there is nothing to wait for.
  const Deadline idle = Deadline::after(2.5);
  while (!idle.passed()) {
    ASSERT_EQ(p.b->test(r, &bytes), Io::again) << p.b->error().text;
  }
  ASSERT_EQ(p.a->isend(data.data(), data.size(), nullptr, &s), Io::done);
  ASSERT_NE(p.a->progress(), Io::failed);  // far less than all of it
  EXPECT_EQ(finish(*p.b, nullptr, r, &bytes), Io::failed);
  EXPECT_EQ(p.b->error().code, Code::timeout);
  EXPECT_NE(p.b->error().text.find("of 67108864 bytes"), std::string::npos) << p.b->error().text;
}

// Stripes of a long message leave in address order, all but the last multiples of 128 bytes.
TEST(Stream, stripes_are_multiples_of_128_bytes) {
  auto transport = open();
  auto listener = std::move(*transport->listen());
  const Handle handle = *decode_handle(listener->handle());
  std::vector<RawPeer> peers;
  for (unsigned i = 0; i < 3; ++i) {
    peers.emplace_back(handle.address);
    peers.back().send(encode(hello_for(handle, 1, i, 3)));
  }
  auto c = std::move(*accept_one(*listener));
  ASSERT_TRUE(c);
  const auto data = pattern(200'001, 1);
  Ticket t = 0;
  ASSERT_EQ(c->isend(data.data(), data.size(), nullptr, &t), Io::done);
  const auto turn = [&] { (void)c->progress(); };
  uint64_t covered = 0;
  for (RawPeer& p : peers) {
    ASSERT_EQ(p.read(kReplyBytes, turn).size(), kReplyBytes);
    const std::string fixed = p.read(kFragmentBytes, turn);
    FragmentHeader h;
    ASSERT_EQ(fixed.size(), kFragmentBytes);
    ASSERT_TRUE(decode_fragment(std::as_bytes(std::span(fixed)).first<kFragmentBytes>(), &h));
    EXPECT_EQ(h.message, data.size());
    EXPECT_EQ(h.offset % 128, 0U);
    EXPECT_TRUE(h.length % 128 == 0 || h.offset + h.length == h.message);
    const std::string body = p.read(static_cast<size_t>(h.length), turn);
    ASSERT_EQ(body.size(), h.length);
    EXPECT_EQ(memcmp(body.data(), data.data() + h.offset, body.size()), 0);
    covered += h.length;
  }
  EXPECT_EQ(covered, data.size());
}

}  // namespace
}  // namespace prunex::transport

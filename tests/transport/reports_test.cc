// SPDX-License-Identifier: Apache-2.0
// Faults that users of comparable software reported, by their id in the collection.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "plugin/transport/shm/shm.h"
#include "plugin/transport/socket/socket.h"
#include "tests/transport/child.h"
#include "tests/transport/pair.h"
#include "tests/transport/raw.h"

namespace prunex::transport {
namespace {

std::vector<std::unique_ptr<Transport>> all_transports(uint32_t first_sequence = 0) {
  std::vector<std::unique_ptr<Transport>> out;
  for (const int streams : {1, 4}) {
    SocketOptions o;
    o.streams = streams;
    o.first_sequence = first_sequence;
    out.push_back(std::move(*open_socket_transport(o)));
  }
  ShmOptions o;
  o.first_sequence = first_sequence;
  out.push_back(std::move(*open_shm_transport(o)));
  return out;
}

// The streams of two connections, interleaved and in reverse order.
TEST(Reports, C8_streams_in_reverse_order) {
  auto transport = std::move(*open_socket_transport({}));
  auto listener = std::move(*transport->listen());
  const Handle handle = *decode_handle(listener->handle());
  constexpr unsigned kStreams = 4;
  std::vector<RawPeer> peers[2];
  for (unsigned i = kStreams; i-- > 0;) {
    for (unsigned c : {0U, 1U}) {
      auto early = listener->accept();
      ASSERT_TRUE(early) << early.error().text;
      if (i > 0) {
        ASSERT_FALSE(*early) << "accepted before all streams were there";
      }
      if (*early) {
        FAIL() << "accepted before all streams were there";
      }
      peers[c].emplace_back(handle.address);
      peers[c].back().send(encode(hello_for(handle, 100 + c, i, kStreams)));
      if (i == 0) {
        auto r = accept_one(*listener);
        ASSERT_TRUE(r && *r);
        // A message in four stripes of one byte, the last stripe first.
        std::string into(kStreams, ' ');
        Ticket t = 0;
        ASSERT_EQ((*r)->irecv(into.data(), into.size(), nullptr, &t), Io::done);
        for (size_t k = 0; k < kStreams; ++k) {  // peers[c][k] is stream kStreams - 1 - k
          const size_t stream = kStreams - 1 - k;
          peers[c][k].send(encode(FragmentHeader{0, 0, 0, kStreams, stream, 1}));
          peers[c][k].send(std::string(1, static_cast<char>('a' + stream)));
        }
        size_t bytes = 0;
        ASSERT_EQ(finish(**r, nullptr, t, &bytes), Io::done) << (*r)->error().text;
        EXPECT_EQ(into, "abcd");
      }
    }
  }
}

TEST(Reports, C10_sigpipe) {
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGPIPE, nullptr, &before), 0);
  ASSERT_EQ(before.sa_handler, SIG_DFL) << "with another handler this test cannot fail";
  for (auto& transport : all_transports()) {
    Pair p = make_pair(*transport, *transport);
    ASSERT_TRUE(p.a && p.b);
    p.b.reset();
    std::vector<std::byte> data(200'000);
    Io last = Io::done;
    const Deadline deadline = Deadline::after(kPatience);
    for (int i = 0; (i < 100 || last != Io::failed) && !deadline.passed(); ++i) {
      Ticket t = 0;
      last = p.a->isend(data.data(), i % 2 == 0 ? data.size() : 1, nullptr, &t);
      if (last == Io::done) {
        size_t bytes = 0;
        last = p.a->test(t, &bytes);
      }
      if (last != Io::failed) {
        last = p.a->progress();
      }
    }
    EXPECT_EQ(last, Io::failed) << transport->name();
    EXPECT_EQ(p.a->error().code, Code::peer_lost) << p.a->error().text;

    // Whatever the kernel says first above, here it can only be EPIPE.
    Pair q = make_pair(*transport, *transport);
    ASSERT_TRUE(q.a && q.b);
    std::vector<pollfd> fds;
    q.a->poll_fds(fds);
    for (const pollfd& fd : fds) {
      ASSERT_EQ(shutdown(fd.fd, SHUT_WR), 0);
    }
    q.b->poll_fds(fds);  // the shared-memory transport has somebody to wake
    Ticket t = 0;
    ASSERT_EQ(q.a->isend(data.data(), data.size(), nullptr, &t), Io::done);
    const Io sent = q.a->progress();
    if (transport->name() == "socket") {
      EXPECT_EQ(sent, Io::failed);
      EXPECT_EQ(q.a->error().sys_errno, EPIPE) << q.a->error().text;
    }
  }
  struct sigaction after {};
  ASSERT_EQ(sigaction(SIGPIPE, nullptr, &after), 0);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

TEST(Reports, C13_zero_byte_messages) {
  for (auto& transport : all_transports()) {
    Pair p = make_pair(*transport, *transport);
    ASSERT_TRUE(p.a && p.b);
    const std::vector<size_t> sizes = {0, 5, 0, 0, 1};
    const auto data = pattern(8, 1);
    for (const bool posted_first : {true, false}) {
      std::vector<Ticket> s(sizes.size()), r(sizes.size());
      std::vector<std::vector<std::byte>> into(sizes.size(), std::vector<std::byte>(8));
      const auto post = [&] {
        for (size_t i = 0; i < sizes.size(); ++i) {
          void* to = sizes[i] == 0 ? nullptr : into[i].data();
          ASSERT_EQ(p.b->irecv(to, to == nullptr ? 0 : 8, nullptr, &r[i]), Io::done);
        }
      };
      if (posted_first) {
        post();
      }
      for (size_t i = 0; i < sizes.size(); ++i) {
        const void* from = sizes[i] == 0 ? nullptr : data.data();
        ASSERT_EQ(p.a->isend(from, sizes[i], nullptr, &s[i]), Io::done);
      }
      if (!posted_first) {
        for (int i = 0; i < 100; ++i) {
          p.a->progress();
          p.b->progress();
        }
        post();
      }
      for (size_t i = 0; i < sizes.size(); ++i) {
        size_t bytes = 99;
        ASSERT_EQ(finish(*p.b, p.a.get(), r[i], &bytes), Io::done) << p.b->error().text;
        EXPECT_EQ(bytes, sizes[i]);
        EXPECT_TRUE(
            std::equal(data.begin(), data.begin() + static_cast<long>(bytes), into[i].begin()));
        bytes = 99;
        ASSERT_EQ(finish(*p.a, p.b.get(), s[i], &bytes), Io::done);
        EXPECT_EQ(bytes, sizes[i]);
      }
    }
  }
}

// Drives a connect that nobody answers; what its error says.
std::string failing_connect(const SocketAddress& to, double timeout_s) {
  SocketOptions options;
  options.streams = 2;
  auto transport = std::move(*open_socket_transport(options));
  auto connecting = transport->connect(encode(Handle{to, Cookie{}}), "", timeout_s);
  if (!connecting) {
    return connecting.error().text;
  }
  std::vector<pollfd> fds;
  const Deadline deadline = Deadline::after(kPatience);
  while (!deadline.passed()) {
    auto r = (*connecting)->step();
    if (!r) {
      return r.error().text;
    }
    fds.clear();
    (*connecting)->poll_fds(fds);
    if (poll(fds.data(), fds.size(), 30'000) <= 0) {
      return "a sleeper is not woken";
    }
  }
  return "hangs";
}

TEST(Reports, C15_refused_until_the_deadline) {
  SocketAddress nobody;
  {
    auto reserved = listen_tcp(*parse_host("127.0.0.1", 0));
    ASSERT_TRUE(reserved);
    nobody = reserved->address;
  }
  const std::string text = failing_connect(nobody, 0.5);
  EXPECT_NE(text.find(to_text(nobody)), std::string::npos) << text;
  EXPECT_NE(text.find("attempts"), std::string::npos) << text;
  EXPECT_NE(text.find("refused"), std::string::npos) << text;
}

TEST(Reports, C15_black_hole) {
  PRUNEX_EXPECT_CHILD(in_child([]() -> std::string {
    if (unshare(CLONE_NEWNET) != 0) {
      return "skip: network namespaces are not permitted";
    }
    if (system(
            "ip link set lo up && ip link add hole0 type veth peer name hole1 && "
            "ip addr add 10.99.7.1/24 dev hole0 && ip link set hole0 up && ip link set hole1 up && "
            "ip neigh add 10.99.7.2 lladdr 02:00:00:00:00:01 dev hole0 >/dev/null 2>&1") != 0) {
      return "skip: a veth pair with a static neighbour is not permitted";
    }
    const std::string text = failing_connect(*parse_address("10.99.7.2:4711"), 2.5);
    for (const char* wanted : {"10.99.7.2:4711", "attempt", "2.5"}) {
      if (text.find(wanted) == std::string::npos) {
        return std::string("no '") + wanted + "' in: " + text;
      }
    }
    return "";
  }));
}

// Nothing routes there: connect() fails at once with another error than a refusal.
TEST(Reports, C15_unreachable) {
  PRUNEX_EXPECT_CHILD(in_child([]() -> std::string {
    if (unshare(CLONE_NEWNET) != 0) {
      return "skip: network namespaces are not permitted";
    }
    const std::string text = failing_connect(*parse_address("10.99.7.2:4711"), 0.3);
    return text.find("10.99.7.2:4711") != std::string::npos &&
                   text.find("nreachable") != std::string::npos
               ? ""
               : text;
  }));
}

// Opens pairs until the limit of open files stops it.
std::string run_out_of_files(Transport& transport) {
  const rlimit few{40, 40};
  if (setrlimit(RLIMIT_NOFILE, &few) != 0) {
    return "skip: the limit cannot be lowered";
  }
  auto listener = transport.listen();
  if (!listener) {
    return listener.error().text;
  }
  std::vector<std::unique_ptr<Connection>> from, to;
  std::string text;
  while (text.empty() && from.size() < 100) {
    auto connecting = transport.connect((*listener)->handle(), "", 30);
    if (!connecting) {
      text = connecting.error().text;
    }
    std::unique_ptr<Connection> a, b;
    while (text.empty() && (!a || !b)) {
      auto stepped = a ? std::unique_ptr<Connection>() : (*connecting)->step();
      auto accepted = b ? std::unique_ptr<Connection>() : (*listener)->accept();
      if (!stepped || !accepted) {
        text = !stepped ? stepped.error().text : accepted.error().text;
        break;
      }
      a = *stepped ? std::move(*stepped) : std::move(a);
      b = *accepted ? std::move(*accepted) : std::move(b);
    }
    if (a && b) {
      from.push_back(std::move(a));
      to.push_back(std::move(b));
    }
  }
  if (from.empty() || text.find("ulimit -n") == std::string::npos) {
    return "the error does not name the limit: " + text;
  }
  for (size_t i = 0; i < from.size(); ++i) {  // those before it still work
    std::byte out{7}, in{0};
    Ticket s = 0, r = 0;
    size_t bytes = 0;
    if (from[i]->isend(&out, 1, nullptr, &s) != Io::done ||
        to[i]->irecv(&in, 1, nullptr, &r) != Io::done ||
        finish(*to[i], from[i].get(), r, &bytes) != Io::done || in != out) {
      return "an earlier connection broke: " + to[i]->error().text;
    }
  }
  return "";
}

TEST(Reports, C16_out_of_file_descriptors) {
  for (auto& transport : all_transports()) {
    PRUNEX_EXPECT_CHILD(in_child([&] { return run_out_of_files(*transport); }));
  }
}

TEST(Reports, C16_the_soft_limit_is_raised) {
  PRUNEX_EXPECT_CHILD(in_child([]() -> std::string {
    const rlimit soft{30, 1000};
    if (setrlimit(RLIMIT_NOFILE, &soft) != 0) {
      return "skip: the limit cannot be set";
    }
    SocketOptions options;
    options.streams = 16;
    auto transport = std::move(*open_socket_transport(options));
    std::vector<Pair> pairs;
    for (int i = 0; i < 5; ++i) {
      pairs.push_back(make_pair(*transport, *transport));
      if (!pairs.back().a || !pairs.back().b) {
        return "no connection beyond the soft limit";
      }
    }
    return "";
  }));
}

TEST(Reports, B19_sequence_numbers_wrap) {
  for (const uint32_t first : {(uint32_t{1} << 31) - 3, uint32_t{0} - 3}) {
    for (auto& transport : all_transports(first)) {
      Pair p = make_pair(*transport, *transport);
      ASSERT_TRUE(p.a && p.b);
      for (const size_t n : {size_t{5}, size_t{200'000}}) {
        for (Connection* from : {p.a.get(), p.b.get()}) {
          Connection* to = from == p.a.get() ? p.b.get() : p.a.get();
          constexpr size_t kMessages = 10;
          std::vector<std::vector<std::byte>> out, in(kMessages, std::vector<std::byte>(n));
          std::vector<Ticket> s(kMessages), r(kMessages);
          for (size_t i = 0; i < kMessages; ++i) {
            out.push_back(pattern(n, i));
            ASSERT_EQ(from->isend(out[i].data(), n, nullptr, &s[i]), Io::done);
          }
          for (int i = 0; i < 50; ++i) {
            from->progress();
            to->progress();
          }
          for (size_t i = 0; i < kMessages; ++i) {
            ASSERT_EQ(to->irecv(in[i].data(), n, nullptr, &r[i]), Io::done);
          }
          for (size_t i = 0; i < kMessages; ++i) {
            size_t bytes = 0;
            ASSERT_EQ(finish(*to, from, r[i], &bytes), Io::done) << to->error().text;
            ASSERT_EQ(finish(*from, to, s[i], &bytes), Io::done) << from->error().text;
            EXPECT_EQ(out[i], in[i]) << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace prunex::transport

// SPDX-License-Identifier: Apache-2.0
// What transport.h promises, asked of every transport.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <deque>
#include <random>

#include "plugin/transport/shm/shm.h"
#include "plugin/transport/socket/socket.h"
#include "tests/transport/pair.h"

namespace prunex::transport {
namespace {

struct Kind {
  const char* name;
  std::unique_ptr<Transport> (*open)();
  size_t holds;  // bytes that are surely under way before the receiver reads
};

std::unique_ptr<Transport> open_socket(int streams) {
  SocketOptions o;
  o.streams = streams;
  auto t = open_socket_transport(o);
  EXPECT_TRUE(t);
  return std::move(*t);
}

std::unique_ptr<Transport> open_shm(size_t ring_bytes) {
  ShmOptions o;
  o.ring_bytes = ring_bytes;
  auto t = open_shm_transport(o);
  EXPECT_TRUE(t);
  return std::move(*t);
}

class Conformance : public testing::TestWithParam<Kind> {
 protected:
  Conformance() : transport_(GetParam().open()) {}
  Pair connect(std::string_view hello = "hi") { return make_pair(*transport_, *transport_, hello); }
  std::unique_ptr<Transport> transport_;
};

INSTANTIATE_TEST_SUITE_P(Transports, Conformance,
                         testing::Values(Kind{"socket_1", [] { return open_socket(1); }, 300'000},
                                         Kind{"socket_4", [] { return open_socket(4); }, 300'000},
                                         Kind{"shm", [] { return open_shm(size_t{1} << 20); },
                                              300'000},
                                         Kind{"shm_4096", [] { return open_shm(4096); }, 300}),
                         [](const auto& i) { return std::string(i.param.name); });

// A long buffer whose pages repeat with `period`.
class Repeated {
 public:
  Repeated(size_t bytes, size_t period) : bytes_(bytes + period) {
    const int fd = memfd_create("repeated", MFD_CLOEXEC);
    void* all =
        mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool ok = fd >= 0 && all != MAP_FAILED && ftruncate(fd, static_cast<off_t>(period)) == 0;
    for (size_t at = 0; ok && at < bytes; at += period) {
      ok = mmap(static_cast<std::byte*>(all) + at, period, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
    }
    close(fd);
    data_ = ok ? static_cast<std::byte*>(all) : nullptr;
  }
  ~Repeated() { munmap(data_, bytes_); }
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
};

// Sends one message and receives it; both ends checked.
void exchange(Connection& from, Connection& to, const std::vector<std::byte>& data) {
  std::vector<std::byte> into(data.size() + 16, std::byte{0xEE});
  Ticket s = 0, r = 0;
  ASSERT_EQ(to.irecv(into.data(), into.size(), nullptr, &r), Io::done) << to.error().text;
  ASSERT_EQ(from.isend(data.data(), data.size(), nullptr, &s), Io::done) << from.error().text;
  size_t bytes = ~size_t{0};
  ASSERT_EQ(finish(to, &from, r, &bytes), Io::done) << to.error().text << from.error().text;
  EXPECT_EQ(bytes, data.size());
  ASSERT_EQ(finish(from, &to, s, &bytes), Io::done) << from.error().text;
  EXPECT_EQ(bytes, data.size());
  EXPECT_TRUE(std::equal(data.begin(), data.end(), into.begin()));
  for (size_t i = data.size(); i < into.size(); ++i) {
    ASSERT_EQ(into[i], std::byte{0xEE}) << "written behind the message, at +" << i - data.size();
  }
}

TEST_P(Conformance, hello_reaches_the_accepting_side) {
  const std::string hello(256, 'x');
  Pair p = connect(hello);
  ASSERT_TRUE(p.a && p.b);
  EXPECT_EQ(p.b->hello(), hello);
  EXPECT_NE(p.a->describe().find("->"), std::string::npos) << p.a->describe();
  Pair q = connect("");
  ASSERT_TRUE(q.b);
  EXPECT_EQ(q.b->hello(), "");
  EXPECT_FALSE(transport_->connect(p.listener->handle(), std::string(257, 'x'), 1));
}

TEST_P(Conformance, handle_is_small_and_survives_padding) {
  auto listener = transport_->listen();
  ASSERT_TRUE(listener);
  std::string handle = (*listener)->handle();
  EXPECT_LE(handle.size(), 128U);
  handle.resize(128, '\0');
  auto connecting = transport_->connect(handle, "padded", 30);
  ASSERT_TRUE(connecting) << connecting.error().text;
  std::unique_ptr<Connection> a, b;
  const Deadline deadline = Deadline::after(kPatience);
  while ((!a || !b) && !deadline.passed()) {
    if (!a) {
      auto r = (*connecting)->step();
      ASSERT_TRUE(r) << r.error().text;
      a = std::move(*r);
    }
    if (!b) {
      auto r = (*listener)->accept();
      ASSERT_TRUE(r) << r.error().text;
      b = std::move(*r);
    }
  }
  ASSERT_TRUE(a && b);
  exchange(*a, *b, pattern(100, 1));
}

TEST_P(Conformance, damaged_handles_are_errors) {
  auto listener = transport_->listen();
  ASSERT_TRUE(listener);
  const std::string handle = (*listener)->handle();
  EXPECT_FALSE(transport_->connect("", "", 1));
  EXPECT_FALSE(transport_->connect(std::string(128, '\0'), "", 1));
  EXPECT_FALSE(transport_->connect(std::string(1000, 'A'), "", 1));
  for (size_t n = 0; n < handle.size(); ++n) {
    EXPECT_FALSE(transport_->connect(handle.substr(0, n), "", 1)) << n;
  }
}

TEST_P(Conformance, sizes) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  for (const size_t n :
       {size_t{0}, size_t{1}, size_t{5}, size_t{0}, size_t{0}, size_t{31}, size_t{32}, size_t{4063},
        size_t{4064}, size_t{4065}, size_t{4096}, size_t{32767}, size_t{65535}, size_t{65536},
        size_t{65537}, size_t{131'073}, size_t{1'000'003}, (size_t{64} << 20) + 1}) {
    exchange(*p.a, *p.b, pattern(n, n));
    exchange(*p.b, *p.a, pattern(n, n + 1));
  }
}

// Posted all at once, so that they travel together.
TEST_P(Conformance, many_in_flight_arrive_in_order) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  for (const bool receives_first : {true, false}) {
    std::vector<std::vector<std::byte>> out, in;
    std::vector<Ticket> s(kMaxInFlight), r(kMaxInFlight);
    for (size_t i = 0; i < kMaxInFlight; ++i) {
      out.push_back(pattern(i % 5 == 0 ? 0 : (i * 7919) % 150'000, i));
      in.emplace_back(200'000);
    }
    const auto post_receives = [&] {
      for (size_t i = 0; i < kMaxInFlight; ++i) {
        ASSERT_EQ(p.b->irecv(in[i].data(), in[i].size(), nullptr, &r[i]), Io::done);
      }
    };
    if (receives_first) {
      post_receives();
    }
    for (size_t i = 0; i < kMaxInFlight; ++i) {
      ASSERT_EQ(p.a->isend(out[i].data(), out[i].size(), nullptr, &s[i]), Io::done);
    }
    for (int i = 0; i < 1000; ++i) {
      p.a->progress();
      p.b->progress();
    }
    if (!receives_first) {
      post_receives();
    }
    // The last receive is not done before the first, whatever the streams do.
    size_t bytes = 0;
    for (size_t i = kMaxInFlight; i-- > 0;) {
      ASSERT_EQ(finish(*p.b, p.a.get(), r[i], &bytes), Io::done) << p.b->error().text;
      EXPECT_EQ(bytes, out[i].size());
      ASSERT_TRUE(std::equal(out[i].begin(), out[i].end(), in[i].begin())) << i;
      ASSERT_EQ(finish(*p.a, p.b.get(), s[i], &bytes), Io::done);
    }
  }
}

TEST_P(Conformance, more_than_64_in_flight_is_again) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  std::vector<std::byte> data(1 << 20), into(1 << 20);
  std::vector<Ticket> s(kMaxInFlight), r(kMaxInFlight);
  Ticket extra = 0;
  for (auto& t : s) {
    ASSERT_EQ(p.a->isend(data.data(), data.size(), nullptr, &t), Io::done);
  }
  EXPECT_EQ(p.a->isend(data.data(), 1, nullptr, &extra), Io::again);
  for (auto& t : r) {
    ASSERT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &t), Io::done);
  }
  EXPECT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &extra), Io::again);
  size_t bytes = 0;
  // The newest answered is enough to make room, though older ones were not asked for yet.
  ASSERT_EQ(finish(*p.a, p.b.get(), s.back(), &bytes), Io::done);
  EXPECT_EQ(p.a->isend(data.data(), 1, nullptr, &extra), Io::done);
  ASSERT_EQ(finish(*p.b, p.a.get(), r.back(), &bytes), Io::done);
  Ticket last = 0;
  EXPECT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &last), Io::done);
  for (size_t i = 0; i + 1 < kMaxInFlight; ++i) {
    ASSERT_EQ(finish(*p.a, p.b.get(), s[i], &bytes), Io::done);
    ASSERT_EQ(finish(*p.b, p.a.get(), r[i], &bytes), Io::done);
  }
  ASSERT_EQ(finish(*p.b, p.a.get(), last, &bytes), Io::done);
  EXPECT_EQ(bytes, 1U);
}

TEST_P(Conformance, stale_tickets_are_recognised) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  std::byte out{1}, in{0};
  Ticket s = 0, r = 0;
  ASSERT_EQ(p.a->isend(&out, 1, nullptr, &s), Io::done);
  ASSERT_EQ(p.b->irecv(&in, 1, nullptr, &r), Io::done);
  EXPECT_NE(s, 0U);
  size_t bytes = 0;
  ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done);
  ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done);
  EXPECT_EQ(p.b->test(r, &bytes), Io::failed);
  EXPECT_EQ(p.b->error().code, Code::invalid_handle);
  EXPECT_EQ(p.a->test(s, &bytes), Io::failed);
  EXPECT_EQ(p.a->test(0, &bytes), Io::failed);
  EXPECT_EQ(p.a->test(~Ticket{0}, &bytes), Io::failed);
  exchange(*p.a, *p.b, pattern(10, 3));  // and the connection lives
  ASSERT_EQ(p.b->irecv(&in, 1, nullptr, &r), Io::done);
  EXPECT_EQ(p.a->test(r, &bytes), Io::failed);  // another connection's, or an old one
}

TEST_P(Conformance, message_longer_than_the_receive_names_both_sizes) {
  for (const size_t n : {size_t{1001}, size_t{300'000}}) {
    Pair p = connect();
    ASSERT_TRUE(p.a && p.b);
    std::vector<std::byte> data(n), into(1000, std::byte{0x55});
    Ticket s = 0, r = 0;
    ASSERT_EQ(p.b->irecv(into.data(), 1000, nullptr, &r), Io::done);
    ASSERT_EQ(p.a->isend(data.data(), data.size(), nullptr, &s), Io::done);
    size_t bytes = 0;
    ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::failed);
    EXPECT_NE(p.b->error().text.find(std::to_string(n)), std::string::npos) << p.b->error().text;
    EXPECT_NE(p.b->error().text.find("1000"), std::string::npos) << p.b->error().text;
    EXPECT_EQ(into[999], std::byte{0x55});
    EXPECT_EQ(p.b->irecv(into.data(), 1000, nullptr, &r), Io::failed);
    EXPECT_EQ(p.b->isend(data.data(), 1, nullptr, &s), Io::failed);
    EXPECT_EQ(p.b->progress(), Io::failed);
  }
}

TEST_P(Conformance, both_directions_at_once) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  const auto out_a = pattern(8'000'001, 1), out_b = pattern(7'000'003, 2);
  std::vector<std::byte> in_a(out_b.size()), in_b(out_a.size());
  Ticket sa = 0, sb = 0, ra = 0, rb = 0;
  ASSERT_EQ(p.a->isend(out_a.data(), out_a.size(), nullptr, &sa), Io::done);
  ASSERT_EQ(p.b->isend(out_b.data(), out_b.size(), nullptr, &sb), Io::done);
  ASSERT_EQ(p.a->irecv(in_a.data(), in_a.size(), nullptr, &ra), Io::done);
  ASSERT_EQ(p.b->irecv(in_b.data(), in_b.size(), nullptr, &rb), Io::done);
  size_t n = 0;
  EXPECT_EQ(finish(*p.a, p.b.get(), ra, &n), Io::done);
  EXPECT_EQ(finish(*p.b, p.a.get(), rb, &n), Io::done);
  EXPECT_EQ(finish(*p.a, p.b.get(), sa, &n), Io::done);
  EXPECT_EQ(finish(*p.b, p.a.get(), sb, &n), Io::done);
  EXPECT_EQ(in_a, out_b);
  EXPECT_EQ(in_b, out_a);
}

TEST_P(Conformance, several_connections_on_one_listener) {
  constexpr size_t kConnections = 8;
  auto listener = transport_->listen();
  ASSERT_TRUE(listener);
  std::vector<std::unique_ptr<Connecting>> making;
  for (size_t i = 0; i < kConnections; ++i) {
    auto c = transport_->connect((*listener)->handle(), "number " + std::to_string(i), 30);
    ASSERT_TRUE(c);
    making.push_back(std::move(*c));
  }
  std::vector<std::unique_ptr<Connection>> from(kConnections), to(kConnections);
  size_t open = 0;
  const Deadline deadline = Deadline::after(kPatience);
  while (open < 2 * kConnections && !deadline.passed()) {
    for (size_t i = 0; i < kConnections; ++i) {
      if (!from[i]) {
        auto r = making[i]->step();
        ASSERT_TRUE(r) << r.error().text;
        from[i] = std::move(*r);
        open += from[i] ? 1 : 0;
      }
    }
    auto r = (*listener)->accept();
    ASSERT_TRUE(r) << r.error().text;
    if (*r) {
      const size_t i = std::stoul(std::string((*r)->hello().substr(7)));
      ASSERT_LT(i, kConnections);
      ASSERT_FALSE(to[i]);
      to[i] = std::move(*r);
      ++open;
    }
  }
  ASSERT_EQ(open, 2 * kConnections);
  listener->reset();  // established connections do not need it
  for (size_t i = 0; i < kConnections; ++i) {
    exchange(*from[i], *to[i], pattern(100'000 + i, i));
  }
}

TEST_P(Conformance, what_was_done_arrives_after_close) {
  for (const size_t n : {size_t{0}, size_t{10}, GetParam().holds / 3}) {
    for (const bool unread : {false, true}) {
      Pair p = connect();
      ASSERT_TRUE(p.a && p.b);
      std::vector<Ticket> tickets(3);
      const auto data = pattern(n, n);
      if (unread) {  // the closing end leaves a message of its peer unread
        Ticket t = 0;
        ASSERT_EQ(p.b->isend(data.data(), data.size(), nullptr, &t), Io::done);
        p.b->progress();
      }
      for (Ticket& t : tickets) {
        ASSERT_EQ(p.a->isend(data.data(), data.size(), nullptr, &t), Io::done);
        size_t bytes = 0;
        ASSERT_EQ(finish(*p.a, p.b.get(), t, &bytes), Io::done) << p.a->error().text;
      }
      p.a.reset();
      std::vector<std::byte> into(n + 1);
      size_t bytes = 0;
      Ticket r = 0;
      for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(p.b->irecv(into.data(), into.size(), nullptr, &r), Io::done) << p.b->error().text;
        ASSERT_EQ(finish(*p.b, nullptr, r, &bytes), Io::done) << p.b->error().text;
        ASSERT_EQ(bytes, n);
        ASSERT_TRUE(std::equal(data.begin(), data.end(), into.begin()));
      }
      const Io posted = p.b->irecv(into.data(), into.size(), nullptr, &r);
      if (posted == Io::done) {
        ASSERT_EQ(finish(*p.b, nullptr, r, &bytes), Io::failed);
      }
      EXPECT_EQ(p.b->error().code, Code::peer_lost) << p.b->error().text;
      const std::string peer = p.b->describe().substr(p.b->describe().find("-> ") + 3);
      EXPECT_NE(p.b->error().text.find(peer.substr(0, peer.find(' '))), std::string::npos)
          << p.b->error().text;
    }
  }
}

TEST_P(Conformance, a_posted_receive_of_a_closed_peer_fails) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  std::byte into{};
  Ticket r = 0;
  size_t bytes = 0;
  ASSERT_EQ(p.b->irecv(&into, 1, nullptr, &r), Io::done);
  ASSERT_EQ(p.b->test(r, &bytes), Io::again);
  p.a.reset();
  EXPECT_EQ(finish(*p.b, nullptr, r, &bytes), Io::failed);
  EXPECT_EQ(p.b->error().code, Code::peer_lost) << p.b->error().text;
}

// A process that is killed while it sends, and one that is killed while it owes us a message.
TEST_P(Conformance, killed_peer_is_noticed) {
  for (const bool in_the_middle : {true, false}) {
    auto listener = transport_->listen();
    ASSERT_TRUE(listener);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto connecting = transport_->connect((*listener)->handle(), "victim", 30);
      std::unique_ptr<Connection> c;
      while (connecting && !c) {
        auto r = (*connecting)->step();
        if (!r) {
          _exit(1);
        }
        c = std::move(*r);
      }
      std::vector<std::byte> data(in_the_middle ? size_t{64} << 20 : 1);
      Ticket t = 0;
      (void)c->isend(data.data(), data.size(), nullptr, &t);
      for (;;) {
        (void)c->progress();
      }
    }
    std::unique_ptr<Connection> c;
    const Deadline deadline = Deadline::after(kPatience);
    while (!c && !deadline.passed()) {
      auto r = (*listener)->accept();
      ASSERT_TRUE(r) << r.error().text;
      c = std::move(*r);
    }
    ASSERT_TRUE(c);
    std::vector<std::byte> into(size_t{64} << 20);
    Ticket first = 0, second = 0;
    size_t bytes = 0;
    ASSERT_EQ(c->irecv(into.data(), into.size(), nullptr, &first), Io::done);
    if (!in_the_middle) {
      ASSERT_EQ(finish(*c, nullptr, first, &bytes), Io::done);
      ASSERT_EQ(c->irecv(into.data(), into.size(), nullptr, &second), Io::done);
    } else {
      for (int i = 0; i < 20; ++i) {
        ASSERT_NE(c->test(first, &bytes), Io::failed);
      }
      second = first;
    }
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    // A sleeper is woken by it.
    std::vector<pollfd> fds;
    Io r = Io::again;
    while ((r = c->test(second, &bytes)) == Io::again && !deadline.passed()) {
      fds.clear();
      c->poll_fds(fds);
      ASSERT_FALSE(fds.empty());
      ASSERT_GT(poll(fds.data(), fds.size(), 60'000), 0);
    }
    EXPECT_EQ(r, Io::failed);
    EXPECT_EQ(c->error().code, Code::peer_lost) << c->error().text;
    EXPECT_FALSE(c->error().text.empty());
  }
}

TEST_P(Conformance, a_sleeper_wakes_for_every_event) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  constexpr int kRounds = 300;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  const auto play = [&](Connection& c, bool first) {
    std::vector<std::byte> data(3'000'000);
    std::vector<pollfd> fds;
    for (int i = 0; i < kRounds; ++i) {
      const size_t n = i % 50 == 49 ? data.size() : static_cast<size_t>(i) * 37 % 5000;
      for (const bool sends : {first, !first}) {
        Ticket t = 0;
        const Io posted = sends ? c.isend(data.data(), n, nullptr, &t)
                                : c.irecv(data.data(), data.size(), nullptr, &t);
        if (posted != Io::done) {
          return false;
        }
        size_t bytes = 0;
        for (;;) {
          const Io r = c.test(t, &bytes);
          if (r == Io::done) {
            break;
          }
          fds.clear();
          c.poll_fds(fds);
          if (r == Io::failed || poll(fds.data(), fds.size(), 30'000) <= 0) {
            return false;  // nothing for 30 s: asleep over something
          }
        }
        if (bytes != n) {
          return false;
        }
      }
    }
    return true;
  };
  if (child == 0) {
    _exit(play(*p.a, true) ? 0 : 1);
  }
  EXPECT_TRUE(play(*p.b, false)) << p.b->error().text;
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// More than 2 GiB in one message. Both buffers are few pages mapped again and again.
TEST_P(Conformance, more_than_two_gibibytes) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer marks every byte: minutes, and there is no second thread";
#endif
  constexpr size_t kBytes = (size_t{1} << 31) + 4097;
  constexpr size_t kPeriod = 1021 * 4096;  // no power of two: a wrong offset shows
  Repeated out(kBytes, kPeriod), in(kBytes, kPeriod);
  ASSERT_TRUE(out.data() != nullptr && in.data() != nullptr);
  const auto data = pattern(kPeriod, 5);
  memcpy(out.data(), data.data(), kPeriod);
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  Ticket s = 0, r = 0;
  ASSERT_EQ(p.a->isend(out.data(), kBytes, nullptr, &s), Io::done);
  ASSERT_EQ(p.b->irecv(in.data(), kBytes, nullptr, &r), Io::done);
  size_t bytes = 0;
  ASSERT_EQ(finish(*p.b, p.a.get(), r, &bytes), Io::done) << p.b->error().text;
  EXPECT_EQ(bytes, kBytes);
  ASSERT_EQ(finish(*p.a, p.b.get(), s, &bytes), Io::done);
  EXPECT_EQ(memcmp(in.data(), data.data(), kPeriod), 0);
}

TEST_P(Conformance, ten_thousand_messages_of_random_sizes) {
  Pair p = connect();
  ASSERT_TRUE(p.a && p.b);
  std::mt19937_64 random(42);
  constexpr size_t kMessages = 10'000, kLongest = 70'000;
  const auto source = pattern(kLongest + 256, 9);
  struct Flight {
    Ticket ticket;
    size_t bytes, offset;
    std::vector<std::byte> into;
  };
  const auto size_of = [&] {
    const uint64_t x = random();
    return static_cast<size_t>(x % 4 == 0 ? (x >> 8) % kLongest : (x >> 8) % 300);
  };
  std::deque<Flight> sends, receives;
  std::deque<std::pair<size_t, size_t>> expected;
  size_t sent = 0, received = 0;
  const Deadline deadline = Deadline::after(4 * kPatience);
  while (received < kMessages && !deadline.passed()) {
    if (sent < kMessages && random() % 2 == 0) {
      Flight f{0, size_of(), sent % 256, {}};
      if (p.a->isend(source.data() + f.offset, f.bytes, nullptr, &f.ticket) == Io::done) {
        expected.emplace_back(f.bytes, f.offset);
        sends.push_back(std::move(f));
        ++sent;
      }
    }
    if (random() % 2 == 0 && received + receives.size() < kMessages) {
      Flight f{0, 0, 0, std::vector<std::byte>(kLongest)};
      if (p.b->irecv(f.into.data(), f.into.size(), nullptr, &f.ticket) == Io::done) {
        receives.push_back(std::move(f));
      }
    }
    size_t bytes = 0;
    if (!sends.empty() && random() % 2 == 0) {
      const Io r = p.a->test(sends.front().ticket, &bytes);
      ASSERT_NE(r, Io::failed) << p.a->error().text;
      if (r == Io::done) {
        sends.pop_front();
      }
    }
    if (!receives.empty()) {
      const Io r = p.b->test(receives.front().ticket, &bytes);
      ASSERT_NE(r, Io::failed) << p.b->error().text;
      if (r == Io::done) {
        ASSERT_EQ(bytes, expected.front().first) << received;
        ASSERT_EQ(
            memcmp(receives.front().into.data(), source.data() + expected.front().second, bytes), 0)
            << received;
        expected.pop_front();
        receives.pop_front();
        ++received;
      }
    }
  }
  EXPECT_EQ(received, kMessages);
}

}  // namespace
}  // namespace prunex::transport

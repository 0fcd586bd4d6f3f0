// SPDX-License-Identifier: Apache-2.0
// What transport.h promises, asked of every transport: ends, deaths, sleepers, long and many
// messages.
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <deque>
#include <random>

#include "tests/transport/conformance.h"

namespace prunex::transport {
namespace {

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
  if (!GetParam().forks) {
    GTEST_SKIP() << "one process only";
  }
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
  if (!GetParam().forks) {
    GTEST_SKIP() << "one process only";
  }
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
#ifdef PRUNEX_SANITIZED_THREAD
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

// SPDX-License-Identifier: Apache-2.0
// The verbs transport on real devices of the kernel's, as scripts/soft-roce.sh has them: rxe0 and
// rxe1. Ends in two processes have a transport each.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "tests/transport/roce.h"

namespace prunex::transport {
namespace {

constexpr double kStillS = 60;   // without any progress: a hang
constexpr double kNoticeS = 20;  // until a peer's death is an error

// Messages both ways; sizes and bytes follow from the seeds, so that each end knows the other's.
class Traffic {
 public:
  static constexpr size_t kWindow = 16;
  Traffic(Transport& transport, Connection& link, size_t longest, uint64_t mine, uint64_t theirs)
      : link_(link),
        longest_(longest),
        mine_(mine),
        theirs_(theirs),
        out_(pattern(longest + 256, mine)),
        expected_(pattern(longest + 256, theirs)),
        in_(kWindow * longest) {
    auto source = transport.register_relaxed(out_.data(), out_.size()),
         target = transport.register_relaxed(in_.data(), in_.size());
    if (source && target) {
      source_ = *std::move(source);
      target_ = *std::move(target);
    }
  }

  // Until n have gone and come in all; what is wrong, or "".
  std::string run_to(size_t n) {
    Deadline still = Deadline::after(kStillS);
    while (sent_ < n || received_ < n) {
      const size_t before = sent_ + received_;
      if (!step(n)) {
        return wrong_.empty() ? link_.error().text : wrong_;
      }
      if (sent_ + received_ != before) {
        still = Deadline::after(kStillS);
      } else if (still.passed()) {
        return strf("nothing moves after %zu sent and %zu received", sent_, received_);
      }
    }
    return {};
  }
  [[nodiscard]] size_t received() const { return received_; }
  [[nodiscard]] bool registered() const { return target_ != nullptr; }

 private:
  static size_t size_of_message(uint64_t seed, size_t i, size_t longest) {
    const uint64_t x = (i + 1) * 6364136223846793005U + seed * 1442695040888963407U;
    const size_t most = i % 8 == 0 ? longest : std::min<size_t>(longest, 300);
    return (x >> 33) % (most + 1);
  }
  bool step(size_t n) {
    for (; posted_r_ < std::min(n, received_ + kWindow); ++posted_r_) {
      if (link_.irecv(in_.data() + posted_r_ % kWindow * longest_, longest_, target_.get(),
                      &receives_[posted_r_ % kWindow]) != Io::done) {
        return false;
      }
    }
    for (; posted_s_ < std::min(n, sent_ + kWindow); ++posted_s_) {
      const Io io =
          link_.isend(out_.data() + posted_s_ % 256, size_of_message(mine_, posted_s_, longest_),
                      source_.get(), &sends_[posted_s_ % kWindow]);
      if (io != Io::done) {
        if (io == Io::failed) {
          return false;
        }
        break;
      }
    }
    size_t bytes = 0;
    if (received_ < posted_r_) {
      const Io io = link_.test(receives_[received_ % kWindow], &bytes);
      if (io == Io::failed) {
        return false;
      }
      if (io == Io::done && !check(bytes)) {
        return false;
      }
    }
    if (sent_ < posted_s_) {
      const Io io = link_.test(sends_[sent_ % kWindow], &bytes);
      sent_ += io == Io::done ? 1 : 0;
      return io != Io::failed;
    }
    return true;
  }
  bool check(size_t bytes) {
    const size_t want = size_of_message(theirs_, received_, longest_);
    std::byte* got = in_.data() + received_ % kWindow * longest_;
    if (bytes != want || std::memcmp(got, expected_.data() + received_ % 256, want) != 0) {
      wrong_ = strf("message %zu: %zu bytes for %zu, or other ones", received_, bytes, want);
      return false;
    }
    std::memset(got, 0xEE, want);
    ++received_;
    return true;
  }

  Connection& link_;
  size_t longest_;
  uint64_t mine_, theirs_;
  std::vector<std::byte> out_, expected_, in_;
  std::unique_ptr<Region> source_, target_;
  std::array<Ticket, kWindow> sends_{}, receives_{};
  size_t posted_s_ = 0, posted_r_ = 0, sent_ = 0, received_ = 0;
  std::string wrong_;
};

// A process with the connecting end. Made before this process opens a device, which does not
// survive a fork; it starts when it is told where to connect.
class Peer {
 public:
  using Body = std::function<std::string(Transport&, Connection&)>;
  Peer(size_t rail, const VerbsOptions& options, std::string hello, const Body& body) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    child_ = fork();
    if (child_ == 0) {
      ::close(ends[1]);
      alarm(280);
      const std::string said = live(ends[0], rail, options, hello, body);
      if (!said.empty()) {
        (void)std::fprintf(stderr, "%s: %s\n", hello.c_str(), said.c_str());
      }
      _exit(said.empty() ? 0 : 1);
    }
    ::close(ends[0]);
    to_ = ends[1];
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    if (child_ > 0) {
      kill();
    }
  }
  void start(const std::string& handle) {
    EXPECT_EQ(write(to_, handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
    ::close(to_);
  }
  void kill() {
    ::kill(child_, SIGKILL);
    (void)wait();
  }
  int wait() {
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = -1;
    return status;
  }

 private:
  static std::string live(int from, size_t rail, VerbsOptions options, const std::string& hello,
                          const Body& body) {
    char buffer[256];  // no end of file tells: the next child holds the other end, too
    const ssize_t n = read(from, buffer, sizeof buffer);
    const std::string handle(buffer, static_cast<size_t>(std::max<ssize_t>(n, 0)));
    options.rail = rail;
    auto t = open_verbs_transport(options);
    if (!t) {
      return t.error().text;
    }
    auto connecting = (*t)->connect(handle, hello, 60);
    if (!connecting) {
      return connecting.error().text;
    }
    while (true) {
      auto link = (*connecting)->step();
      if (!link) {
        return link.error().text;
      }
      if (*link != nullptr) {
        return body(**t, **link);
      }
    }
  }
  pid_t child_ = -1;
  int to_ = -1;
};

std::unique_ptr<Connection> accept_one(Listener& listener) {
  for (const Deadline deadline = Deadline::after(kPatience); !deadline.passed();) {
    auto link = listener.accept();
    EXPECT_TRUE(link) << link.error().text;
    if (!link || *link != nullptr) {
      return link ? *std::move(link) : nullptr;
    }
  }
  ADD_FAILURE() << "nobody connects";
  return nullptr;
}

VerbsOptions lanes(size_t pairs) {
  VerbsOptions o;
  o.queue_pairs = pairs;
  o.split_from = 5000;
  o.first_sequence = 0xFFFFFFFF - 500;
  return o;
}

// n messages each way between two processes.
void two_processes(size_t rail, const VerbsOptions& options, size_t n, size_t longest) {
  Peer peer(rail, options, "peer", [=](Transport& t, Connection& link) {
    return Traffic(t, link, longest, 1, 2).run_to(n);
  });
  const auto t = open_on(0, options);
  ASSERT_TRUE(t);
  auto listener = t->listen();
  ASSERT_TRUE(listener);
  peer.start((*listener)->handle());
  const auto link = accept_one(**listener);
  ASSERT_TRUE(link);
  Traffic traffic(*t, *link, longest, 2, 1);
  ASSERT_TRUE(traffic.registered());
  EXPECT_EQ(traffic.run_to(n), "");
  EXPECT_EQ(peer.wait(), 0);
}

TEST(Reports, B14_no_announcement_overtakes_data) {
  NEED_DEVICES();
  two_processes(1, lanes(4), long_ones() ? 100'000 : 10'000, 12'000);
}

TEST(Reports, B20_long_messages) {
  NEED_DEVICES();
  const size_t bytes = long_ones() ? (size_t{1} << 31) + 4097 : (size_t{64} << 20) + 1;
  const auto t = open_on(0), u = open_on(1);
  ASSERT_TRUE(t && u);
  Pair p = make_pair(*t, *u);
  ASSERT_TRUE(p.a && p.b);
  const auto out = pattern(bytes, 20);
  std::vector<std::byte> into(bytes + 16, std::byte{0xEE});
  auto source = t->register_relaxed(const_cast<std::byte*>(out.data()), bytes),
       target = u->register_relaxed(into.data(), into.size());
  ASSERT_TRUE(source && target);
  Ticket s = 0, r = 0;
  size_t got = 0;
  ASSERT_EQ(p.b->irecv(into.data(), into.size(), target->get(), &r), Io::done);
  ASSERT_EQ(p.a->isend(out.data(), bytes, source->get(), &s), Io::done);
  ASSERT_EQ(finish(*p.b, p.a.get(), r, &got), Io::done) << p.b->error().text;
  EXPECT_EQ(got, bytes);
  ASSERT_EQ(finish(*p.a, p.b.get(), s, &got), Io::done) << p.a->error().text;
  EXPECT_EQ(std::memcmp(into.data(), out.data(), bytes), 0);
  EXPECT_EQ(into[bytes], std::byte{0xEE});
}

TEST(Reports, B22_two_processes_on_one_device) {
  NEED_DEVICES();
  for (const size_t pairs : {1, 4}) {
    two_processes(0, lanes(pairs), 10'000, 300);
  }
}

TEST(Reports, G14_four_queue_pairs_end) {
  NEED_DEVICES();
  two_processes(1, lanes(4), 500, size_t{256} << 10);
}

// Soft-RoCE takes a retry count of 7 as for ever: the device itself never gives the peer up.
TEST(Roce, a_killed_peer_is_noticed_and_others_go_on) {
  NEED_DEVICES();
  constexpr size_t kLongest = 100'000, kMany = 1'000'000'000;
  Peer victim(1, {}, "victim", [](Transport& t, Connection& link) {
    return Traffic(t, link, kLongest, 1, 2).run_to(kMany);
  });
  Peer well(1, {}, "well", [](Transport& t, Connection& link) {
    return Traffic(t, link, kLongest, 1, 2).run_to(300);
  });
  const auto t = open_on(0);
  ASSERT_TRUE(t);
  auto listener = t->listen();
  ASSERT_TRUE(listener);
  victim.start((*listener)->handle());
  const auto first = accept_one(**listener);
  well.start((*listener)->handle());
  const auto second = accept_one(**listener);
  ASSERT_TRUE(first && second);
  ASSERT_EQ(first->hello(), "victim");
  ASSERT_EQ(second->hello(), "well");
  Traffic doomed(*t, *first, kLongest, 2, 1), other(*t, *second, kLongest, 2, 1);
  ASSERT_EQ(doomed.run_to(100), "");
  ASSERT_EQ(other.run_to(100), "");
  victim.kill();
  const int64_t begin = now_ns();
  EXPECT_NE(doomed.run_to(kMany), "");
  EXPECT_LT(static_cast<double>(now_ns() - begin) * 1e-9, kNoticeS);  // the deadline, no speed
  EXPECT_EQ(first->error().code, Code::peer_lost) << first->error().text;
  EXPECT_NE(first->error().text.find("rxe"), std::string::npos) << first->error().text;
  EXPECT_EQ(other.run_to(300), "");
  EXPECT_EQ(well.wait(), 0);
}

}  // namespace
}  // namespace prunex::transport

// SPDX-License-Identifier: Apache-2.0
// Long runs of the NCCL plugin's tables: one process that stays, and others that come, exchange
// messages of random sizes and kinds with it, and leave: after the last message, by being killed,
// or because this process closes on them. Every byte is checked; descriptors, threads and memory of
// the process that stays must not grow. Exit 1 at any fault.
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/soak_link.h"
#include "bench/soak_process.h"
#include "plugin/base/clock.h"
#include "plugin/base/config.h"
#include "plugin/base/fd.h"
#include "tools/library_probe.h"

namespace {

using namespace prunex;        // NOLINT
using namespace prunex::soak;  // NOLINT

struct Peer {
  pid_t pid = -1;
  Fd control;
  uint64_t seed = 0, messages = 0, end_after = 0;
  int links = 1, link_index = 0;
  End end = End::after_the_last;
  std::unique_ptr<Link> link;
  bool connected = false, over = false, killed = false, said = false;
  Deadline patience;
};

class Soak {
 public:
  Soak(const Options& options, const std::string& self) : o_(options), self_(self) {}

  int run() {
    auto net = tools::open_net(o_.plugin, o_.api);
    if (!net) {
      return fault(net.error().text);
    }
    net_ = std::move(*net);
    library_ = std::make_unique<tools::PluginLibrary>(net_.library);
    Dice dice(o_.seed);
    const Deadline deadline = Deadline::after(o_.seconds);
    const int64_t begin = now_ns();
    while (!deadline.passed() && faults_ == 0) {
      episode(dice);
      ++episodes_;
      watch();
    }
    judge();
    summary(static_cast<double>(now_ns() - begin) * 1e-9);
    return faults_ == 0 ? 0 : 1;
  }

 private:
  int fault(const std::string& text) {
    std::fprintf(stderr, "soak: FAULT: %s\n", text.c_str());
    ++faults_;
    return 1;
  }

  bool start(Peer& p, Dice& dice) {
    p.seed = dice.next();
    p.messages = 1 + dice.below(120);
    p.end = static_cast<End>(dice.one_in(2) ? 0 : 1 + dice.below(3));
    p.end_after = dice.below(p.messages);
    p.links = p.end == End::after_the_last ? 1 + static_cast<int>(dice.below(3)) : 1;
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
      fault("socketpair");
      return false;
    }
    p.control = Fd(ends[0]);
    const Fd theirs(ends[1]);
    std::vector<std::string> words = {self_,
                                      "--plugin",
                                      net_.path,
                                      "--api",
                                      std::to_string(o_.api),
                                      "--seed",
                                      std::to_string(p.seed),
                                      "--child-fd",
                                      "3",
                                      "--child-links",
                                      std::to_string(p.links),
                                      "--child-messages",
                                      std::to_string(p.messages)};
    std::vector<char*> argv;
    for (std::string& word : words) {
      argv.push_back(word.data());
    }
    argv.push_back(nullptr);
    p.pid = ::fork();
    if (p.pid == 0) {
      if (::dup2(theirs.get(), 3) == 3) {
        ::closefrom(4);
        ::execv(self_.c_str(), argv.data());
      }
      ::_exit(127);
    }
    p.patience = Deadline::after(kPatience);
    return p.pid > 0;
  }

  // The next of a peer's links, up to knowing where to connect.
  bool begin_link(Peer& p) {
    p.link = std::make_unique<Link>(
        *net_.api, *library_, mix(p.seed, static_cast<uint64_t>(p.link_index)), 0, p.messages);
    p.connected = p.said = false;
    std::string handle;
    if (auto listening = p.link->listen(&handle); !listening) {
      fault(listening.error().text);
      return false;
    }
    const std::string theirs = give(p.control.get(), handle) ? take(p.control.get(), kHandle) : "";
    if (theirs.empty()) {
      fault("a peer did not start");
      return false;
    }
    p.link->aim(theirs);
    if (p.end == End::peer_dies_connecting) {
      kill_peer(p);
      p.patience = Deadline::after(2);  // may be noticed; if not, everything is given up
    }
    return true;
  }

  void kill_peer(Peer& p) {
    ::kill(p.pid, SIGKILL);
    p.killed = true;
  }

  // One look at one peer.
  bool drive(Peer& p) {
    Result<bool> moved = p.link->done() ? false : p.connected ? p.link->step() : p.link->connect();
    if (!moved) {
      if (p.link->counts().wrong > 0 || !p.killed) {
        fault(moved.error().text + strf(" (%s, seed %llu)", kEndNames[static_cast<int>(p.end)],
                                        static_cast<unsigned long long>(p.seed)));
      }
      noticed_ += p.killed ? 1 : 0;
      p.over = true;
      return true;
    }
    p.connected = p.connected || *moved;
    if (p.connected && !p.killed && p.link->received() >= p.end_after) {
      if (p.end == End::peer_is_killed) {
        kill_peer(p);
      } else if (p.end == End::we_close) {
        p.over = true;
        return true;
      }
    }
    if (p.link->done() && finish_link(p)) {
      return true;
    }
    if (*moved) {
      p.patience = Deadline::after(p.killed ? 20 : kPatience);
    } else if (p.patience.passed()) {
      if (p.end != End::peer_dies_connecting) {
        fault(strf("nothing moves (%s, seed %llu)", kEndNames[static_cast<int>(p.end)],
                   static_cast<unsigned long long>(p.seed)));
      }
      p.over = true;
      return true;
    }
    return *moved;
  }

  // Both have everything: on to the next link, or the end.
  bool finish_link(Peer& p) {
    if (p.killed) {
      p.over = true;
      return true;
    }
    if (!p.said) {
      p.said = true;
      (void)give(p.control.get(), "+");
    }
    pollfd ready{p.control.get(), POLLIN, 0};
    if (::poll(&ready, 1, 0) <= 0) {
      return false;
    }
    if (take(p.control.get(), 1) != "+") {
      fault("a peer ended early");
      p.over = true;
      return true;
    }
    add(p);
    p.link.reset();
    p.over = ++p.link_index >= p.links || !begin_link(p);
    return true;
  }

  void add(const Peer& p) {
    total_.messages += p.link->counts().messages;
    total_.bytes += p.link->counts().bytes;
    total_.wrong += p.link->counts().wrong;
    for (size_t i = 0; i < kKinds; ++i) {
      total_.sent[i] += p.link->counts().sent[i];
    }
    ++links_;
  }

  void episode(Dice& dice) {
    if (const int r = net_.api->init(dice.next(), quiet_log); r != 0) {
      fault(net_error(*net_.api, "init", r).text);
      return;
    }
    std::vector<Peer> peers(1 + dice.below(static_cast<uint64_t>(o_.peers)));
    for (Peer& p : peers) {
      p.over = !start(p, dice) || !begin_link(p);
      ++ends_[static_cast<size_t>(p.end)];
    }
    for (size_t left = peers.size(); left > 0;) {
      bool moved = false;
      left = 0;
      for (Peer& p : peers) {
        moved = (!p.over && drive(p)) || moved;
        left += p.over ? 0 : 1;
      }
      if (!moved) {
        ::sched_yield();
      }
    }
    for (Peer& p : peers) {
      if (p.link != nullptr) {
        add(p);
        first_.descriptors += net_.api->version() < 11 && p.link->abandoned() ? 1 : 0;
        p.link.reset();
      }
      p.control.reset();  // whoever waits for a word of ours hears that there is none
    }
    (void)net_.api->finalize();
    for (Peer& p : peers) {
      collect(p);
    }
  }

  void collect(Peer& p) {
    if (p.pid <= 0) {
      return;
    }
    const Deadline deadline = Deadline::after(kPatience);
    int status = 0;
    while (::waitpid(p.pid, &status, WNOHANG) == 0) {
      if (deadline.passed()) {
        fault(strf("a peer does not end (%s, seed %llu)", kEndNames[static_cast<int>(p.end)],
                   static_cast<unsigned long long>(p.seed)));
        ::kill(p.pid, SIGKILL);
        ::waitpid(p.pid, &status, 0);
        return;
      }
      ::poll(nullptr, 0, 1);
    }
    const bool fine =
        p.killed ? WIFSIGNALED(status)
                 : WIFEXITED(status) && (WEXITSTATUS(status) == 0 ||
                                         (p.end == End::we_close && WEXITSTATUS(status) == 3));
    if (!fine && faults_ == 0) {
      fault(strf("a peer ended with status %#x (%s, seed %llu)", static_cast<unsigned>(status),
                 kEndNames[static_cast<int>(p.end)], static_cast<unsigned long long>(p.seed)));
    }
  }

  void watch() {
    const State s = state_now();
    history_.push_back(s);
    if (history_.size() == 1) {
      first_.descriptors = s.descriptors;
      first_.threads = s.threads;
      return;
    }
    // After the first episode everything that stays is there.
    if (s.descriptors > first_.descriptors || s.threads > first_.threads) {
      fault(strf("descriptors %d, threads %d after episode %llu; %d and %d after the first",
                 s.descriptors, s.threads, static_cast<unsigned long long>(episodes_),
                 first_.descriptors, first_.threads));
    }
    if (history_.size() >= 4096) {  // every other one is enough of a long run
      for (size_t i = 0; i < history_.size() / 2; ++i) {
        history_[i] = history_[2 * i];
      }
      history_.resize(history_.size() / 2);
    }
  }

  // Memory of the last quarter against the second.
  void judge() {
    const size_t quarter = history_.size() / 4;
    if (quarter < 2) {
      return;
    }
    const auto most = [&](size_t from, size_t to) {
      long rss = 0;
      for (size_t i = from; i < to; ++i) {
        rss = std::max(rss, history_[i].rss_kib);
      }
      return rss;
    };
    early_ = most(quarter, 2 * quarter);
    late_ = most(history_.size() - quarter, history_.size());
    if (late_ > early_ + kMemoryNoiseKib) {
      fault(strf("memory grows: %ld KiB early, %ld KiB late", early_, late_));
    }
  }

  void summary(double seconds) {
    std::printf(
        "soak: %.0f s, seed %llu, v%d: %llu episodes, %llu connections, %llu messages "
        "(%.2f GB) checked, %llu wrong\n",
        seconds, static_cast<unsigned long long>(o_.seed), net_.api->version(),
        static_cast<unsigned long long>(episodes_), static_cast<unsigned long long>(links_),
        static_cast<unsigned long long>(total_.messages), static_cast<double>(total_.bytes) * 1e-9,
        static_cast<unsigned long long>(total_.wrong));
    std::printf("soak: sent");
    for (size_t i = 0; i < kKinds; ++i) {
      std::printf("%s %s %llu", i == 0 ? "" : ",", kKindNames[i],
                  static_cast<unsigned long long>(total_.sent[i]));
    }
    prunex_net_stats_t s;
    if (library_->stats(&s)) {
      std::printf("; travelled raw %llu, zero-block %llu, masked %llu, violated %llu",
                  static_cast<unsigned long long>(s.sent_raw.messages),
                  static_cast<unsigned long long>(s.sent_zero_block.messages),
                  static_cast<unsigned long long>(s.sent_masked.messages),
                  static_cast<unsigned long long>(s.violated));
    }
    std::printf("\nsoak: ends:");
    for (size_t i = 0; i < ends_.size(); ++i) {
      std::printf("%s %s %llu", i == 0 ? "" : ",", kEndNames[i],
                  static_cast<unsigned long long>(ends_[i]));
    }
    const State last = history_.empty() ? State{} : history_.back();
    std::printf(
        "; %llu deaths noticed\nsoak: descriptors %d -> %d, threads %d -> %d, memory %ld -> "
        "%ld KiB (second and last quarter)\nsoak: %s\n",
        static_cast<unsigned long long>(noticed_), first_.descriptors, last.descriptors,
        first_.threads, last.threads, early_, late_, faults_ == 0 ? "passed" : "FAILED");
  }

  const Options& o_;
  std::string self_;
  tools::OpenedNet net_;
  std::unique_ptr<tools::PluginLibrary> library_;
  Counts total_;
  std::array<uint64_t, 4> ends_{};
  uint64_t episodes_ = 0, links_ = 0, noticed_ = 0, faults_ = 0;
  std::vector<State> history_;
  State first_;
  long early_ = 0, late_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{"Random messages, deaths and reconnects over the NCCL plugin's tables"};
  app.add_option("--seconds", o.seconds)->check(CLI::Range(1.0, 1e7))->capture_default_str();
  app.add_option("--seed", o.seed, "0: of the clock");
  app.add_option("--api", o.api, "version of the table, 0: the newest")->capture_default_str();
  app.add_option("--peers", o.peers, "at most at a time, 1 to 16")->check(CLI::Range(1, 16));
  app.add_option("--plugin", o.plugin, "libnccl-net-prunex.so, as prunex info finds it");
  app.add_option("--child-fd", o.child_fd)->group("");
  app.add_option("--child-links", o.child_links)->group("");
  app.add_option("--child-messages", o.child_messages)->group("");
  CLI11_PARSE(app, argc, argv);
  if (o.child_fd >= 0) {
    return run_child(o);
  }
  if (o.plugin.empty()) {
    using tools::SearchOrder;
    const Environment environment = process_environment();
    o.plugin =
        tools::probe_library("libnccl-net-prunex.so", {}, environment, SearchOrder::own_first).path;
  }
  if (o.seed == 0) {
    o.seed = static_cast<uint64_t>(now_ns()) % 1'000'000'007;
  }
  char self[PATH_MAX] = {};
  if (::readlink("/proc/self/exe", self, sizeof self - 1) <= 0) {
    return 1;
  }
  return Soak(o, self).run();
}

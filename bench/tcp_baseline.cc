// SPDX-License-Identifier: Apache-2.0
// What plain TCP gives on this machine: the yardstick of the socket transport. Two processes, one
// thread each, no framing. Prints one number: GB/s, or microseconds per round trip.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "plugin/base/clock.h"

namespace {

struct Setup {
  int streams = 1;
  size_t size = 1 << 20;   // bytes per message; it is split evenly over the streams
  size_t total = 1 << 30;  // bytes to move
  int round_trips = 20'000;
  bool median = false;
  bool yield = false;                 // ping-pong: lends the processor out while it waits
  std::string congestion;             // empty: the system's
  std::string address = "127.0.0.1";  // of the receiving end
  std::string netns;                  // where the sending end runs; empty: here
};

constexpr size_t kInFlight = 8;  // buffers that messages cycle through

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

void tune(int fd, const Setup& setup) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (!setup.congestion.empty() &&
      setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, setup.congestion.data(),
                 static_cast<socklen_t>(setup.congestion.size())) != 0) {
    die("TCP_CONGESTION");
  }
  fcntl(fd, F_SETFL, O_NONBLOCK);
}

struct Cursor {
  int fd;
  size_t moved = 0;
};

void wait_for(const std::vector<Cursor>& cursors, size_t need, short events) {
  std::vector<pollfd> fds;
  for (const Cursor& c : cursors) {
    if (c.moved < need) {
      fds.push_back({c.fd, events, 0});
    }
  }
  poll(fds.data(), fds.size(), 1000);
}

// Moves all messages over all streams, one direction.
template <class Call>
void pump(std::vector<Cursor>& cursors, const Setup& setup, short events, Call call) {
  std::vector<char> buffer(setup.size * kInFlight, 1);
  const size_t per = setup.size / cursors.size();
  const size_t need = setup.total / setup.size * per;
  for (bool all = false; !all;) {
    bool moved = false;
    all = true;
    for (size_t i = 0; i < cursors.size(); ++i) {
      Cursor& c = cursors[i];
      if (c.moved >= need) {
        continue;
      }
      all = false;
      const size_t message = c.moved / per, offset = c.moved % per;
      char* at = buffer.data() + message % kInFlight * setup.size + i * per + offset;
      const ssize_t n = call(c.fd, at, per - offset);
      if (n > 0) {
        c.moved += static_cast<size_t>(n);
        moved = true;
      } else if (n == 0 || errno != EAGAIN) {
        die("transfer");
      }
    }
    if (!all && !moved) {
      wait_for(cursors, need, events);
    }
  }
}

ssize_t send_call(int fd, char* at, size_t n) {
  return send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}
ssize_t recv_call(int fd, char* at, size_t n) { return recv(fd, at, n, MSG_DONTWAIT); }

void spin(int fd, std::vector<char>& message, ssize_t (*call)(int, char*, size_t), bool yield) {
  for (size_t at = 0, looks = 1; at < message.size(); ++looks) {
    const ssize_t n = call(fd, message.data() + at, message.size() - at);
    if (n > 0) {
      at += static_cast<size_t>(n);
    } else if (n == 0 || errno != EAGAIN) {
      die("ping-pong");
    } else if (yield && looks >= 16) {
      sched_yield();
    }
  }
}

// One connection for both directions, or one for each, as NCCL's one-way comms have it.
double ping_pong(int out, int in, const Setup& setup, bool first) {
  std::vector<char> message(setup.size, 1);
  std::vector<int64_t> times;
  int64_t last = prunex::now_ns();
  const int64_t start = last;
  for (int i = 0; i < setup.round_trips; ++i) {
    if (first) {
      spin(out, message, send_call, setup.yield);
    }
    spin(in, message, recv_call, setup.yield);
    if (!first) {
      spin(out, message, send_call, setup.yield);
    }
    if (setup.median) {
      const int64_t now = prunex::now_ns();
      times.push_back(now - std::exchange(last, now));
    }
  }
  if (!times.empty()) {
    std::nth_element(times.begin(), times.begin() + setup.round_trips / 2, times.end());
    return static_cast<double>(times[static_cast<size_t>(setup.round_trips) / 2]) * 1e-3;
  }
  return static_cast<double>(prunex::now_ns() - start) * 1e-3 / setup.round_trips;
}

void wait_for_end(int fd) {
  char byte;
  fcntl(fd, F_SETFL, 0);
  while (recv(fd, &byte, 1, 0) > 0) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Bare TCP over loopback between two processes");
  Setup setup;
  bool latency = false;
  app.add_flag("--ping-pong", latency,
               "round trips instead of bandwidth; with --streams 2 each direction has its own");
  app.add_option("--streams", setup.streams)->check(CLI::Range(1, 64));
  app.add_option("--size", setup.size, "bytes per message");
  app.add_option("--total", setup.total, "bytes to move");
  app.add_option("--round-trips", setup.round_trips);
  app.add_flag("--yield", setup.yield, "ping-pong: lend the processor out while waiting");
  app.add_flag("--median", setup.median, "ping-pong: the median instead of the mean");
  app.add_option("--congestion", setup.congestion, "congestion control, e.g. reno");
  app.add_option("--address", setup.address, "IPv4 address of the receiving end");
  app.add_option("--netns", setup.netns, "network namespace of the sending end");
  CLI11_PARSE(app, argc, argv);

  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  if (inet_pton(AF_INET, setup.address.c_str(), &at.sin_addr) != 1) {
    die("address");
  }
  socklen_t length = sizeof at;
  if (bind(listener, reinterpret_cast<sockaddr*>(&at), length) != 0 || listen(listener, 64) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    die("listen");
  }
  const pid_t child = fork();
  if (child == 0 && !setup.netns.empty()) {
    const int ns = open(("/run/netns/" + setup.netns).c_str(), O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET) != 0) {
      die("netns");
    }
  }
  std::vector<Cursor> cursors;
  for (int i = 0; i < setup.streams; ++i) {
    int fd = -1;
    if (child == 0) {
      fd = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(fd, reinterpret_cast<sockaddr*>(&at), length) != 0) {
        die("connect");
      }
    } else if ((fd = accept(listener, nullptr, nullptr)) < 0) {
      die("accept");
    }
    tune(fd, setup);
    cursors.push_back({fd});
  }
  if (latency) {
    const int there = cursors.front().fd, back = cursors.back().fd;
    const double us =
        ping_pong(child == 0 ? there : back, child == 0 ? back : there, setup, child == 0);
    if (child != 0) {
      std::printf("%.3f\n", us);
    }
  } else if (child == 0) {
    pump(cursors, setup, POLLOUT, send_call);
    for (const Cursor& c : cursors) {
      wait_for_end(c.fd);
    }
  } else {
    const int64_t start = prunex::now_ns();
    pump(cursors, setup, POLLIN, recv_call);
    const double ns = static_cast<double>(prunex::now_ns() - start);
    std::printf("%.3f\n", static_cast<double>(setup.total / setup.size * setup.size) / ns);
  }
  if (child != 0) {
    for (const Cursor& c : cursors) {
      close(c.fd);
    }
    waitpid(child, nullptr, 0);
  }
  return 0;
}

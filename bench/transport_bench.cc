// SPDX-License-Identifier: Apache-2.0
// A transport between two processes, against bare TCP and one iperf3 stream in the same run. Rounds
// alternate, so that the machine's moods hit all of them; medians and their ratios are printed.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/transport/shm/shm.h"
#include "plugin/transport/socket/socket.h"

namespace {

using namespace prunex;             // NOLINT: a program, not a library
using namespace prunex::transport;  // NOLINT

struct Setup {
  std::string transport = "socket";
  int streams = 0;
  std::vector<size_t> sizes = {64 << 10, 256 << 10, 1 << 20, 4 << 20};
  size_t total = size_t{2} << 30;
  size_t in_flight = 8;
  int round_trips = 20'000;
  int rounds = 5;
  bool sleeps = false;
  bool alone = false;
  std::string baseline;
  std::string address = "127.0.0.1";  // of the receiving end
  std::string netns;                  // where the sending end runs; empty: here
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "transport_bench: %s\n", what.c_str());
  std::exit(1);
}

std::unique_ptr<Transport> open_transport(const Setup& setup, bool listens) {
  if (setup.transport == "shm") {
    return std::move(*open_shm_transport({}));
  }
  SocketOptions options;
  options.streams = setup.streams;
  auto address = parse_host(setup.address, 0);
  if (!address) {
    die(address.error().text);
  }
  if (listens) {
    options.address = *address;
  }
  auto t = open_socket_transport(options);
  if (!t) {
    die(t.error().text);
  }
  return std::move(*t);
}

std::unique_ptr<Connection> connect_now(Transport& transport, const std::string& handle) {
  auto making = transport.connect(handle, "bench", 10);
  while (making) {
    auto r = (*making)->step();
    if (!r) {
      die(r.error().text);
    }
    if (*r) {
      return std::move(*r);
    }
  }
  die(making.error().text);
}

std::unique_ptr<Connection> accept_now(Listener& listener) {
  for (;;) {
    auto r = listener.accept();
    if (!r) {
      die(r.error().text);
    }
    if (*r) {
      return std::move(*r);
    }
  }
}

void enter(const std::string& netns) {
  if (netns.empty()) {
    return;
  }
  const Fd fd(::open(("/run/netns/" + netns).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || setns(fd.get(), CLONE_NEWNET) != 0) {
    die("cannot enter network namespace " + netns);
  }
}

void must(Io io, const Connection& c) {
  if (io == Io::failed) {
    die(c.error().text);
  }
}

void finish(Connection& c, Ticket ticket, bool sleeps) {
  size_t bytes = 0;
  std::vector<pollfd> fds;
  for (;;) {
    const Io io = c.test(ticket, &bytes);
    must(io, c);
    if (io == Io::done) {
      return;
    }
    if (sleeps && c.progress() == Io::again) {
      fds.clear();
      c.poll_fds(fds);
      poll(fds.data(), fds.size(), 1000);
    }
  }
}

double bandwidth(Connection& c, const Setup& setup, size_t size, bool sends) {
  std::vector<char> buffer(size * setup.in_flight, 1);
  std::vector<Ticket> tickets(setup.in_flight);
  const size_t messages = setup.total / size;
  const int64_t start = now_ns();
  for (size_t i = 0; i < messages + setup.in_flight; ++i) {
    const size_t slot = i % setup.in_flight;
    if (i >= setup.in_flight) {
      finish(c, tickets[slot], setup.sleeps);
    }
    if (i < messages) {
      char* at = buffer.data() + slot * size;
      must(sends ? c.isend(at, size, nullptr, &tickets[slot])
                 : c.irecv(at, size, nullptr, &tickets[slot]),
           c);
    }
  }
  return static_cast<double>(messages * size) / static_cast<double>(now_ns() - start);
}

double ping_pong(Connection& c, const Setup& setup, bool first) {
  char out[8] = {}, in[8] = {};
  const int64_t start = now_ns();
  for (int i = 0; i < setup.round_trips; ++i) {
    Ticket s = 0, r = 0;
    must(c.irecv(in, sizeof in, nullptr, &r), c);
    if (!first) {
      finish(c, r, setup.sleeps);
    }
    must(c.isend(out, sizeof out, nullptr, &s), c);
    finish(c, s, setup.sleeps);
    if (first) {
      finish(c, r, setup.sleeps);
    }
  }
  return static_cast<double>(now_ns() - start) * 1e-3 / setup.round_trips;
}

// One round between two processes. size 0: ping-pong. GB/s or us per round trip.
double measure(const Setup& setup, size_t size, double* connect_ms = nullptr) {
  auto transport = open_transport(setup, true);
  auto listener = transport->listen();
  if (!listener) {
    die(listener.error().text);
  }
  const std::string handle = (*listener)->handle();
  const pid_t child = fork();
  if (child == 0) {
    enter(setup.netns);
    auto c = connect_now(*open_transport(setup, false), handle);
    if (size == 0) {
      ping_pong(*c, setup, true);
    } else {
      bandwidth(*c, setup, size, true);
    }
    c.reset();
    std::_Exit(0);
  }
  const int64_t start = now_ns();
  auto c = accept_now(**listener);
  if (connect_ms != nullptr) {
    *connect_ms = static_cast<double>(now_ns() - start) * 1e-6;
  }
  const double result = size == 0 ? ping_pong(*c, setup, false) : bandwidth(*c, setup, size, false);
  waitpid(child, nullptr, 0);
  return result;
}

// The number that a command prints; -1: it failed.
double number_from(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  double value = -1;
  if (pipe == nullptr || std::fscanf(pipe, "%lf", &value) != 1) {
    value = -1;
  }
  if (pipe != nullptr) {
    pclose(pipe);
  }
  return value;
}

double iperf3(const Setup& setup) {
  const std::string enter_it = setup.netns.empty() ? "" : "ip netns exec " + setup.netns + " ";
  const std::string port = std::to_string(20'000 + getpid() % 20'000);
  const double bits =
      number_from("iperf3 -s -1 -D -p " + port + " >/dev/null 2>&1; sleep 0.2; " + enter_it +
                  "timeout 20 iperf3 -c " + setup.address + " -t 1 -J -p " + port +
                  " 2>/dev/null | grep -A9 '\"sum_received\"' | "
                  "grep bits_per_second | grep -o '[0-9.e+]*' | tail -1");
  return bits > 0 ? bits / 8e9 : -1;
}

std::string where(const Setup& setup) {
  return " --address " + setup.address + (setup.netns.empty() ? "" : " --netns " + setup.netns);
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

void compare_bandwidth(const Setup& setup, size_t size) {
  if (setup.alone) {
    std::vector<double> ours;
    for (int i = 0; i < setup.rounds; ++i) {
      ours.push_back(measure(setup, size));
    }
    std::printf("%9zu %7.2f\n", size, median(ours));
    return;
  }
  const std::string bare = setup.baseline + " --total " + std::to_string(setup.total) + " --size " +
                           std::to_string(size) + where(setup);
  std::vector<double> ours, one, four, one_reno, four_reno, iperf;
  for (int i = 0; i < setup.rounds; ++i) {
    ours.push_back(measure(setup, size));
    one.push_back(number_from(bare + " --streams 1"));
    four.push_back(number_from(bare + " --streams 4"));
    one_reno.push_back(number_from(bare + " --streams 1 --congestion reno"));
    four_reno.push_back(number_from(bare + " --streams 4 --congestion reno"));
    iperf.push_back(iperf3(setup));
  }
  const double x = median(ours);
  std::printf("%9zu %7.2f | %7.2f %7.2f %7.2f %7.2f | %6.2f | %6.2f %6.2f %6.2f %6.2f | %6.2f\n",
              size, x, median(one), median(four), median(one_reno), median(four_reno),
              median(iperf), x / median(one), x / median(four), x / median(one_reno),
              x / median(four_reno), x / median(iperf));
  std::fflush(stdout);
}

void compare_latency(const Setup& setup) {
  std::vector<double> ours, bare, connect;
  for (int i = 0; i < setup.rounds; ++i) {
    double ms = 0;
    ours.push_back(measure(setup, 0, &ms));
    connect.push_back(ms);
    bare.push_back(setup.alone
                       ? 0
                       : number_from(setup.baseline + " --ping-pong --size 8 --round-trips " +
                                     std::to_string(setup.round_trips)));
  }
  std::printf("ping-pong of 8 bytes: %.2f us, bare TCP %.2f us, ratio %.2f; connected in %.2f ms\n",
              median(ours), median(bare), median(ours) / median(bare), median(connect));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Compares a transport with bare TCP and iperf3 on loopback");
  Setup setup;
  const std::string self = argv[0];
  setup.baseline = self.substr(0, self.rfind('/') + 1) + "tcp_baseline";
  app.add_option("--transport", setup.transport)->check(CLI::IsMember({"socket", "shm"}));
  app.add_option("--streams", setup.streams, "0: the transport's default");
  app.add_option("--sizes", setup.sizes, "message sizes in bytes")->delimiter(',');
  app.add_option("--total", setup.total, "bytes per measurement");
  app.add_option("--in-flight", setup.in_flight)->check(CLI::Range(1, kMaxInFlight));
  app.add_option("--round-trips", setup.round_trips);
  app.add_option("--rounds", setup.rounds);
  app.add_flag("--sleep", setup.sleeps, "sleep in poll() instead of spinning");
  app.add_option("--address", setup.address, "where the receiving end listens");
  app.add_option("--netns", setup.netns, "network namespace of the sending end");
  app.add_flag("--alone", setup.alone, "without the baselines");
  CLI11_PARSE(app, argc, argv);
  std::printf(
      "GB/s, medians of %d; bare TCP with 1 and 4 streams, system's congestion control and "
      "reno\n    bytes    ours |     1sy     4sy      1r      4r |  iperf | ratio of ours\n",
      setup.rounds);
  for (const size_t size : setup.sizes) {
    compare_bandwidth(setup, size);
  }
  if (setup.round_trips > 0) {
    compare_latency(setup);
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Real NCCL on one GPU: all-reduces over the plugin between two processes, by Net and CollNetChain,
// with and without registered buffers and masks; and prunex_all_reduce of device memory among two
// and four. Every result is checked, and that it travelled the way that the case is about. The
// processes differ in NCCL_HOSTID, so that NCCL takes each for a node.
//
//   nccl_check CUDA_LIBRARY LIBPRUNEX OUT_FOLDER [SECONDS_PER_CASE [SECONDS [CASE...]]]
//
// NCCL and the plugin come from LD_LIBRARY_PATH. Everything ends within SECONDS (default: 120). One
// line per case; OUT_FOLDER/nccl.json, written anew after each; beside it what ranks said, what
// their plugins counted, and NCCL's own logs. Exit status 0: all passed, 1: not, 77: cannot run
// here, and the last line says why.
#include "bench/nccl_check.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <vector>

#include "plugin/base/clock.h"
#include "plugin/base/result.h"

namespace prunex::check {
namespace {

// CollNet takes host memory: what NCCL hands it are its own buffers, where the union does the work.
constexpr Case kCases[] = {
    {"net", false, false, false, false, Way::net},
    {"net-masked", false, false, false, true, Way::zero_block},
    {"net-staged", false, true, false, false, Way::net},
    {"net-staged-masked", false, true, false, true, Way::zero_block},
    {"net-staged-registered", false, true, true, false, Way::net},
    {"net-staged-registered-masked", false, true, true, true, Way::masked},
    {"collnet", true, false, false, false, Way::coll},
    {"collnet-masked", true, false, false, true, Way::compact},
    {"collnet-registered", true, false, true, false, Way::coll},
    {"collnet-registered-masked", true, false, true, true, Way::compact},
    {"device", false, false, false, false, Way::device, 2},
    {"device-project", false, false, false, true, Way::device_compact, 2, true},
    {"device-nodes-of-two", false, false, false, false, Way::device, 4},
    {"device-nodes-of-two-project", false, false, false, true, Way::device_compact, 4, true},
    {"device-nodes-of-two-lossless", false, false, false, true, Way::device_compact, 4},
    {"device-nodes-of-two-violated", false, false, false, true, Way::violated, 4},
};

double monotonic_seconds() { return static_cast<double>(now_ns()) * 1e-9; }

constexpr double kGrace = 5;  // seconds until a killed process has to be gone

// A child that does not outlive this process, with its output in a file.
pid_t start(const std::string& out, const std::function<void()>& body) {
  const pid_t parent = ::getpid();
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child != 0) {
    return child;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(1);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ::signal(signal, SIG_DFL);
  }
  if (!out.empty() && std::freopen(out.c_str(), "w", stdout) == nullptr) {
    ::_exit(1);
  }
  body();
  ::_exit(0);
}

// Others fail because of a rank that dies, and may be seen first: a core takes time to write.
constexpr double kHeed = 2;

// Empty when all end with status 0 in time. A failure, or the end of the time, kills the others,
// those that fail by themselves kHeed later than those that die of a signal; of a failure and a
// death the death is told. None is left when this returns, save one that even SIGKILL does not end.
std::string wait_for(std::vector<pid_t> children, double seconds, bool* late) {
  const double begin = monotonic_seconds();
  std::string fault;
  double killed = 0, failed = 0;
  bool died = false;
  for (size_t left = children.size(); left > 0;) {
    for (size_t r = 0; r < children.size(); ++r) {
      int status = 0;
      if (children[r] <= 0 || ::waitpid(children[r], &status, WNOHANG) != children[r]) {
        continue;
      }
      children[r] = 0;
      --left;
      if (WIFSIGNALED(status) && !died && killed == 0) {
        fault = strf("rank %zu died of signal %d", r, WTERMSIG(status));
        died = true;
      } else if (status != 0 && fault.empty()) {
        fault = strf("rank %zu failed", r);
        failed = monotonic_seconds();
      }
    }
    const double now = monotonic_seconds();
    const bool heeded = died || (failed > 0 && now - failed > kHeed);
    *late = *late || (left > 0 && now - begin > seconds);
    if (left > 0 && killed == 0 && (*late || heeded)) {
      fault = fault.empty() ? strf("not done after %.0f s", seconds) : fault;
      killed = now;
      for (const pid_t p : children) {
        (void)(p > 0 ? ::kill(p, SIGKILL) : 0);
      }
    }
    if (killed > 0 && now - killed > kGrace) {
      return fault + strf("; %zu process(es) did not even end when killed", left);
    }
    ::usleep(10000);
  }
  return fault;
}

std::string last_line(const std::string& file) {
  std::ifstream in(file);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    last = line.empty() ? last : line;
  }
  return last;
}

Outcome run_case(const Places& places, const Case& one, double seconds) {
  Outcome out;
  out.of = &one;
  const double begin = monotonic_seconds();
  int pipe[2] = {};
  if (::pipe(pipe) != 0) {
    out.fault = "no pipe";
    return out;
  }
  std::vector<pid_t> ranks;
  for (int r = 0; r < one.ranks(); ++r) {
    for (const char* suffix : {"log", "prom", "txt"}) {
      std::remove(file_of(places, one, r, suffix).c_str());
    }
    ranks.push_back(
        start(file_of(places, one, r, "txt"), [&] { be_rank(places, one, r, pipe, seconds); }));
  }
  ::close(pipe[0]);
  ::close(pipe[1]);
  bool late = false;
  out.fault = wait_for(std::move(ranks), seconds, &late);
  const bool ended = !out.fault.empty();
  for (int r = 0; r < one.ranks(); ++r) {
    const Counts counts = read_counts(file_of(places, one, r, "prom"));
    out.counted.add(counts);
    if (const std::string said = last_line(file_of(places, one, r, "txt"));
        ended && !said.empty()) {
      out.fault += strf("; rank %d: %s", r, said.c_str());
    }
    if (const std::string fault = fault_of(one, counts); !ended && !fault.empty()) {
      out.fault += strf("%srank %d: %s", out.fault.empty() ? "" : "; ", r, fault.c_str());
    }
  }
  out.result = out.fault.empty() ? "pass" : "fail";
  out.seconds = monotonic_seconds() - begin;
  return out;
}

// Replaced as a whole: a crash keeps what was measured.
bool write_json(const Places& places, const std::vector<Outcome>& outcomes) {
  const std::string path = places.out + "/nccl.json", fresh = path + ".new";
  std::string text = "[";
  for (const Outcome& o : outcomes) {
    text += (text == "[" ? "\n  " : ",\n  ") + json_of(o);
  }
  {
    std::ofstream file(fresh);
    file << text << "\n]\n";
    if (!file.flush()) {
      return false;
    }
  }
  return std::rename(fresh.c_str(), path.c_str()) == 0;
}

// In a process of its own: one that forks must not have started CUDA.
int look(const Places& places, double seconds) {
  const std::string file = places.out + "/nccl-look.txt";
  const pid_t child = start(file, [&] {
    const std::string why = missing_here(places);
    std::printf("%s\n", why.c_str());
    std::fflush(stdout);
    ::_exit(why.empty() ? 0 : kSkip);
  });
  bool late = false;
  if (wait_for({child}, seconds, &late).empty()) {
    return 0;
  }
  const std::string said = last_line(file);
  std::printf("cannot run: %s\n", late ? "the GPU does not answer" : said.c_str());
  return !late && !said.empty() ? kSkip : 1;
}

bool wanted(const char* name, int count, char** names) {
  bool found = count == 0;
  for (int i = 0; i < count; ++i) {
    found = found || std::strcmp(name, names[i]) == 0;
  }
  return found;
}

int run_all(const Places& places, double per_case, double seconds, int count, char** names) {
  const double end = monotonic_seconds() + seconds;
  if (const int code = look(places, std::min(per_case, seconds)); code != 0) {
    return code;
  }
  int failed = 0, skipped = 0;
  std::vector<Outcome> outcomes;
  for (const Case& one : kCases) {
    if (!wanted(one.name, count, names)) {
      continue;
    }
    const double left = end - monotonic_seconds() - kGrace;
    Outcome o;
    o.of = &one;
    o.fault = strf("not started: %.0f s are over", seconds);
    if (left > 0) {
      o = run_case(places, one, std::min(per_case, left));
    }
    failed += std::strcmp(o.result, "fail") == 0 ? 1 : 0;
    skipped += std::strcmp(o.result, "skip") == 0 ? 1 : 0;
    std::printf("%-30s %-4s %6.1f s  %s\n", one.name, o.result, o.seconds, o.fault.c_str());
    std::fflush(stdout);
    outcomes.push_back(std::move(o));
    if (!write_json(places, outcomes)) {
      std::perror((places.out + "/nccl.json").c_str());
      return 1;
    }
  }
  std::printf("%zu cases, %d failed, %d not started\n", outcomes.size(), failed, skipped);
  return failed + skipped == 0 && !outcomes.empty() ? 0 : 1;
}

}  // namespace
}  // namespace prunex::check

int main(int argc, char** argv) {
  using namespace prunex::check;
  const double per_case = argc > 4 ? std::atof(argv[4]) : 30;
  const double seconds = argc > 5 ? std::atof(argv[5]) : 120;
  if (argc < 4 || !(per_case > 0) || !(seconds > 0)) {
    std::fprintf(stderr,
                 "usage: %s CUDA_LIBRARY LIBPRUNEX OUT_FOLDER [SECONDS_PER_CASE [SECONDS "
                 "[CASE...]]]\n",
                 argv[0]);
    return 2;
  }
  return run_all({argv[1], argv[2], argv[3]}, per_case, seconds, std::max(argc - 6, 0), argv + 6);
}

// SPDX-License-Identifier: Apache-2.0
// Starting ranks and seeing them off. Each rank leads its own process group, so that whatever it
// starts goes with it; a rank dies with this process (PR_SET_PDEATHSIG).
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "plugin/base/clock.h"
#include "plugin/base/fd.h"
#include "tools/launch.h"

namespace prunex::tools {
namespace {

constexpr int kExitCannotRun = 126;
constexpr int kExitNotFound = 127;

struct Process {
  int rank = -1;
  pid_t pid = -1;
  bool ended = false;
  int exit_code = 0;  // as a shell counts: 128 + signal
  bool killed = false;
};

// This process's environment with `over` laid on top.
std::vector<std::string> merged_environment(const std::vector<Variable>& over) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced =
        std::any_of(over.begin(), over.end(), [&](const Variable& v) { return v.name == name; });
    if (!replaced) {
      merged.emplace_back(text);
    }
  }
  for (const Variable& v : over) {
    merged.push_back(v.name + "=" + v.value);
  }
  return merged;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) {
    out.push_back(s.data());
  }
  out.push_back(nullptr);
  return out;
}

// What to wait for: the ranks' ends, and what a user sends, unless it is to be ignored (nohup).
sigset_t supervised_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) {
      sigaddset(&set, signal);
    }
  }
  return set;
}

// In the child, between fork and exec. Reports errno through `report` if the command cannot be run.
[[noreturn]] void become_rank(char* const* command, char* const* environment, bool own_stdin,
                              pid_t parent, const sigset_t& mask, int report) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(kExitCannotRun);  // the parent died before prctl could see it
  }
  if (!own_stdin) {
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    if (null != STDIN_FILENO) {
      ::close(null);
    }
  }
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execvpe(command[0], command, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error, sizeof error);
  ::_exit(error == ENOENT ? kExitNotFound : kExitCannotRun);
}

class Supervisor {
 public:
  explicit Supervisor(const Job& job) : job_(job), watched_(supervised_signals()) {}

  int run() {
    ::signal(SIGCHLD, SIG_DFL);  // an inherited SIG_IGN would reap the ranks behind our back
    ::sigprocmask(SIG_BLOCK, &watched_, &previous_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // what a rank leaves behind is ours to clear up
    if (start_all()) {
      watch();
    } else {
      stop(SIGKILL);
      watch();
    }
    clear_groups();
    ::sigprocmask(SIG_SETMASK, &previous_, nullptr);
    return exit_code_;
  }

 private:
  bool start_all() {
    for (const int rank : job_.ranks_here()) {
      if (!start(rank)) {
        return false;
      }
    }
    return true;
  }

  bool start(int rank) {
    std::vector<std::string> command = job_.command;
    std::vector<std::string> environment = merged_environment(rank_variables(job_, rank));
    const std::vector<char*> argv = pointers(command);
    const std::vector<char*> envp = pointers(environment);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      return refuse(strf("cannot start rank %d: %s", rank, std::strerror(errno)), kExitCannotRun);
    }
    const Fd report(ends[0]);
    Fd child_end(ends[1]);
    // A background process group that reads a terminal would be stopped.
    const bool own_stdin = rank == 0 && ::isatty(STDIN_FILENO) == 0;
    std::fflush(nullptr);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) {
      return refuse(strf("cannot start rank %d: %s", rank, std::strerror(errno)), kExitCannotRun);
    }
    if (pid == 0) {
      become_rank(argv.data(), envp.data(), own_stdin, parent, previous_, child_end.get());
    }
    ::setpgid(pid, pid);  // also here, so that a kill right now finds the group
    processes_.push_back({.rank = rank, .pid = pid});
    child_end.reset();
    int error = 0;
    if (::read(report.get(), &error, sizeof error) == sizeof error) {
      return refuse(strf("cannot run '%s': %s", job_.command[0].c_str(), std::strerror(error)),
                    error == ENOENT ? kExitNotFound : kExitCannotRun);
    }
    return true;
  }

  bool refuse(const std::string& text, int code) {
    say(text);
    failed_ = true;
    exit_code_ = code;
    return false;
  }

  void watch() {
    for (;;) {
      collect();
      if (std::all_of(processes_.begin(), processes_.end(),
                      [](const Process& p) { return p.ended; })) {
        return;
      }
      if (stopping_ && kill_at_.passed()) {
        stop(SIGKILL);
      }
      wait_for_signal();
    }
  }

  void wait_for_signal() {
    const int64_t wait_ns = stopping_
                                ? std::clamp<int64_t>(kill_at_.left_ns(), 10'000'000, 1'000'000'000)
                                : 1'000'000'000;
    const timespec timeout{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
    const int signal = ::sigtimedwait(&watched_, nullptr, &timeout);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT) {
      // The first one is the ranks' to handle; who repeats it means it.
      stop(forwarded_ ? SIGKILL : signal);
      forwarded_ = true;
    }
  }

  // Ended ranks stay zombies until the end: their process group's number must not be given away.
  void collect() {
    const Process* first = nullptr;
    for (Process& p : processes_) {
      siginfo_t info{};
      if (p.ended ||
          ::waitid(P_PID, static_cast<id_t>(p.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid == 0) {
        continue;
      }
      p.ended = true;
      p.killed = info.si_code != CLD_EXITED;
      p.exit_code = p.killed ? 128 + info.si_status : info.si_status;
      // Of several that ended together, one killed by a signal is the likelier cause.
      if (p.exit_code != 0 && (first == nullptr || (p.killed && !first->killed))) {
        first = &p;
      }
    }
    if (first == nullptr || failed_) {
      return;
    }
    failed_ = true;
    exit_code_ = first->exit_code;
    if (!forwarded_) {
      report(*first);
      stop(SIGTERM);
    }
  }

  void report(const Process& p) {
    const std::string how = p.killed ? strf("was killed by signal %d (%s)", p.exit_code - 128,
                                            ::strsignal(p.exit_code - 128))
                                     : strf("exited with status %d", p.exit_code);
    const auto others = std::count_if(processes_.begin(), processes_.end(),
                                      [](const Process& other) { return !other.ended; });
    say(strf("rank %d (pid %d) %s%s", p.rank, static_cast<int>(p.pid), how.c_str(),
             others > 0 ? "; stopping the other ranks" : ""));
  }

  void stop(int signal) {
    for (const Process& p : processes_) {
      if (!p.ended) {
        ::kill(-p.pid, signal);
        ::kill(-p.pid, SIGCONT);  // a stopped rank takes signals only once it goes on
      }
    }
    if (!stopping_) {
      stopping_ = true;
      kill_at_ = Deadline::after(job_.grace_s);
    }
  }

  // What ranks started and did not wait for goes now: asked first, then killed.
  void clear_groups() {
    for (const Process& p : processes_) {
      ::kill(-p.pid, SIGTERM);
      ::kill(-p.pid, SIGCONT);
      siginfo_t info{};
      ::waitid(P_PID, static_cast<id_t>(p.pid), &info, WEXITED);
    }
    const Deadline patience = Deadline::after(job_.grace_s);
    const Deadline hopeless = Deadline::after(job_.grace_s + 2);  // stuck in the kernel
    while (groups_alive() && !hopeless.passed()) {
      if (patience.passed()) {
        for (const Process& p : processes_) {
          ::kill(-p.pid, SIGKILL);
        }
      }
      const timespec nap{0, 10'000'000};
      ::nanosleep(&nap, nullptr);
    }
  }

  bool groups_alive() {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    return std::any_of(processes_.begin(), processes_.end(),
                       [](const Process& p) { return ::kill(-p.pid, 0) == 0; });
  }

  void say(const std::string& text) {
    std::fprintf(stderr, "%s: %s\n", job_.who.c_str(), text.c_str());
  }

  const Job& job_;
  const sigset_t watched_;
  sigset_t previous_{};
  std::vector<Process> processes_;
  Deadline kill_at_;
  bool stopping_ = false, forwarded_ = false, failed_ = false;
  int exit_code_ = 0;
};

}  // namespace

int supervise(const Job& job) { return Supervisor(job).run(); }

}  // namespace prunex::tools

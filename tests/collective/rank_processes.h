// SPDX-License-Identifier: Apache-2.0
// Ranks as processes that report through a pipe. For programs that fork before they have threads.
#pragma once
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "plugin/base/fd.h"

namespace prunex::test {

// A TCP port of loopback that nobody listens on.
inline int free_port() {
  const Fd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t n = sizeof at;
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &n), 0);
  return ntohs(at.sin_port);
}

class RankProcesses {
 public:
  // Each runs `body(rank, fd of its pipe)`; none outlives `seconds`, nor this object.
  RankProcesses(int ranks, unsigned seconds, const std::function<void(int, int)>& body) {
    for (int r = 0; r < ranks; ++r) {
      int fds[2];
      if (::pipe(fds) != 0) {
        ADD_FAILURE() << "no pipe";
        return;
      }
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::alarm(seconds);
        body(r, fds[1]);
        ::_exit(0);
      }
      ::close(fds[1]);
      pipes_.emplace_back(fds[0]);
      if (pid < 0) {  // -1 would be everybody to kill()
        ADD_FAILURE() << "fork failed";
        return;
      }
      pids_.push_back(pid);
    }
  }
  ~RankProcesses() {
    for (const pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void signal(int rank, int number) const {
    if (static_cast<size_t>(rank) < pids_.size()) {
      ::kill(pids_[static_cast<size_t>(rank)], number);
    }
  }

  // Waits for what `rank` writes; false: it ended without a word.
  template <class Report>
  [[nodiscard]] bool read(int rank, Report* report) const {
    const auto r = static_cast<size_t>(rank);
    return r < pids_.size() &&
           ::read(pipes_[r].get(), report, sizeof *report) == ssize_t{sizeof *report};
  }

 private:
  std::vector<pid_t> pids_;
  std::vector<Fd> pipes_;
};

}  // namespace prunex::test

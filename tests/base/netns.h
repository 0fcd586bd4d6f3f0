// SPDX-License-Identifier: Apache-2.0
// Runs a function in a network namespace of its own, held by a child process and gone with it.
#pragma once
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

namespace prunex::test {

inline constexpr int kNoNamespace = 77;

inline bool shell(const std::string& command) {
  return std::system(("{ " + command + "; } >/dev/null 2>&1").c_str()) == 0;
}

struct InNamespace {
  bool possible = true;
  std::string text;  // what the function returned
};

// `setup`: shell commands that configure the fresh namespace; where they fail, possible is false.
inline InNamespace in_network_namespace(const std::string& setup,
                                        const std::function<std::string()>& run) {
  std::array<int, 2> pipe_fds{};
  InNamespace out;
  if (::pipe(pipe_fds.data()) != 0) {
    out.possible = false;
    return out;
  }
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe_fds[0]);
    const int flags = ::geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET;
    if (::unshare(flags) != 0 || !shell(setup)) {
      ::_exit(kNoNamespace);
    }
    const std::string text = run();
    const ssize_t written = ::write(pipe_fds[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(pipe_fds[1]);
  std::array<char, 4096> buffer;
  for (ssize_t n; (n = ::read(pipe_fds[0], buffer.data(), buffer.size())) > 0;) {
    out.text.append(buffer.data(), static_cast<size_t>(n));
  }
  ::close(pipe_fds[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoNamespace) {
    out.possible = false;
  } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    out.text += " (the child failed)";
  }
  return out;
}

}  // namespace prunex::test

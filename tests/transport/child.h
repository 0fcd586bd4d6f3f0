// SPDX-License-Identifier: Apache-2.0
// Runs a piece of a test in a process of its own, which may then change its limits and namespaces.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

namespace prunex::transport {

// What the child says: "" all is well; "skip: …" it could not be tried; else what is wrong.
template <class Body>
std::string in_child(Body body) {
  int ends[2];
  if (pipe(ends) != 0) {
    return "no pipe";
  }
  const pid_t child = fork();
  if (child == 0) {
    ::close(ends[0]);
    alarm(120);
    const std::string said = body();
    const bool ok = write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size());
    _exit(ok ? 0 : 1);
  }
  ::close(ends[1]);
  std::string said;
  char buffer[512];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<size_t>(n));
  }
  ::close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? said
                     : "the process ended with status " + std::to_string(status) + ": " + said;
}

}  // namespace prunex::transport

// Fails or skips the test by what in_child() said.
#define PRUNEX_EXPECT_CHILD(said)        \
  do {                                   \
    const std::string text_ = (said);    \
    if (text_.rfind("skip: ", 0) == 0) { \
      GTEST_SKIP() << text_.substr(6);   \
    }                                    \
    EXPECT_EQ(text_, "");                \
  } while (0)

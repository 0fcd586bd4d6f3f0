// SPDX-License-Identifier: Apache-2.0
#include "bench/soak_process.h"

#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "bench/soak_link.h"
#include "plugin/base/clock.h"

namespace prunex::soak {

void quiet_log(int level, unsigned long, const char*, int, const char* format, ...) {
  if (std::getenv("SOAK_VERBOSE") == nullptr) {
    return;
  }
  va_list arguments;
  va_start(arguments, format);
  std::fprintf(stderr, "[%d] %d: ", static_cast<int>(::getpid()), level);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
}
State state_now() {
  State s;
  if (DIR* const dir = ::opendir("/proc/self/fd"); dir != nullptr) {
    while (::readdir(dir) != nullptr) {
      ++s.descriptors;
    }
    ::closedir(dir);
  }
  if (std::FILE* const file = std::fopen("/proc/self/status", "r"); file != nullptr) {
    char line[256];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      std::sscanf(line, "Threads: %d", &s.threads);
      std::sscanf(line, "VmRSS: %ld kB", &s.rss_kib);
    }
    std::fclose(file);
  }
  return s;
}
bool give(int fd, const std::string& text) {
  return ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

std::string take(int fd, size_t bytes) {
  std::string text(bytes, '\0');
  size_t got = 0;
  const Deadline deadline = Deadline::after(kPatience);
  while (got < bytes && !deadline.passed()) {
    pollfd p{fd, POLLIN, 0};
    if (::poll(&p, 1, 1000) > 0) {
      const ssize_t n = ::recv(fd, text.data() + got, bytes - got, 0);
      if (n <= 0) {
        return {};
      }
      got += static_cast<size_t>(n);
    }
  }
  return got == bytes ? text : std::string();
}

namespace {

// Drives one link of a child to its end. 0: all messages; 3: the other end has gone.
int run_child_link(tools::NetApi& api, const tools::PluginLibrary& library, const Options& o,
                   uint64_t seed) {
  Link link(api, library, seed, 1, o.child_messages);
  std::string handle;
  if (!link.listen(&handle) || !give(o.child_fd, handle)) {
    return 3;
  }
  const std::string theirs = take(o.child_fd, kHandle);
  if (theirs.empty()) {
    return 3;
  }
  link.aim(theirs);
  bool connected = false;
  Deadline patience = Deadline::after(kPatience);
  while (!link.done()) {
    Result<bool> moved = connected ? link.step() : link.connect();
    if (!moved) {
      const bool wrong = link.counts().wrong > 0;
      std::fprintf(wrong ? stderr : stdout, wrong ? "soak: peer: %s\n" : "%s",
                   wrong ? moved.error().text.c_str() : "");
      return wrong ? 1 : 3;
    }
    connected = connected || *moved;
    if (*moved) {
      patience = Deadline::after(kPatience);
    } else if (patience.passed()) {
      std::fprintf(stderr, "soak: peer: nothing moves (seed %llu)\n",
                   static_cast<unsigned long long>(seed));
      return 1;
    } else {
      ::sched_yield();
    }
  }
  // Nobody closes before both have everything.
  return give(o.child_fd, "+") && take(o.child_fd, 1) == "+" ? 0 : 3;
}

}  // namespace

int run_child(const Options& o) {
  auto net = tools::open_net(o.plugin, o.api);
  if (!net || net->api->init(o.seed, quiet_log) != 0) {
    std::fprintf(stderr, "soak: peer: %s\n", net ? "init failed" : net.error().text.c_str());
    return 1;
  }
  const tools::PluginLibrary library(net->library);
  int result = 0;
  for (int i = 0; i < o.child_links && result == 0; ++i) {
    result = run_child_link(*net->api, library, o, mix(o.seed, static_cast<uint64_t>(i)));
  }
  (void)net->api->finalize();
  return result;
}

}  // namespace prunex::soak

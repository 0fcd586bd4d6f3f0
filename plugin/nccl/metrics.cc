// SPDX-License-Identifier: Apache-2.0
// The metrics file, for a textfile collector: replaced as a whole, never half-written.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "plugin/base/fd.h"
#include "plugin/base/log.h"
#include "plugin/base/sockets.h"
#include "plugin/nccl/stats.h"

namespace prunex::nccl {
namespace {

constexpr auto kEvery = std::chrono::seconds(10);

struct Writer {
  std::mutex mutex;
  std::string path;  // empty: none
  pid_t thread_of = 0;
  bool said = false;  // that it cannot be written
};

Writer& writer() {
  static Writer* const one = new Writer;  // its thread may outlive every destructor
  return *one;
}

std::string expand(std::string path) {
  for (size_t at = 0; (at = path.find("%p", at)) != std::string::npos;) {
    path.replace(at, 2, std::to_string(::getpid()));
  }
  return path;
}

bool write_all(int fd, const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t n = ::write(fd, text.data() + sent, text.size() - sent);
    if (n < 0 && errno != EINTR) {
      return false;
    }
    sent += n > 0 ? static_cast<size_t>(n) : 0;
  }
  return true;
}

// 0, or the errno.
int replace_file(const std::string& path, const std::string& text) {
  const std::string fresh = strf("%s.%d.tmp", path.c_str(), static_cast<int>(::getpid()));
  const Fd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.get() < 0) {
    return errno;
  }
  if (!write_all(fd.get(), text) || ::rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(fresh.c_str());
    return error;
  }
  return 0;
}

void write_locked(Writer& w) {
  if (w.path.empty()) {
    return;
  }
  const int error = replace_file(w.path, metrics_text());
  if (error != 0 && !w.said) {
    w.said = true;
    PRUNEX_LOG(warn, "PRUNEX_METRICS_FILE: cannot write %s: %s", w.path.c_str(),
               errno_text(error).c_str());
  }
}

void run_for_ever() {
  for (;;) {
    std::this_thread::sleep_for(kEvery);
    write_metrics();
  }
}

}  // namespace

void start_metrics(const std::string& path) {
  Writer& w = writer();
  const std::lock_guard lock(w.mutex);
  w.path = expand(path);
  w.said = false;
  if (w.path.empty() || w.thread_of == ::getpid()) {
    return;
  }
  w.thread_of = ::getpid();  // a forked child has no thread
  sigset_t every, before;    // signals are the host's business
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  std::thread(run_for_ever).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  write_locked(w);
}

void write_metrics() {
  Writer& w = writer();
  const std::lock_guard lock(w.mutex);
  write_locked(w);
}

}  // namespace prunex::nccl

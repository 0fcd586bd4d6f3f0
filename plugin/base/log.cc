// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

#include "plugin/base/result.h"

namespace prunex {
namespace {

constinit std::atomic<LogLevel> g_level{LogLevel::warn};
constinit std::atomic<LogSink> g_sink{nullptr};
constinit std::atomic<int> g_rank{-1};

const char* label(LogLevel level) {
  switch (level) {
    case LogLevel::warn:
      return "WARN";
    case LogLevel::info:
      return "INFO";
    case LogLevel::trace:
      return "TRACE";
    case LogLevel::none:
      break;
  }
  return "NOTE";
}

void write_stderr(const std::string& line) {
  // One write per line, so that lines of several ranks on one terminal do not mix. What a full pipe
  // does not take at once is given again; what cannot be written has nobody to read it.
  size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t n = ::write(STDERR_FILENO, line.data() + sent, line.size() - sent);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      return;
    }
  }
}

}  // namespace

void set_log_level(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }
LogLevel log_level() { return g_level.load(std::memory_order_relaxed); }
void set_log_sink(LogSink sink) { g_sink.store(sink, std::memory_order_release); }
void set_log_rank(int rank) { g_rank.store(rank, std::memory_order_relaxed); }

void log_message(LogLevel level, const char* file, int line, const std::string& text) {
  if (const LogSink sink = g_sink.load(std::memory_order_acquire)) {
    sink(level, file, line, text.c_str());
    return;
  }
  const int saved_errno =
      errno;  // a message in the middle of error handling must not change the error
  const int rank = g_rank.load(std::memory_order_relaxed);
  std::string out = rank >= 0 ? strf("prunex %s rank %d: ", label(level), rank)
                              : strf("prunex %s: ", label(level));
  out += text;
  out += '\n';
  write_stderr(out);
  errno = saved_errno;
}

}  // namespace prunex

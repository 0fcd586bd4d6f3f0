// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/host/logger.h"

#include <cstdarg>
#include <cstdio>
#include <mutex>

namespace prunex::nccl::host {
namespace {

std::mutex mutex;
std::vector<LogLine> lines;
std::string faults;

}  // namespace

void log_from_plugin(int level, unsigned long flags, const char* file, int line, const char* format,
                     ...) {
  char text[4096];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const std::lock_guard lock(mutex);
  constexpr unsigned long kKnownFlags = 0x3ffff;
  const bool sane = (level == 2 || level == 3 || level == 5) && (flags & ~kKnownFlags) == 0 &&
                    file != nullptr && *file != '\0' && line > 0 && line < 100000;
  const std::string said = text;
  if (!sane || said.empty() || said.find('\n') != std::string::npos) {
    faults += "level " + std::to_string(level) + " flags " + std::to_string(flags) + " line " +
              std::to_string(line) + " text '" + said + "'; ";
  }
  lines.push_back({level, flags, file == nullptr ? "" : file, line, said});
}

std::vector<LogLine> log_lines() {
  const std::lock_guard lock(mutex);
  return lines;
}

std::vector<LogLine> log_lines(int level) {
  std::vector<LogLine> out;
  for (LogLine& one : log_lines()) {
    if (one.level == level) {
      out.push_back(std::move(one));
    }
  }
  return out;
}

std::string log_faults() {
  const std::lock_guard lock(mutex);
  return faults;
}

void forget_log() {
  const std::lock_guard lock(mutex);
  lines.clear();
  faults.clear();
}

}  // namespace prunex::nccl::host

// SPDX-License-Identifier: Apache-2.0
// Messages for the person who runs the job. Never on stdout; nothing at all when all is well and
// the level is the default (WARN). A host such as NCCL may take the messages over with
// set_log_sink.
#pragma once
#include <string>

#include "plugin/base/result.h"  // strf, for PRUNEX_LOG

namespace prunex {

enum class LogLevel : int { none = 0, warn = 1, info = 2, trace = 3 };

using LogSink = void (*)(LogLevel level, const char* file, int line, const char* text);

void set_log_level(LogLevel level);
[[nodiscard]] LogLevel log_level();
void set_log_sink(LogSink sink);  // nullptr: stderr
void set_log_rank(int rank);      // shown in the prefix; -1: not known yet
void log_message(LogLevel level, const char* file, int line, const std::string& text);

}  // namespace prunex

#define PRUNEX_LOG(level, ...)                                             \
  do {                                                                     \
    if (::prunex::log_level() >= ::prunex::LogLevel::level) {              \
      ::prunex::log_message(::prunex::LogLevel::level, __FILE__, __LINE__, \
                            ::prunex::strf(__VA_ARGS__));                  \
    }                                                                      \
  } while (0)

// SPDX-License-Identifier: Apache-2.0
// NCCL's logger: takes what the plugin says, and minds how it says it.
#pragma once
#include <string>
#include <vector>

#include "plugin/nccl/abi/types.h"

namespace prunex::nccl::host {

struct LogLine {
  int level;
  unsigned long flags;
  std::string file;
  int line;
  std::string text;
};

void log_from_plugin(int level, unsigned long flags, const char* file, int line, const char* format,
                     ...);

// What came so far in this process, and what was wrong with the arguments.
std::vector<LogLine> log_lines();
std::vector<LogLine> log_lines(int level);
std::string log_faults();
void forget_log();

}  // namespace prunex::nccl::host

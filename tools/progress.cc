// SPDX-License-Identifier: Apache-2.0
#include "tools/progress.h"

#include <unistd.h>

#include <cstdio>

#include "plugin/base/clock.h"

namespace prunex::tools {

Progress::Progress(bool shown, bool asked) : terminal_(::isatty(STDERR_FILENO) == 1) {
  shown_ = shown && (terminal_ || asked);
}

bool Progress::due() const { return shown_ && now_ns() >= next_ns_; }

void Progress::say(const std::string& text) {
  if (!due()) {
    return;
  }
  std::fprintf(stderr, terminal_ ? "\r\033[K%s" : "%s\n", text.c_str());
  std::fflush(stderr);
  dirty_ = terminal_;
  next_ns_ = now_ns() + (terminal_ ? 100'000'000 : 1'000'000'000);
}

void Progress::clear() {
  if (dirty_) {
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
    dirty_ = false;
  }
}

}  // namespace prunex::tools

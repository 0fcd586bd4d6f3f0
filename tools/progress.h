// SPDX-License-Identifier: Apache-2.0
// One line on stderr that says how far the work is: rewritten in place on a terminal, at most once
// a second otherwise.
#pragma once
#include <cstdint>
#include <string>

namespace prunex::tools {

class Progress {
 public:
  // Shown on a terminal, or anywhere if asked for. shown false: silent (ranks other than 0).
  Progress(bool shown, bool asked);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  [[nodiscard]] bool due() const;  // whether say() would print now
  void say(const std::string& text);
  void clear();

 private:
  bool shown_ = false, terminal_ = false, dirty_ = false;
  int64_t next_ns_ = 0;
};

}  // namespace prunex::tools

// SPDX-License-Identifier: Apache-2.0
// A deadline as a descriptor: wakes a poll() that waits for nothing else.
#pragma once
#include <cerrno>
#include <cstdint>

#include "plugin/base/fd.h"
#include "plugin/base/result.h"

namespace prunex::transport {

class Timer {
 public:
  [[nodiscard]] static Result<Timer> open();
  void set(int64_t at_ns);  // as now_ns(); readable from then on, until set anew
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  explicit Timer(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

// Raises the soft limit of open files to the hard one. false: it was there already.
[[nodiscard]] bool raise_file_limit();

// The result of `make`, made once more if it failed for want of descriptors and there may be more.
template <class Make>
[[nodiscard]] auto with_more_files(Make make) {
  auto made = make();
  if (!made && made.error().sys_errno == EMFILE && raise_file_limit()) {
    made = make();
  }
  return made;
}

}  // namespace prunex::transport

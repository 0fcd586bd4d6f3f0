// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace prunex {

constinit std::atomic<uint32_t> detail::g_forks{0};

namespace {

void in_child() { detail::g_forks.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

uint32_t forks() {
  [[maybe_unused]] static const int kWatched = ::pthread_atfork(nullptr, nullptr, in_child);
  return forks_counted();
}

Error made_before_fork(const char* what) {
  return {
      Code::invalid_argument,
      strf("the %s was made before this process (%d) was forked: only the process that made it can "
           "use it; make a new one here",
           what, static_cast<int>(::getpid()))};
}

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
// A forked child has its parent's sockets and shared memory. It must not use them: the parent's
// peers would take its words for the parent's.
#pragma once
#include <atomic>
#include <cstdint>

#include "plugin/base/result.h"

namespace prunex {

// Counts the forks between this process and the one that asked first. What is made at one count is
// of no use at another.
[[nodiscard]] uint32_t forks();

namespace detail {
extern std::atomic<uint32_t> g_forks;
}
// The same for the data path, once somebody has asked forks().
[[nodiscard]] inline uint32_t forks_counted() {
  return detail::g_forks.load(std::memory_order_relaxed);
}

// Of something (`what`) that a process before the fork made.
[[nodiscard]] Error made_before_fork(const char* what);

}  // namespace prunex

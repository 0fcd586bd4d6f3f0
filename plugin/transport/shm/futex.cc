// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

namespace prunex::transport::shm {
namespace {

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The kernel reads and compares the word; it never writes it in these operations.
uint32_t* address_of(const SharedWord& word) {
  return reinterpret_cast<uint32_t*>(const_cast<SharedWord*>(&word));
}

}  // namespace

bool futex_wait(const SharedWord& word, uint32_t expected, Deadline deadline) {
  // WAIT_BITSET takes an absolute CLOCK_MONOTONIC time, so that early returns do not stretch the
  // wait.
  timespec at{};
  at.tv_sec = static_cast<time_t>(deadline.at_ns() / 1'000'000'000);
  at.tv_nsec = static_cast<long>(deadline.at_ns() % 1'000'000'000);
  const long rc = syscall(SYS_futex, address_of(word), FUTEX_WAIT_BITSET, expected, &at, nullptr,
                          FUTEX_BITSET_MATCH_ANY);
  return !(rc != 0 && errno == ETIMEDOUT);
}

void futex_wake(const SharedWord& word, int waiters) {
  syscall(SYS_futex, address_of(word), FUTEX_WAKE, waiters, nullptr, nullptr, 0);
}

void futex_wake_all(const SharedWord& word) { futex_wake(word, INT_MAX); }

bool wait_while_equal(const SharedWord& word, uint32_t old, Deadline deadline, int64_t spin_ns) {
  const int64_t spin_until = now_ns() + spin_ns;
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.load(std::memory_order_acquire) != old) {
        return true;
      }
      cpu_relax();
    }
  } while (now_ns() < spin_until);
  while (word.load(std::memory_order_acquire) == old) {
    if (!futex_wait(word, old, deadline)) {
      return word.load(std::memory_order_acquire) != old;
    }
  }
  return true;
}

}  // namespace prunex::transport::shm

// SPDX-License-Identifier: Apache-2.0
// Waiting on a 32-bit word that lies in memory shared between processes. Spins for a moment (the
// peer is usually nearly there), then sleeps in the kernel: ranks may outnumber cores.
#pragma once
#include <atomic>
#include <cstdint>

#include "plugin/base/clock.h"

namespace prunex::transport::shm {

using SharedWord = std::atomic<uint32_t>;
static_assert(sizeof(SharedWord) == 4 && SharedWord::is_always_lock_free);

inline constexpr int64_t kSpinNs = 20'000;

// Sleeps while `word` holds `expected`, until a wake or the deadline. false: the deadline passed.
// May return true for no reason: look at the word again.
[[nodiscard]] bool futex_wait(const SharedWord& word, uint32_t expected, Deadline deadline);

// Wakes up to `waiters` sleepers. A system call: skip it when nobody can be asleep.
void futex_wake(const SharedWord& word, int waiters);
void futex_wake_all(const SharedWord& word);

// Returns when `word` no longer holds `old` (true; reads with acquire), or at the deadline (false).
// Spins for at most `spin_ns`, then sleeps; the writer stores with release and calls
// futex_wake_all.
[[nodiscard]] bool wait_while_equal(const SharedWord& word, uint32_t old, Deadline deadline,
                                    int64_t spin_ns = kSpinNs);

}  // namespace prunex::transport::shm

// SPDX-License-Identifier: Apache-2.0
// Handles of communicators and requests, and the look-up counters that belong to a communicator.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "plugin/base/process.h"
#include "plugin/base/result.h"
#include "plugin/collective/comm.h"
#include "plugin/device/device_comm.h"

namespace prunex::api {

struct CommEntry {
  std::unique_ptr<collective::Comm> comm;
  std::mutex device_mutex;                     // device calls are enqueued one after the other
  std::unique_ptr<device::DeviceComm> device;  // null until a call has device buffers
  uint32_t made_at = forks();
  std::atomic<uint64_t> hits{0}, misses{0}, stale{0};
  std::atomic<bool> warned_miss{false};
};

// Outlives its communicator, whose destruction completes it.
struct RequestEntry {
  std::shared_ptr<collective::Completion> request;
};

template <class T>
class Handles {
 public:
  explicit Handles(const char* what) : what_(what) {}
  uint64_t add(T value) {
    const std::lock_guard lock(mutex_);
    entries_.emplace(next_, std::move(value));
    return next_++;
  }
  [[nodiscard]] Result<T> find(uint64_t id) const {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    return found == entries_.end() ? Result<T>(unknown(id)) : Result<T>(found->second);
  }
  [[nodiscard]] Result<T> take(uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) {
      return unknown(id);
    }
    T value = std::move(found->second);
    entries_.erase(found);
    return value;
  }

 private:
  [[nodiscard]] tl::unexpected<Error> unknown(uint64_t id) const {
    return fail(Code::invalid_handle, strf("%s handle %llu is unknown or was destroyed", what_,
                                           static_cast<unsigned long long>(id)));
  }
  const char* what_;
  mutable std::mutex mutex_;
  uint64_t next_ = 1;
  std::unordered_map<uint64_t, T> entries_;
};

[[nodiscard]] Handles<std::shared_ptr<CommEntry>>& comms();
// For whoever wants to move data: not in a forked child.
[[nodiscard]] Result<std::shared_ptr<CommEntry>> find_own_comm(uint64_t id);
[[nodiscard]] Handles<RequestEntry>& requests();

}  // namespace prunex::api

// SPDX-License-Identifier: Apache-2.0
// Completion of something under way; shared by the caller and whoever works on it.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "plugin/base/result.h"

namespace prunex::collective {

class Completion {
 public:
  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  [[nodiscard]] Result<> wait();  // blocks; every call has its own deadline
  // Whether it is done within this time.
  [[nodiscard]] bool wait_for(std::chrono::milliseconds time);
  void complete(Result<> result);

  std::function<void(const Result<>&)> on_complete;  // may be empty

 private:
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  std::condition_variable ready_;
  Result<> result_;
};

}  // namespace prunex::collective

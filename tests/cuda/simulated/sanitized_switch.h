// SPDX-License-Identifier: Apache-2.0
// What the sanitizers want to know of fibers: each has a stack and a history of its own.
#pragma once
#include <cstddef>

#if defined(PRUNEX_SANITIZED_ADDRESS)
#include <sanitizer/common_interface_defs.h>
#elif defined(PRUNEX_SANITIZED_THREAD)
#include <sanitizer/tsan_interface.h>
#endif

namespace prunex::simulated {

class SanitizedFiber {
 public:
#if defined(PRUNEX_SANITIZED_ADDRESS)
  void made(const void* stack, size_t bytes) {
    stack_ = stack;
    bytes_ = bytes;
  }
  void made_here() { from_ = this; }
  void leave(SanitizedFiber& next) {
    next.from_ = this;
    __sanitizer_start_switch_fiber(&shadow_, next.stack_, next.bytes_);
  }
  // A stack that nobody made, the scheduler's, is known once it was left.
  void arrived() {
    const void* stack = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(shadow_, &stack, &bytes);
    if (from_ != nullptr && from_->stack_ == nullptr) {
      from_->stack_ = stack;
      from_->bytes_ = bytes;
    }
  }

 private:
  const void* stack_ = nullptr;
  size_t bytes_ = 0;
  void* shadow_ = nullptr;
  SanitizedFiber* from_ = nullptr;
#elif defined(PRUNEX_SANITIZED_THREAD)
  ~SanitizedFiber() {
    if (owned_) {
      __tsan_destroy_fiber(fiber_);
    }
  }
  void made(const void*, size_t) {
    fiber_ = __tsan_create_fiber(0);
    owned_ = true;
  }
  void made_here() { fiber_ = __tsan_get_current_fiber(); }
  static void leave(SanitizedFiber& next) { __tsan_switch_to_fiber(next.fiber_, 0); }
  static void arrived() {}

 private:
  void* fiber_ = nullptr;
  bool owned_ = false;
#else
  static void made(const void*, size_t) {}
  static void made_here() {}
  static void leave(const SanitizedFiber&) {}
  static void arrived() {}
#endif
};

}  // namespace prunex::simulated

// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/on_device.h"

#include <dlfcn.h>

#include <atomic>
#include <map>
#include <mutex>

namespace prunex::device {
namespace {

constinit std::atomic<const DriverContexts*> other_contexts{nullptr};

template <class F>
void look_up(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
}

// Once loaded, the driver stays.
const DriverContexts* of_loaded_driver() {
  static std::atomic<const DriverContexts*> found{nullptr};
  if (const DriverContexts* known = found) {
    return known;
  }
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) {
    return nullptr;
  }
  static const DriverContexts contexts = [&] {
    DriverContexts out;
    look_up(driver, "cuCtxGetCurrent", out.current);
    look_up(driver, "cuDevicePrimaryCtxRetain", out.retain);
    look_up(driver, "cuCtxPushCurrent_v2", out.push);
    look_up(driver, "cuCtxPopCurrent_v2", out.pop);
    return out;
  }();
  const bool whole = contexts.current != nullptr && contexts.retain != nullptr &&
                     contexts.push != nullptr && contexts.pop != nullptr;
  found = whole ? &contexts : nullptr;
  return found;
}

// Kept for ever: the last who gives a primary context back ends it, with all that is in it, and the
// runtime does not count itself. Where buffers are it exists anyway.
void* primary_of(const DriverContexts& driver, int device) {
  static std::mutex mutex;
  static std::map<std::pair<const DriverContexts*, int>, void*> primaries;
  const std::lock_guard lock(mutex);
  void*& primary = primaries[{&driver, device}];
  if (primary == nullptr && driver.retain(&primary, device) != 0) {
    primary = nullptr;
  }
  return primary;
}

}  // namespace

const DriverContexts* driver_contexts() {
  const DriverContexts* const other = other_contexts;
  return other != nullptr ? other : of_loaded_driver();
}

void replace_driver_contexts(const DriverContexts* others) { other_contexts = others; }

OnDevice::OnDevice(const cuda::Table& table, int device) : table_(table) {
  (void)table_.get_device(&before_);
  if (before_ == device || push(device)) {
    return;
  }
  error_ = table_.set_device(device);
  moved_ = true;
}

// set_device() would make a context on the device that a thread without one "had" (the first), when
// it is given back. A pushed context leaves the runtime's own choice as it was.
bool OnDevice::push(int device) {
  const DriverContexts* const driver = driver_contexts();
  void* current = nullptr;
  if (driver == nullptr || driver->current(&current) != 0 || current != nullptr) {
    return false;
  }
  void* const primary = primary_of(*driver, device);
  if (primary == nullptr || driver->push(primary) != 0) {
    return false;
  }
  pushed_ = driver;
  return true;
}

OnDevice::~OnDevice() {
  if (pushed_ != nullptr) {
    void* ignored = nullptr;
    (void)pushed_->pop(&ignored);
  } else if (moved_) {
    (void)table_.set_device(before_);
  }
}

}  // namespace prunex::device

// SPDX-License-Identifier: Apache-2.0
// What NCCL holds pointers to. Data-path calls look at the tag, so that a comm of the wrong kind is
// an error; control-path calls also look whether the object is alive, so that closing twice is one.
#pragma once
#include <cstdint>
#include <mutex>
#include <unordered_set>

namespace prunex::nccl {

enum class Tag : uint32_t {
  gone = 0,
  listen = 0x5072'784C,
  send = 0x5072'7853,
  recv = 0x5072'7852,
  request = 0x5072'7851,
  memory = 0x5072'784D,
  context = 0x5072'7843,
};

struct Object {
  explicit Object(Tag t) : tag(t) {}
  ~Object() { tag = Tag::gone; }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  volatile Tag tag;  // written last by the destructor, and read by whoever has a stale pointer
};

// Pointers that were handed out and not taken back.
class Living {
 public:
  void add(void* object) {
    const std::lock_guard lock(mutex_);
    objects_.insert(object);
  }
  [[nodiscard]] bool take(void* object) {  // false: not one of them
    const std::lock_guard lock(mutex_);
    return objects_.erase(object) != 0;
  }
  [[nodiscard]] bool has(void* object) const {
    const std::lock_guard lock(mutex_);
    return objects_.count(object) != 0;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<void*> objects_;
};

}  // namespace prunex::nccl

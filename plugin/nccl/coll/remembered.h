// SPDX-License-Identifier: Apache-2.0
// How often each of a number of keys came, in memory that is made once. It costs what is used of
// it: the system gives pages of zeros when they are first written.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace prunex::nccl::coll {

class Remembered {
 public:
  static constexpr size_t kKeys = 4096;  // with one more it starts afresh

  Remembered() : slots_(static_cast<Slot*>(std::calloc(kSlots, sizeof(Slot)))) {
    if (slots_ == nullptr) {
      throw std::bad_alloc();
    }
  }
  [[nodiscard]] uint64_t count(uint64_t key) const { return slot_of(key).count; }
  [[nodiscard]] bool contains(uint64_t key) const { return count(key) > 0; }
  // How often it came, this time included.
  uint64_t add(uint64_t key) {
    if (keys_ == kKeys && !contains(key)) {
      std::fill_n(slots_.get(), kSlots, Slot{});
      keys_ = 0;
    }
    Slot& slot = slot_of(key);
    keys_ += slot.count == 0 ? 1 : 0;
    slot.key = key;
    return ++slot.count;
  }

 private:
  static constexpr size_t kSlots = 2 * kKeys;
  struct Slot {
    uint64_t key = 0, count = 0;  // count 0: free
  };
  struct Free {
    void operator()(Slot* slots) const { std::free(slots); }
  };
  // Keys are digests: their low bits are as good as any.
  [[nodiscard]] Slot& slot_of(uint64_t key) const {
    size_t at = key % kSlots;
    while (slots_[at].count > 0 && slots_[at].key != key) {
      at = (at + 1) % kSlots;
    }
    return slots_[at];
  }

  std::unique_ptr<Slot[], Free> slots_;
  size_t keys_ = 0;
};

}  // namespace prunex::nccl::coll

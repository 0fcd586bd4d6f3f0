// SPDX-License-Identifier: Apache-2.0
// A ring of bytes in shared memory with one writer and one reader, each in its own process. Neither
// trusts the other's counters further than the ring reaches.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/transport/shm/futex.h"

namespace prunex::transport::shm {

// Lives in the segment, zero-filled at first; a cache line per writer.
struct RingControl {
  alignas(64) std::atomic<uint64_t> written;  // bytes ever, by the writer
  std::atomic<uint32_t> closed;               // by the writer: no more will come
  alignas(64) std::atomic<uint64_t> read;     // bytes ever, by the reader
  alignas(64) SharedWord reader_sleeps;       // set by who goes to sleep, cleared by who wakes
  SharedWord writer_sleeps;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(RingControl) == 192);

[[nodiscard]] constexpr size_t bytes_of_ring(size_t capacity) {
  return sizeof(RingControl) + capacity;
}

// One end of a ring; which, says the caller by what it calls.
class Ring {
 public:
  Ring() = default;
  // `memory` has bytes_of_ring(capacity) bytes, aligned to 64; capacity is a power of two.
  Ring(std::byte* memory, size_t capacity);

  // Writer.
  [[nodiscard]] size_t room() const;
  size_t put(std::span<const std::byte> from);  // as much as there is room for; not yet visible
  [[nodiscard]] bool publish();                 // true: the reader sleeps and must be woken
  void close() { control_->closed.store(1, std::memory_order_release); }
  void writer_will_sleep() { control_->writer_sleeps.store(1); }
  [[nodiscard]] bool reader_is_sane() const;  // false: its counter is impossible

  // Reader.
  [[nodiscard]] size_t available() const;
  size_t take(std::span<std::byte> into);  // as much as there is; room is not yet given back
  [[nodiscard]] bool release();            // true: the writer sleeps and must be woken
  [[nodiscard]] bool closed() const {
    return control_->closed.load(std::memory_order_acquire) != 0;
  }
  void reader_will_sleep() { control_->reader_sleeps.store(1); }
  [[nodiscard]] bool writer_is_sane() const;

 private:
  RingControl* control_ = nullptr;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  uint64_t mine_ = 0;  // this side's counter, ahead of what is published
};

}  // namespace prunex::transport::shm

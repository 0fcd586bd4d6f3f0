// SPDX-License-Identifier: Apache-2.0
#include "plugin/transport/shm/ring.h"

#include <algorithm>
#include <cstring>

namespace prunex::transport::shm {
namespace {

// Whether the other side must be woken. Its "I sleep" and our counter cross; all four accesses are
// sequentially consistent, so at least one side sees what the other stored.
bool claim_sleeper(SharedWord& sleeps) { return sleeps.load() != 0 && sleeps.exchange(0) != 0; }

}  // namespace

Ring::Ring(std::byte* memory, size_t capacity)
    : control_(reinterpret_cast<RingControl*>(memory)),
      data_(memory + sizeof(RingControl)),
      capacity_(capacity) {}

bool Ring::reader_is_sane() const { return mine_ - control_->read.load() <= capacity_; }

bool Ring::writer_is_sane() const { return control_->written.load() - mine_ <= capacity_; }

size_t Ring::room() const {
  const uint64_t used = mine_ - control_->read.load();
  return used > capacity_ ? 0 : capacity_ - static_cast<size_t>(used);
}

size_t Ring::put(std::span<const std::byte> from) {
  const size_t n = std::min(from.size(), room());
  const size_t at = static_cast<size_t>(mine_) & (capacity_ - 1);
  const size_t first = std::min(n, capacity_ - at);
  if (first > 0) {
    std::memcpy(data_ + at, from.data(), first);
  }
  if (n > first) {
    std::memcpy(data_, from.data() + first, n - first);
  }
  mine_ += n;
  return n;
}

bool Ring::publish() {
  control_->written.store(mine_);
  return claim_sleeper(control_->reader_sleeps);
}

size_t Ring::available() const {
  const uint64_t there = control_->written.load() - mine_;
  return there > capacity_ ? 0 : static_cast<size_t>(there);
}

size_t Ring::take(std::span<std::byte> into) {
  const size_t n = std::min(into.size(), available());
  const size_t at = static_cast<size_t>(mine_) & (capacity_ - 1);
  const size_t first = std::min(n, capacity_ - at);
  if (first > 0) {
    std::memcpy(into.data(), data_ + at, first);
  }
  if (n > first) {
    std::memcpy(into.data() + first, data_, n - first);
  }
  mine_ += n;
  return n;
}

bool Ring::release() {
  control_->read.store(mine_);
  return claim_sleeper(control_->writer_sleeps);
}

}  // namespace prunex::transport::shm

// SPDX-License-Identifier: Apache-2.0
// Memory for encoded messages of host memory on their way out or in, registered with the
// connection's transport. prepare() makes as much as NCCL has under way on a connection, before
// it moves a message, so that none allocates or registers anything. Who has more under way, longer
// messages or buffers that nobody registered, gets memory of its own, which is used again.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "plugin/nccl/net/staging_ring.h"
#include "plugin/transport/staging.h"

namespace prunex::nccl {

struct SideBuffer {
  std::byte* memory = nullptr;
  size_t bytes = 0;
  const transport::Region* region = nullptr;
  transport::Staging own = transport::Staging();  // empty: a piece of the prepared memory
  [[nodiscard]] explicit operator bool() const { return memory != nullptr; }
  [[nodiscard]] std::span<std::byte> span() const { return {memory, bytes}; }
};

class SideBuffers {
 public:
  static constexpr size_t kKept = 8;
  explicit SideBuffers(transport::Transport& transport) : transport_(transport) {
    free_.reserve(kKept);
  }

  // Once; by any thread, also while another one moves messages.
  void prepare(size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (made_ == nullptr) {
      made_ = std::make_unique<Prepared>(transport_, bytes);
      prepared_.store(made_.get(), std::memory_order_release);
    }
  }

  // For who can wait: nothing while the prepared memory is full, if it is long enough at all.
  [[nodiscard]] SideBuffer take_or_wait(size_t bytes) {
    const Prepared* const prepared = prepared_.load(std::memory_order_acquire);
    const bool fits = prepared != nullptr && bytes <= prepared->ring.bytes();
    return fits ? take_prepared(bytes) : take_own(bytes);
  }
  [[nodiscard]] SideBuffer take(size_t bytes) {
    SideBuffer out = take_prepared(bytes);
    return out ? std::move(out) : take_own(bytes);
  }
  void give(SideBuffer&& buffer) {
    if (buffer.own.size() > 0) {
      if (free_.size() < kKept) {
        free_.push_back(std::move(buffer.own));
      }
    } else if (buffer) {
      Prepared& prepared = *prepared_.load(std::memory_order_acquire);
      prepared.ring.give(static_cast<size_t>(buffer.memory - prepared.side.data()));
    }
    buffer = SideBuffer{};
  }

 private:
  struct Prepared {
    Prepared(transport::Transport& transport, size_t bytes)
        : side(made(transport, bytes)), ring(side.size()) {}
    static transport::Staging made(transport::Transport& transport, size_t bytes) {
      transport::Staging side(&transport);
      side.reserve(bytes);
      return side;
    }
    transport::Staging side;
    StagingRing ring;  // whoever moves messages has it
  };

  [[nodiscard]] SideBuffer take_prepared(size_t bytes) {
    Prepared* const prepared = prepared_.load(std::memory_order_acquire);
    if (prepared == nullptr) {
      return {};
    }
    const auto at = prepared->ring.take(bytes);
    return at ? SideBuffer{prepared->side.data() + *at, bytes, prepared->side.region()}
              : SideBuffer{};
  }
  [[nodiscard]] SideBuffer take_own(size_t bytes) {
    transport::Staging own(&transport_);
    const auto fits =
        std::find_if(free_.begin(), free_.end(), [&](const auto& b) { return b.size() >= bytes; });
    if (fits != free_.end()) {
      own = std::move(*fits);
      free_.erase(fits);
    } else {
      if (!free_.empty()) {
        free_.pop_back();  // too small for what travels now
      }
      own.reserve(bytes);
    }
    std::byte* const memory = own.data();
    const size_t size = own.size();
    const transport::Region* const region = own.region();
    return {memory, size, region, std::move(own)};
  }

  transport::Transport& transport_;
  std::vector<transport::Staging> free_;
  std::mutex mutex_;
  std::unique_ptr<Prepared> made_;
  std::atomic<Prepared*> prepared_{nullptr};
};

}  // namespace prunex::nccl

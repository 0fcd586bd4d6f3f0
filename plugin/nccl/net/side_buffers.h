// SPDX-License-Identifier: Apache-2.0
// Memory for encoded messages on their way out or in. Buffers are used again, so that a running
// connection allocates nothing; memory that was never touched costs nothing.
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace prunex::nccl {

struct SideBuffer {
  std::unique_ptr<std::byte[]> memory;
  size_t bytes = 0;
  [[nodiscard]] explicit operator bool() const { return memory != nullptr; }
  [[nodiscard]] std::span<std::byte> span() const { return {memory.get(), bytes}; }
};

class SideBuffers {
 public:
  static constexpr size_t kKept = 8;

  [[nodiscard]] SideBuffer take(size_t bytes) {
    const auto fits = std::find_if(free_.begin(), free_.end(),
                                   [&](const SideBuffer& b) { return b.bytes >= bytes; });
    if (fits != free_.end()) {
      SideBuffer out = std::move(*fits);
      free_.erase(fits);
      return out;
    }
    if (!free_.empty()) {
      free_.pop_back();  // too small for what travels now
    }
    return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  }
  void give(SideBuffer&& buffer) {
    if (buffer && free_.size() < kKept) {
      free_.push_back(std::move(buffer));
    }
    buffer = SideBuffer{};
  }

 private:
  std::vector<SideBuffer> free_;
};

}  // namespace prunex::nccl

// SPDX-License-Identifier: Apache-2.0
// Memory for encoded messages of host memory on their way out or in, registered with the
// connection's transport. Buffers are used again, so that a running connection allocates and
// registers nothing.
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "plugin/transport/transport.h"

namespace prunex::nccl {

struct SideBuffer {
  std::unique_ptr<std::byte[]> memory;
  std::unique_ptr<transport::Region> region;  // freed first; none: the transport does without
  size_t bytes = 0;
  [[nodiscard]] explicit operator bool() const { return memory != nullptr; }
  [[nodiscard]] std::span<std::byte> span() const { return {memory.get(), bytes}; }
};

class SideBuffers {
 public:
  static constexpr size_t kKept = 8;
  explicit SideBuffers(transport::Transport& transport) : transport_(transport) {}

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
    SideBuffer out{std::make_unique_for_overwrite<std::byte[]>(bytes), nullptr, bytes};
    if (auto region = transport_.register_memory(out.memory.get(), bytes)) {
      out.region = *std::move(region);
    }
    return out;
  }
  void give(SideBuffer&& buffer) {
    if (buffer && free_.size() < kKept) {
      free_.push_back(std::move(buffer));
    }
    buffer = SideBuffer{};
  }

 private:
  transport::Transport& transport_;
  std::vector<SideBuffer> free_;
};

}  // namespace prunex::nccl

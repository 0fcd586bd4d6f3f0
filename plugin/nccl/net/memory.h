// SPDX-License-Identifier: Apache-2.0
// What regMr hands out: what it says about the buffer, and its registration with the transport.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "plugin/nccl/internal_table.h"
#include "plugin/nccl/net/device_lane.h"
#include "plugin/nccl/net/host.h"
#include "plugin/nccl/net/object.h"
#include "plugin/transport/transport.h"

namespace prunex::nccl {

struct Registration {
  std::shared_ptr<DeviceLane> of_device;            // of device memory
  std::shared_ptr<transport::Transport> transport;  // outlives the regions
  std::unique_ptr<transport::Region> region;        // of host memory
  // Of the device's own memory, where the network reaches that.
  std::unique_ptr<transport::Region> direct;
};

struct Memory : Object {
  static constexpr Tag kTag = Tag::memory;
  Memory(void* d, size_t b, int t) : Object(kTag), data(d), bytes(b), type(t) {}
  void* data;
  size_t bytes;
  int type;  // kPtrHost, …
  // Messages that are not on their way yet look whether it still is: NCCL that gives up takes its
  // buffers away first, and closes then.
  std::shared_ptr<Registration> known = std::make_shared<Registration>();

  [[nodiscard]] bool holds(const void* p, size_t n) const {
    const auto at = reinterpret_cast<uintptr_t>(p), base = reinterpret_cast<uintptr_t>(data);
    return at >= base && n <= bytes && at - base <= bytes - n;
  }
  [[nodiscard]] DeviceLane* lane() const { return known->of_device.get(); }
  [[nodiscard]] bool is_direct() const { return known->direct != nullptr; }
};

namespace detail {
inline constinit std::atomic<uint32_t> g_buffers_taken{0};
}
// Counts what deregMr was given, so that a look at every message's buffer is rare.
[[nodiscard]] inline uint32_t buffers_taken() {
  return detail::g_buffers_taken.load(std::memory_order_acquire);
}
inline void count_buffer_taken() {
  detail::g_buffers_taken.fetch_add(1, std::memory_order_release);
}

// NCCL's three protocols use buffers of different lengths. LL and LL128 are polled by the GPU while
// they are written, and hold no zero blocks; they travel as they are.
enum class Protocol : unsigned char { unknown, simple, polled };

[[nodiscard]] inline Protocol protocol_of(const TransferHint& hint, const Memory* memory,
                                          const FifoBytes& fifo) {
  // `proto` is stale for point-to-point operations: only the first five functions set it.
  constexpr uint32_t kCollectives = 0x1F, kSimple = 0x4;
  if (hint.op != ~0U && (hint.op & kCollectives) != 0 && hint.proto != ~0U) {
    return hint.proto == kSimple ? Protocol::simple : Protocol::polled;
  }
  if (memory == nullptr || memory->bytes == fifo.simple) {
    return Protocol::unknown;
  }
  return memory->bytes == fifo.ll || memory->bytes == fifo.ll128 ? Protocol::polled
                                                                 : Protocol::unknown;
}

}  // namespace prunex::nccl

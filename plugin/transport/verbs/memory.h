// SPDX-License-Identifier: Apache-2.0
// Memory that the devices of a transport may read and write.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "plugin/transport/verbs/device.h"

namespace prunex::transport::verbs {

enum class Order : uint8_t { strict, relaxed };  // of the bytes of one write, to who watches them

struct DmaBuf {
  int fd = -1;
  uint64_t offset = 0;
};

// A range, registered on every one of `devices`; deregistered with the last who holds it: whoever
// asked for it, and the operations in flight that use it.
class Memory {
 public:
  using Devices = std::span<const std::shared_ptr<Device>>;
  // said: the bytes that an error speaks of; 0: `bytes`.
  [[nodiscard]] static Result<std::shared_ptr<const Memory>> open(Devices devices, void* data,
                                                                  size_t bytes, Order order,
                                                                  size_t said = 0);
  [[nodiscard]] static Result<std::shared_ptr<const Memory>> open(Devices devices,
                                                                  const DmaBuf& buffer, void* data,
                                                                  size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] bool holds(const void* data, size_t bytes) const;
  [[nodiscard]] uint32_t local_key(size_t rail) const { return parts_[rail].region->lkey; }
  [[nodiscard]] uint32_t remote_key(size_t rail) const { return parts_[rail].region->rkey; }
  [[nodiscard]] Order order() const { return order_; }
  [[nodiscard]] bool on_device() const { return on_device_; }  // the processor does not reach it

 private:
  Memory(void* data, size_t bytes, Order order, bool on_device)
      : begin_(reinterpret_cast<uintptr_t>(data)),
        bytes_(bytes),
        order_(order),
        on_device_(on_device) {}

  struct Part {
    std::shared_ptr<Device> device;
    ibv_mr* region = nullptr;
  };
  uintptr_t begin_;
  size_t bytes_;
  Order order_;
  bool on_device_;
  std::vector<Part> parts_;  // as `devices`
};

}  // namespace prunex::transport::verbs

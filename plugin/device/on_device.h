// SPDX-License-Identifier: Apache-2.0
// Makes a device the calling thread's for a while. Threads belong to others: what they had comes
// back, and a thread that never chose a device gets no context on the first one by that.
#pragma once
#include "kernels/cuda/table.h"

namespace prunex::device {

// The driver's functions for a thread's context; results are CUresult (0: success).
struct DriverContexts {
  int (*current)(void** context) = nullptr;  // null: the thread has none
  int (*retain)(void** primary, int device) = nullptr;
  int (*push)(void* context) = nullptr;
  int (*pop)(void** context) = nullptr;
};
// Of the driver that this process has loaded; null: none. Tests put theirs in its place.
[[nodiscard]] const DriverContexts* driver_contexts();
void replace_driver_contexts(const DriverContexts* others);

class OnDevice {
 public:
  OnDevice(const cuda::Table& table, int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  [[nodiscard]] int error() const { return error_; }  // cudaError_t

 private:
  [[nodiscard]] bool push(int device);

  const cuda::Table& table_;
  const DriverContexts* pushed_ = nullptr;
  int before_ = 0, error_ = 0;
  bool moved_ = false;
};

}  // namespace prunex::device

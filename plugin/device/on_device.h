// SPDX-License-Identifier: Apache-2.0
// Makes a device the calling thread's for a while. Threads belong to others: what they had comes
// back.
#pragma once
#include "kernels/cuda/table.h"

namespace prunex::device {

class OnDevice {
 public:
  OnDevice(const cuda::Table& table, int device) : table_(table), device_(device) {
    (void)table_.get_device(&before_);
    if (before_ != device_) {
      (void)table_.set_device(device_);
    }
  }
  ~OnDevice() {
    if (before_ != device_) {
      (void)table_.set_device(before_);
    }
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const cuda::Table& table_;
  const int device_;
  int before_ = -1;
};

}  // namespace prunex::device

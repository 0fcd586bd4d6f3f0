// SPDX-License-Identifier: Apache-2.0
// Ranks that speak the C API only, with device buffers on the stand-ins.
#pragma once
#include <gtest/gtest.h>

#include "plugin/device/backend.h"
#include "plugin/device/nccl_library.h"
#include "tests/api/api_world.h"
#include "tests/device/fake_cuda.h"

namespace prunex::test {

class DeviceApi : public testing::Test {
 protected:
  DeviceApi() {
    auto opened = device::open_nccl(PRUNEX_STANDIN_NCCL);
    EXPECT_TRUE(opened) << opened.error().text;
    nccl_ = *opened;
    use(fake_cuda());
  }
  ~DeviceApi() override { device::replace_backend(nullptr, nullptr); }
  void use(const cuda::Table& table) { device::replace_backend(&table, &nccl_); }
  device::NcclApi nccl_;
};

struct OnDevice {
  explicit OnDevice(size_t count) : data(reinterpret_cast<float*>(device_memory(count * 4))) {}
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { free_device_memory(data); }
  float* data;
};

}  // namespace prunex::test

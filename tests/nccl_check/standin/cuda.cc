// SPDX-License-Identifier: Apache-2.0
// libprunex-cuda.so over host memory.
#include "tests/device/fake_cuda.h"

extern "C" __attribute__((visibility("default"))) const prunex::cuda::Table* prunex_cuda_table(
    uint32_t, uint32_t) {
  return &prunex::test::fake_cuda();
}

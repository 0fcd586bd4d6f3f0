// SPDX-License-Identifier: Apache-2.0
// Internal to the stand-in: what its memory, its streams and its table share.
#pragma once
#include <cuda_runtime_api.h>

#include "tests/allocated/allocated.h"
#include "tests/device/fake_cuda.h"

namespace prunex::test {

[[nodiscard]] cudaError_t fault_of(FakeCall call);
void wait_while_held(const void* to);
void count_allocation(int by);
// Waits for a stream are counted.
void count_wait();
void count_default_use();
// The thread's last error, unless it is success.
cudaError_t failed(cudaError_t error);
// Device memory, or pinned.
[[nodiscard]] bool reaches(const void* p);
// Calls that would end somebody's capture of a graph in global mode.
[[nodiscard]] bool ends_capture();

}  // namespace prunex::test

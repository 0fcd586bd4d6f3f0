// SPDX-License-Identifier: Apache-2.0
// The CUDA library and NCCL of this process, each opened when it is first needed, and tried again
// where that failed; tests put others in their place.
#pragma once
#include "kernels/cuda/table.h"
#include "plugin/base/result.h"
#include "plugin/device/nccl_library.h"

namespace prunex::device {

[[nodiscard]] Result<const cuda::Table*> cuda_table();
[[nodiscard]] Result<const NcclApi*> nccl_api();

// Both, and kernels for the calling thread's device.
[[nodiscard]] Result<> device_ready();

// For tests, while no communicator exists. Null: as found.
void replace_backend(const cuda::Table* table, const NcclApi* nccl);

enum class Memory : uint8_t { host, device };
struct Place {
  Memory memory = Memory::host;
  int device = -1;
};

// Where the buffers of a call lie. Null pointers are not looked at. Both on one device or both on
// the host; pinned memory counts as the host's, managed memory as the device's. Costs nothing in
// processes without CUDA.
[[nodiscard]] Result<Place> place_of(const void* send, const void* recv);
// Of one array; `name` for messages.
[[nodiscard]] Result<Place> place_of_one(const void* p, const char* name);

// An error of the table's functions, in words that fit a forked child, too.
[[nodiscard]] Result<> check_cuda(const cuda::Table& table, int error, const char* what);

}  // namespace prunex::device

// SPDX-License-Identifier: Apache-2.0
// Internal to libprunex-cuda: the table's functions of the machine (kernels/cuda/table.h).
#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/table.h"

namespace prunex::cuda {

// 0 where the driver does not say.
[[nodiscard]] int attribute(cudaDeviceAttr which, int device);

int probe(Probe* out);
int device_facts(int device, DeviceFacts* out);
int pointer_facts(const void* p, PointerFacts* out);
const char* error_text(int error);
int set_device(int device);
int get_device(int* device);
int allocate(void** out, size_t bytes);
int allocate_pinned(void** out, size_t bytes);
int deallocate(void* p);
int deallocate_pinned(void* p);
int export_dmabuf(const void* p, size_t bytes, int* fd, uint64_t* offset);
int flush_remote_writes();
int stream_create(void** out);
int stream_destroy(void* stream);
int stream_synchronize(void* stream);
int stream_capturing(void* stream, int* capturing);
int event_create(void** out);
int event_destroy(void* event);
int event_record(void* event, void* stream);
int event_done(void* event, int* done);
int stream_wait(void* stream, void* event);
int copy(void* to, const void* from, size_t bytes, void* stream);
int fill(void* to, int byte, size_t bytes, void* stream);

}  // namespace prunex::cuda

// SPDX-License-Identifier: Apache-2.0
// libprunex-cuda.so over host memory, and CUDA's own calls for tests in Python.
#include "tests/device/fake_cuda.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using prunex::test::fake_cuda;

EXPORT const prunex::cuda::Table* prunex_cuda_table(uint32_t, uint32_t) { return &fake_cuda(); }

EXPORT void* standin_allocate(size_t bytes) {
  void* out = nullptr;
  return fake_cuda().allocate(&out, bytes) == 0 ? out : nullptr;
}
EXPORT int standin_free(void* memory) { return fake_cuda().deallocate(memory); }
EXPORT int standin_copy(void* to, const void* from, size_t bytes, void* stream) {
  return fake_cuda().copy(to, from, bytes, stream);
}
// Copies wait until they are let go.
EXPORT void standin_hold(int hold) { prunex::test::hold_copies(hold != 0); }

EXPORT void* standin_stream() {
  void* out = nullptr;
  return fake_cuda().stream_create(&out) == 0 ? out : nullptr;
}
EXPORT int standin_stream_end(void* stream) { return fake_cuda().stream_destroy(stream); }
EXPORT int standin_synchronize(void* stream) { return fake_cuda().stream_synchronize(stream); }

// An event recorded on the stream.
EXPORT void* standin_event(void* stream) {
  void* out = nullptr;
  return fake_cuda().event_create(&out) == 0 && fake_cuda().event_record(out, stream) == 0
             ? out
             : nullptr;
}
EXPORT int standin_event_done(void* event) {
  int done = 0;
  return fake_cuda().event_done(event, &done) == 0 ? done : -1;
}
EXPORT int standin_event_end(void* event) { return fake_cuda().event_destroy(event); }
EXPORT int standin_wait_event(void* stream, void* event) {
  return fake_cuda().stream_wait(stream, event);
}

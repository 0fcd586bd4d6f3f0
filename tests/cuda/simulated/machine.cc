// SPDX-License-Identifier: Apache-2.0
// Devices, their memory, and faults on order.
#include <cuda_runtime_api.h>
#include <fcntl.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>

#include "tests/device/fake_state.h"

namespace prunex::test {
namespace {

constexpr int kDevices = 4, kProcessors = 2;
constexpr size_t kMostMemory = size_t{1} << 40;

struct Allocation {
  size_t bytes;
  cudaPointerAttributes attributes;
};
std::mutex memory_mutex;
std::map<uintptr_t, Allocation> memory;  // by base
std::atomic<int> alive{0}, made{0}, waits{0}, flushes{0}, default_uses{0}, arch{90};
std::atomic<cuda::RemoteWrites> remote_writes{cuda::RemoteWrites::never};
std::atomic<bool> exports{false};
std::array<std::atomic<int>, kFakeCalls> faults{};
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t remember(void* p, size_t bytes, cudaMemoryType type) {
  const std::lock_guard lock(memory_mutex);
  memory[reinterpret_cast<uintptr_t>(p)] = {bytes + 1, {type, current_device}};
  return cudaSuccess;
}
bool forget(void* p) {
  const std::lock_guard lock(memory_mutex);
  return memory.erase(reinterpret_cast<uintptr_t>(p)) != 0;
}

// Without room to spare at its end, so that a sanitizer sees one byte too many.
void* aligned_memory(size_t bytes) {
  void* p = nullptr;
  if (::posix_memalign(&p, 256, bytes != 0 ? bytes : 1) != 0) {
    std::abort();
  }
  std::memset(p, 0xc5, bytes);
  return p;
}

cudaError_t allocate(void** out, size_t bytes, FakeCall call, cudaMemoryType type) {
  const Uncounted uncounted_here;
  if (ends_capture()) {
    return failed(cudaErrorStreamCaptureUnsupported);
  }
  if (bytes > kMostMemory) {
    return failed(cudaErrorMemoryAllocation);
  }
  if (const cudaError_t fault = fault_of(call); fault != cudaSuccess) {
    return failed(fault);
  }
  *out = aligned_memory(bytes);
  count_allocation(1);
  return remember(*out, bytes, type);
}

cudaError_t release(void* p) {
  const Uncounted uncounted_here;
  if (ends_capture()) {
    return failed(cudaErrorStreamCaptureUnsupported);
  }
  if (p == nullptr) {
    return cudaSuccess;
  }
  if (!forget(p)) {
    return failed(cudaErrorInvalidValue);
  }
  std::free(p);
  count_allocation(-1);
  return cudaSuccess;
}

int export_range(void* fd, uintptr_t at, size_t, int, unsigned long long) {
  if (!exports || !reaches(reinterpret_cast<const void*>(at + 4095))) {
    return cudaErrorNotSupported;
  }
  *static_cast<int*>(fd) = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return cudaSuccess;
}

}  // namespace

cudaError_t failed(cudaError_t error) {
  last_error = error != cudaSuccess ? error : last_error;
  return error;
}
cudaError_t fault_of(FakeCall call) {
  return static_cast<cudaError_t>(faults[static_cast<size_t>(call)].load());
}
void fail_calls(FakeCall call, int error) { faults[static_cast<size_t>(call)] = error; }

void count_allocation(int by) {
  alive += by;
  made += by > 0 ? by : 0;
}
void count_wait() { ++waits; }
void count_default_use() { ++default_uses; }
FakeCounts fake_counts() { return {alive, made, waits, flushes, default_uses}; }

bool reaches(const void* p) {
  cudaPointerAttributes attributes{};
  (void)cudaPointerGetAttributes(&attributes, p);
  return attributes.type != cudaMemoryTypeUnregistered;
}

std::byte* device_memory(size_t bytes) {
  void* p = aligned_memory(bytes);
  (void)remember(p, bytes, cudaMemoryTypeDevice);
  return static_cast<std::byte*>(p);
}
void free_device_memory(void* p) {
  (void)forget(p);
  std::free(p);
}
uint64_t pinned_bytes() {
  const std::lock_guard lock(memory_mutex);
  uint64_t sum = 0;
  for (const auto& [base, one] : memory) {
    sum += one.attributes.type == cudaMemoryTypeHost ? one.bytes - 1 : 0;
  }
  return sum;
}

void allow_dmabuf(bool allow) { exports = allow; }
void see_remote_writes(cuda::RemoteWrites how) { remote_writes = how; }
void see_arch(int capability) { arch = capability; }

}  // namespace prunex::test

// CUDA's own names.
using namespace prunex::test;  // NOLINT: this file defines what others call by CUDA's names

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    default:
      return "an error";
  }
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) {
    return failed(cudaErrorInvalidDevice);
  }
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  if (device < 0 || device >= kDevices) {
    return failed(cudaErrorInvalidDevice);
  }
  *out = {};
  std::snprintf(out->name, sizeof out->name, "simulated GPU");
  out->major = arch / 10;
  out->minor = arch % 10;
  out->multiProcessorCount = kProcessors;
  out->totalGlobalMem = size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  const prunex::cuda::RemoteWrites how = remote_writes;
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device);
      error != cudaSuccess) {
    return error;
  }
  switch (which) {
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 1'000'000;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = 1024;
      break;
    case cudaDevAttrL2CacheSize:
      *value = 1 << 20;
      break;
    case cudaDevAttrGPUDirectRDMASupported:
      *value = how != prunex::cuda::RemoteWrites::never ? 1 : 0;
      break;
    case cudaDevAttrGPUDirectRDMAFlushWritesOptions:
      *value = how == prunex::cuda::RemoteWrites::flushed ? 1 : 0;
      break;
    case cudaDevAttrGPUDirectRDMAWritesOrdering:
      *value = how == prunex::cuda::RemoteWrites::ordered ? cudaGPUDirectRDMAWritesOrderingOwner
                                                          : cudaGPUDirectRDMAWritesOrderingNone;
      break;
  }
  return cudaSuccess;
}
// It lies nowhere.
cudaError_t cudaDeviceGetPCIBusId(char*, int, int) { return failed(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget,
                                               cudaFlushGPUDirectRDMAWritesScope) {
  ++flushes;
  return failed(fault_of(FakeCall::flush));
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** found, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* how) {
  *found = reinterpret_cast<void*>(&export_range);
  *how = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) {
  const std::lock_guard lock(memory_mutex);
  *out = {cudaMemoryTypeUnregistered, -1};
  const auto at = reinterpret_cast<uintptr_t>(p);
  auto after = memory.upper_bound(at);
  if (after != memory.begin()) {
    const auto& [base, rest] = *std::prev(after);
    if (at < base + rest.bytes) {
      *out = rest.attributes;
    }
  }
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* unused, size_t* total) {
  *unused = *total = size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** out, size_t bytes) {
  return allocate(out, bytes, FakeCall::allocate, cudaMemoryTypeDevice);
}
cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned) {
  return allocate(out, bytes, FakeCall::allocate_pinned, cudaMemoryTypeHost);
}
cudaError_t cudaFree(void* p) { return release(p); }
cudaError_t cudaFreeHost(void* p) { return release(p); }
cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  return remember(p, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaHostUnregister(void* p) {
  return forget(p) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
// At once: streams that do not wait for the default one are not waited for either.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (ends_capture()) {
    return failed(cudaErrorStreamCaptureUnsupported);
  }
  count_default_use();
  if (bytes != 0) {
    std::memcpy(to, from, bytes);
  }
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int byte, size_t bytes) {
  std::memset(to, byte, bytes);
  return cudaSuccess;
}

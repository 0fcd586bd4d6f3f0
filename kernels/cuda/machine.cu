// SPDX-License-Identifier: Apache-2.0
// The machine: devices, memory, streams and events, as the table offers them.
#include "kernels/cuda/machine.cuh"

#include <unistd.h>

#include <cstdio>

#include "kernels/cuda/launch.cuh"

namespace prunex::cuda {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  return apart([&] { return cudaDeviceGetAttribute(&value, which, device); }) == cudaSuccess ? value
                                                                                             : 0;
}

int probe(Probe* out) {
  *out = {};
  out->runtime = CUDART_VERSION;
  if (told(cudaDriverGetVersion(&out->driver)) != cudaSuccess) {
    out->driver = 0;
  }
  out->status = told(cudaGetDeviceCount(&out->devices));
  if (out->status != cudaSuccess) {
    out->devices = 0;
  }
  return cudaSuccess;
}

// Where both hold, the flush is asked for when NCCL asks: it knows paths on which the order of
// writes does not reach (data and what says that they came by different buses).
static RemoteWrites remote_writes(int device) {
  const int ways = attribute(cudaDevAttrGPUDirectRDMAFlushWritesOptions, device);
  const int order = attribute(cudaDevAttrGPUDirectRDMAWritesOrdering, device);
  return (ways & cudaFlushGPUDirectRDMAWritesOptionHost) != 0 ? RemoteWrites::flushed
         : order >= cudaGPUDirectRDMAWritesOrderingOwner      ? RemoteWrites::ordered
                                                              : RemoteWrites::never;
}

int device_facts(int device, DeviceFacts* out) {
  cudaDeviceProp properties;
  const cudaError_t error = told(cudaGetDeviceProperties(&properties, device));
  if (error != cudaSuccess) {
    return error;
  }
  *out = {};
  std::snprintf(out->name, sizeof out->name, "%.63s", properties.name);
  if (told(cudaDeviceGetPCIBusId(out->pci, sizeof out->pci, device)) != cudaSuccess) {
    out->pci[0] = '\0';
  }
  out->arch = properties.major * 10 + properties.minor;
  out->sms = properties.multiProcessorCount;
  out->memory_bytes = properties.totalGlobalMem;
  const auto khz = static_cast<uint64_t>(attribute(cudaDevAttrMemoryClockRate, device));
  const auto bits = static_cast<uint64_t>(attribute(cudaDevAttrGlobalMemoryBusWidth, device));
  out->bytes_per_second = khz * 1000 * 2 * bits / 8;
  out->remote_writes = attribute(cudaDevAttrGPUDirectRDMASupported, device) != 0
                           ? remote_writes(device)
                           : RemoteWrites::never;
  return cudaSuccess;
}

int pointer_facts(const void* p, PointerFacts* out) {
  cudaPointerAttributes attributes{};
  const cudaError_t error = told(cudaPointerGetAttributes(&attributes, p));
  if (error != cudaSuccess) {
    return error;
  }
  *out = {PointerKind::host, -1};
  switch (attributes.type) {
    case cudaMemoryTypeDevice:
      *out = {PointerKind::device, attributes.device};
      break;
    case cudaMemoryTypeManaged:
      *out = {PointerKind::managed, attributes.device};
      break;
    case cudaMemoryTypeHost:
      *out = {PointerKind::pinned, attributes.device};
      break;
    default:
      break;
  }
  return cudaSuccess;
}

const char* error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
int set_device(int device) { return told(cudaSetDevice(device)); }
int get_device(int* device) { return told(cudaGetDevice(device)); }
int allocate(void** out, size_t bytes) {
  return apart([&] { return cudaMalloc(out, bytes); });
}
int allocate_pinned(void** out, size_t bytes) {
  return apart(
      [&] { return cudaHostAlloc(out, bytes, cudaHostAllocPortable | cudaHostAllocMapped); });
}
int deallocate(void* p) {
  return apart([&] { return cudaFree(p); });
}
int deallocate_pinned(void* p) {
  return apart([&] { return cudaFreeHost(p); });
}
// The driver's own function; nothing links against the driver. Whole pages of the host are
// exported.
int export_dmabuf(const void* p, size_t bytes, int* fd, uint64_t* offset) {
  constexpr unsigned kSince = 11070;  // the driver's version that has it
  constexpr int kDmabuf = 1;          // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
  constexpr int kFound = 0;           // of the driver's results, and of the look-up's
  using Export = int (*)(void* handle, uintptr_t at, size_t bytes, int kind, unsigned long long);
  void* found = nullptr;
  cudaDriverEntryPointQueryResult how{};
  const cudaError_t error = told(cudaGetDriverEntryPointByVersion(
      "cuMemGetHandleForAddressRange", &found, kSince, cudaEnableDefault, &how));
  if (error != cudaSuccess || how != cudaDriverEntryPointSuccess || found == nullptr) {
    return error != cudaSuccess ? error : cudaErrorNotSupported;
  }
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<uintptr_t>(p);
  const uintptr_t begin = at / page * page;
  const uintptr_t end = (at + bytes + page - 1) / page * page;
  *offset = at - begin;
  return reinterpret_cast<Export>(found)(fd, begin, end - begin, kDmabuf, 0) == kFound
             ? cudaSuccess
             : cudaErrorNotSupported;
}
int flush_remote_writes() {
  return told(cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                                 cudaFlushGPUDirectRDMAWritesToOwner));
}
int stream_create(void** out) {
  cudaStream_t stream = nullptr;
  const int error = apart([&] {
    int least = 0, greatest = 0;
    const cudaError_t known = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    return known != cudaSuccess
               ? known
               : cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest);
  });
  *out = stream;
  return error;
}
int stream_destroy(void* stream) {
  return apart([&] { return cudaStreamDestroy(stream_of(stream)); });
}
int stream_synchronize(void* stream) {
  return apart([&] { return cudaStreamSynchronize(stream_of(stream)); });
}
int stream_capturing(void* stream, int* capturing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const int error = apart([&] { return cudaStreamIsCapturing(stream_of(stream), &status); });
  *capturing = status != cudaStreamCaptureStatusNone ? 1 : 0;
  return error;
}

int event_create(void** out) {
  cudaEvent_t event = nullptr;
  const int error = apart([&] { return cudaEventCreateWithFlags(&event, cudaEventDisableTiming); });
  *out = event;
  return error;
}
int event_destroy(void* event) {
  return apart([&] { return cudaEventDestroy(static_cast<cudaEvent_t>(event)); });
}
int event_record(void* event, void* stream) {
  return told(cudaEventRecord(static_cast<cudaEvent_t>(event), stream_of(stream)));
}
int event_done(void* event, int* done) {
  const int error = apart([&] { return cudaEventQuery(static_cast<cudaEvent_t>(event)); });
  *done = error == cudaSuccess ? 1 : 0;
  return error == cudaErrorNotReady ? cudaSuccess : error;
}
int stream_wait(void* stream, void* event) {
  return told(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(event), 0));
}
int copy(void* to, const void* from, size_t bytes, void* stream) {
  return told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)));
}
int fill(void* to, int byte, size_t bytes, void* stream) {
  return told(cudaMemsetAsync(to, byte, bytes, stream_of(stream)));
}

}  // namespace prunex::cuda

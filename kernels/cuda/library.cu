// SPDX-License-Identifier: Apache-2.0
// The exported table: the machine, plans, and the launchers of the other files.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "kernels/cuda/launch.cuh"

namespace prunex::cuda {
namespace {

int probe(Probe* out) {
  *out = {};
  out->runtime = CUDART_VERSION;
  if (cudaDriverGetVersion(&out->driver) != cudaSuccess) {
    out->driver = 0;
  }
  out->status = cudaGetDeviceCount(&out->devices);
  if (out->status != cudaSuccess) {
    out->devices = 0;
    static_cast<void>(cudaGetLastError());
  }
  return cudaSuccess;
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  return apart([&] { return cudaDeviceGetAttribute(&value, which, device); }) == cudaSuccess ? value
                                                                                             : 0;
}

// Where both hold, the flush is asked for when NCCL asks: it knows paths on which the order of
// writes does not reach (data and what says that they came by different buses).
RemoteWrites remote_writes(int device) {
  const int ways = attribute(cudaDevAttrGPUDirectRDMAFlushWritesOptions, device);
  const int order = attribute(cudaDevAttrGPUDirectRDMAWritesOrdering, device);
  return (ways & cudaFlushGPUDirectRDMAWritesOptionHost) != 0 ? RemoteWrites::flushed
         : order >= cudaGPUDirectRDMAWritesOrderingOwner      ? RemoteWrites::ordered
                                                              : RemoteWrites::never;
}

int device_facts(int device, DeviceFacts* out) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) {
    return error;
  }
  *out = {};
  std::snprintf(out->name, sizeof out->name, "%.63s", properties.name);
  if (cudaDeviceGetPCIBusId(out->pci, sizeof out->pci, device) != cudaSuccess) {
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
  const cudaError_t error = cudaPointerGetAttributes(&attributes, p);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
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
int set_device(int device) { return cudaSetDevice(device); }
int get_device(int* device) { return cudaGetDevice(device); }
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
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuMemGetHandleForAddressRange", &found, kSince, cudaEnableDefault, &how);
  if (error != cudaSuccess || how != cudaDriverEntryPointSuccess || found == nullptr) {
    static_cast<void>(cudaGetLastError());
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
  return cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                            cudaFlushGPUDirectRDMAWritesToOwner);
}
int pin(void* host, size_t bytes) {
  return apart([&] {
    return cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  });
}
int unpin(void* host) {
  return apart([&] { return cudaHostUnregister(host); });
}

int stream_create(void** out) {
  cudaStream_t stream = nullptr;
  const int error =
      apart([&] { return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); });
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
int event_destroy(void* event) { return cudaEventDestroy(static_cast<cudaEvent_t>(event)); }
int event_record(void* event, void* stream) {
  return cudaEventRecord(static_cast<cudaEvent_t>(event), stream_of(stream));
}
int event_done(void* event, int* done) {
  const int error = apart([&] { return cudaEventQuery(static_cast<cudaEvent_t>(event)); });
  *done = error == cudaSuccess ? 1 : 0;
  return error == cudaErrorNotReady ? cudaSuccess : error;
}
int stream_wait(void* stream, void* event) {
  return cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(event), 0);
}
int copy(void* to, const void* from, size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream));
}
int fill(void* to, int byte, size_t bytes, void* stream) {
  return cudaMemsetAsync(to, byte, bytes, stream_of(stream));
}

int free_plan(Plan* plan) {
  if (plan == nullptr) {
    return cudaSuccess;
  }
  int error = cudaSuccess;
  const KeepArrays& keeps = plan->keeps;
  for (const void* p :
       {static_cast<const void*>(plan->tiles), static_cast<const void*>(plan->words),
        static_cast<const void*>(keeps.tensors), static_cast<const void*>(keeps.places),
        static_cast<const void*>(keeps.tensor_of_row),
        static_cast<const void*>(keeps.tensor_of_word)}) {
    const cudaError_t freed = cudaFree(const_cast<void*>(p));
    error = error != cudaSuccess ? error : freed;
  }
  delete plan;
  return error;
}

int plan_destroy(Plan* plan) {
  return apart([&] { return free_plan(plan); });
}

// Everything that a later launch might allocate or load is there when this returns.
int prepare_all() {
  for (const auto step : {prepare_moves, prepare_reductions, prepare_blocks, prepare_keeps}) {
    const int error = step();
    if (error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

int fill_plan(Plan& plan, size_t tiles, size_t words) {
  int error = cudaGetDevice(&plan.device);
  if (error != cudaSuccess) {
    return error;
  }
  plan.sms = static_cast<uint32_t>(attribute(cudaDevAttrMultiProcessorCount, plan.device));
  const int arch = attribute(cudaDevAttrComputeCapabilityMajor, plan.device) * 10 +
                   attribute(cudaDevAttrComputeCapabilityMinor, plan.device);
  plan.tuning = tuning_of(static_cast<uint32_t>(arch));
  plan.num_tiles = tiles;
  plan.num_words = words;
  error = prepare_all();
  if (error == cudaSuccess && tiles != 0) {
    error = cudaMalloc(&plan.tiles, tiles * sizeof(Tile));
  }
  if (error == cudaSuccess && words != 0) {
    error = cudaMalloc(&plan.words, words * sizeof(Word));
  }
  return error;
}

int finish_plan(Plan* plan, int error, Plan** out) {
  if (error != cudaSuccess) {
    plan_destroy(plan);
    return error;
  }
  *out = plan;
  return cudaSuccess;
}

int make_plan(const PlanImage* image, Plan** out) {
  if (image->num_tiles > ~uint32_t{0}) {
    return cudaErrorInvalidValue;
  }
  Plan* plan = new (std::nothrow) Plan{};
  if (plan == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  int error = fill_plan(*plan, image->num_tiles, image->num_words);
  if (error == cudaSuccess && image->num_tiles != 0) {
    error = cudaMemcpy(plan->tiles, image->tiles, image->num_tiles * sizeof(Tile),
                       cudaMemcpyHostToDevice);
  }
  if (error == cudaSuccess && image->num_words != 0) {
    error = cudaMemcpy(plan->words, image->words, image->num_words * sizeof(Word),
                       cudaMemcpyHostToDevice);
  }
  return finish_plan(plan, error, out);
}

int plan_create(const PlanImage* image, Plan** out) {
  return apart([&] { return make_plan(image, out); });
}

int plan_reserve(uint64_t count, uint32_t tile_elements, Plan** out) {
  if (count >= uint64_t{1} << 32 || tile_elements % 32 != 0 || tile_elements == 0 ||
      tile_elements > kMaxTile) {
    return cudaErrorInvalidValue;
  }
  Plan* plan = new (std::nothrow) Plan{};
  if (plan == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  plan->count = count;
  plan->tile_elements = tile_elements;
  const size_t tiles = (count + tile_elements - 1) / tile_elements;
  return apart(
      [&] { return finish_plan(plan, fill_plan(*plan, tiles, (count + 31) / 32 + 1), out); });
}

template <class T>
int to_device(const T*& array, const T* from, size_t n) {
  void* memory = nullptr;
  int error = cudaMalloc(&memory, n != 0 ? n * sizeof(T) : 1);
  array = static_cast<const T*>(memory);
  return error != cudaSuccess || n == 0
             ? error
             : cudaMemcpy(memory, from, n * sizeof(T), cudaMemcpyHostToDevice);
}

int make_keep_plan(const KeepImage* image, Plan** out) {
  if (image->num_tiles > ~uint32_t{0}) {
    return cudaErrorInvalidValue;
  }
  Plan* plan = new (std::nothrow) Plan{};
  if (plan == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  plan->num_rows = image->num_rows;
  int error = fill_plan(*plan, image->num_tiles, image->num_words);
  const KeepArrays& from = image->arrays;
  KeepArrays& to = plan->keeps;
  error = error != cudaSuccess ? error : to_device(to.tensors, from.tensors, image->num_tensors);
  error = error != cudaSuccess ? error : to_device(to.places, from.places, image->num_tiles);
  error = error != cudaSuccess ? error
                               : to_device(to.tensor_of_row, from.tensor_of_row, image->num_rows);
  error = error != cudaSuccess
              ? error
              : to_device(to.tensor_of_word, from.tensor_of_word, image->num_words);
  return finish_plan(plan, error, out);
}

int plan_reserve_keeps(const KeepImage* image, Plan** out) {
  return apart([&] { return make_keep_plan(image, out); });
}

size_t plan_tiles(const Plan* plan) { return plan->num_tiles; }
size_t scratch_bytes() { return sizeof(AuditScratch); }

Table make_table() {
  Table t{};
  t.bytes = sizeof(Table);
  t.version = kTableVersion;
  t.release = PRUNEX_VERSION;
  t.archs = PRUNEX_CUDA_ARCHS;
  t.probe = probe;
  t.device_facts = device_facts;
  t.pointer_facts = pointer_facts;
  t.error_text = error_text;
  t.set_device = set_device;
  t.get_device = get_device;
  t.allocate = allocate;
  t.allocate_pinned = allocate_pinned;
  t.deallocate = deallocate;
  t.deallocate_pinned = deallocate_pinned;
  t.export_dmabuf = export_dmabuf;
  t.flush_remote_writes = flush_remote_writes;
  t.pin = pin;
  t.unpin = unpin;
  t.stream_create = stream_create;
  t.stream_destroy = stream_destroy;
  t.stream_synchronize = stream_synchronize;
  t.stream_capturing = stream_capturing;
  t.event_create = event_create;
  t.event_destroy = event_destroy;
  t.event_record = event_record;
  t.event_done = event_done;
  t.stream_wait = stream_wait;
  t.copy = copy;
  t.fill = fill;
  t.plan_create = plan_create;
  t.plan_destroy = plan_destroy;
  t.plan_reserve = plan_reserve;
  t.plan_reserve_keeps = plan_reserve_keeps;
  t.plan_tiles = plan_tiles;
  t.scratch_bytes = scratch_bytes;
  t.pack = pack;
  t.unpack = unpack;
  t.reduce = reduce;
  t.block_scratch_bytes = block_scratch_bytes;
  t.pack_blocks = pack_blocks;
  t.unpack_blocks = unpack_blocks;
  t.mask_scratch_bytes = mask_scratch_bytes;
  t.index_from_bytes = index_from_bytes;
  t.runs_from_bytes = runs_from_bytes;
  t.plan_from_bytes = plan_from_bytes;
  t.keep_scratch_bytes = keep_scratch_bytes;
  t.plan_from_keeps = plan_from_keeps;
  t.norm_scratch_bytes = norm_scratch_bytes;
  t.norms = norms;
  t.top_k_scratch_bytes = top_k_scratch_bytes;
  t.top_k = top_k;
  return t;
}

}  // namespace
}  // namespace prunex::cuda

extern "C" __attribute__((visibility("default"))) const prunex::cuda::Table* prunex_cuda_table(
    uint32_t bytes, uint32_t version) {
  static const prunex::cuda::Table table = prunex::cuda::make_table();
  return bytes == table.bytes && version == table.version ? &table : nullptr;
}

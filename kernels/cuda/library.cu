// SPDX-License-Identifier: Apache-2.0
// The exported table, and plans.
#include <mutex>
#include <new>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/machine.cuh"

namespace prunex::cuda {
namespace {

// To the device by a stream of its own: the default one waits for others' kernels, which may wait
// for the caller, and a copy from pageable memory may still be under way when it returns.
class Upload {
 public:
  Upload() : error_(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)) {}
  ~Upload() {
    if (stream_ != nullptr) {
      cudaStreamDestroy(stream_);
    }
  }
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  template <class T>
  void copy(T* to, const T* from, size_t n) {
    if (error_ == cudaSuccess && n != 0) {
      error_ = cudaMemcpyAsync(to, from, n * sizeof(T), cudaMemcpyHostToDevice, stream_);
    }
  }
  // An array that did not exist.
  template <class T>
  void make(const T*& array, const T* from, size_t n) {
    T* memory = nullptr;
    if (error_ == cudaSuccess) {
      error_ = cudaMalloc(&memory, n != 0 ? n * sizeof(T) : 1);
    }
    array = memory;
    copy(memory, from, n);
  }
  int finish() {
    if (stream_ != nullptr) {
      const cudaError_t waited = cudaStreamSynchronize(stream_);
      error_ = error_ != cudaSuccess ? error_ : waited;
    }
    return error_;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaError_t error_;
};

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

int try_all(const Trial& trial) {
  int error = prepare_moves();
  for (const auto step : {prepare_blocks, prepare_index, prepare_keeps, prepare_scores}) {
    error = error != cudaSuccess ? error : step(trial);
  }
  return error != cudaSuccess ? error : prepare_reductions();
}

int prepare_device(void** memory) {
  Trial trial{};
  void* stream = nullptr;
  int error = cudaMalloc(&trial.memory, Trial::kBytes);
  if (error == cudaSuccess) {
    error = stream_create(&stream);
  }
  trial.stream = stream_of(stream);
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(trial.memory, 0, Trial::kBytes, trial.stream);
  }
  if (error == cudaSuccess) {
    error = try_all(trial);
  }
  if (stream != nullptr) {
    const int waited = cudaStreamSynchronize(trial.stream);
    error = error != cudaSuccess ? error : waited;
    stream_destroy(stream);
  }
  // The memory stays where all is well: freeing it waits for all that the device does.
  if (error != cudaSuccess) {
    cudaFree(trial.memory);
    return error;
  }
  *memory = trial.memory;
  return cudaSuccess;
}

int prepare() {
  constexpr int kDevices = 64;
  static std::mutex mutex;
  static void* prepared[kDevices + 1];  // what stays; the last: of devices beyond
  int device = 0;
  const int error = get_device(&device);
  if (error != cudaSuccess) {
    return error;
  }
  const std::lock_guard lock(mutex);
  void*& mine = prepared[device < kDevices ? device : kDevices];
  if (device < kDevices && mine != nullptr) {
    return cudaSuccess;
  }
  return apart([&mine] { return prepare_device(&mine); });
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
  error = prepare();
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
  if (error == cudaSuccess) {
    Upload upload;
    upload.copy(plan->tiles, image->tiles, image->num_tiles);
    upload.copy(plan->words, image->words, image->num_words);
    error = upload.finish();
  }
  return finish_plan(plan, error, out);
}

int plan_create(const PlanImage* image, Plan** out) {
  return apart([&] { return make_plan(image, out); });
}

int plan_reserve(uint64_t count, uint32_t tile_elements, Plan** out) {
  if (count > kMostCells || tile_elements % 32 != 0 || tile_elements == 0 ||
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
  if (error == cudaSuccess) {
    Upload upload;
    const KeepArrays& from = image->arrays;
    upload.make(plan->keeps.tensors, from.tensors, image->num_tensors);
    upload.make(plan->keeps.places, from.places, image->num_tiles);
    upload.make(plan->keeps.tensor_of_row, from.tensor_of_row, image->num_rows);
    upload.make(plan->keeps.tensor_of_word, from.tensor_of_word, image->num_words);
    error = upload.finish();
  }
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
  t.prepare = prepare;
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

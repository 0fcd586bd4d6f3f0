// SPDX-License-Identifier: Apache-2.0
// libprunex-cuda.so as libprunex opens it, and device memory for tests and benchmarks.
#pragma once
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/lower.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/tuning.h"

namespace prunex::tools {

// The table, or why there is none. TEST_CUDA_LIBRARY: the library's path.
struct CudaLibrary {
  const cuda::Table* table = nullptr;
  std::string missing;  // not empty: why tests on a device cannot run
  bool broken = false;  // the library itself is at fault
  cuda::DeviceFacts facts{};
};

inline CudaLibrary open_cuda_library() {
  CudaLibrary library;
  const char* path = std::getenv("TEST_CUDA_LIBRARY");
  void* handle = dlopen(path != nullptr ? path : "libprunex-cuda.so", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.missing = dlerror();
    library.broken = true;
    return library;
  }
  using TableFunction = decltype(&prunex_cuda_table);
  const auto get = reinterpret_cast<TableFunction>(dlsym(handle, "prunex_cuda_table"));
  library.table = get != nullptr ? get(sizeof(cuda::Table), cuda::kTableVersion) : nullptr;
  if (library.table == nullptr) {
    library.missing = "no table of this version";
    library.broken = true;
    return library;
  }
  cuda::Probe probe;
  library.table->probe(&probe);
  if (probe.devices == 0) {
    library.missing = std::string("no CUDA device: ") + library.table->error_text(probe.status) +
                      " (driver " + std::to_string(probe.driver) + ")";
    return library;
  }
  library.table->set_device(0);
  library.table->device_facts(0, &library.facts);
  return library;
}

inline const CudaLibrary& cuda_library() {
  static const CudaLibrary library = open_cuda_library();
  return library;
}

// Device memory whose first byte lies `shift` bytes behind a 256-byte boundary; without room to
// spare at its end, so that compute-sanitizer sees one byte too many.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes, size_t shift = 0) : bytes_(bytes), shift_(shift) {
    if (cudaMalloc(&base_, bytes + shift + (bytes + shift == 0 ? 1 : 0)) != cudaSuccess) {
      std::abort();
    }
  }
  DeviceMemory(const std::vector<std::byte>& from, size_t shift)
      : DeviceMemory(from.size(), shift) {
    put(from.data());
  }
  ~DeviceMemory() { cudaFree(base_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(base_) + shift_; }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data());
  }
  [[nodiscard]] size_t size() const { return bytes_; }
  // For all streams: the copy is done.
  void put(const void* from) const {
    if (cudaMemcpy(data(), from, bytes_, cudaMemcpyHostToDevice) != cudaSuccess ||
        cudaDeviceSynchronize() != cudaSuccess) {
      std::abort();
    }
  }
  void fill(int byte) const { cudaMemset(data(), byte, bytes_); }
  // Also waits for the device.
  [[nodiscard]] std::vector<std::byte> get() const {
    std::vector<std::byte> out(bytes_);
    if (cudaDeviceSynchronize() != cudaSuccess ||
        cudaMemcpy(out.data(), data(), bytes_, cudaMemcpyDeviceToHost) != cudaSuccess) {
      std::abort();
    }
    return out;
  }
  template <class T>
  [[nodiscard]] std::vector<T> get_as() const {
    const std::vector<std::byte> bytes = get();
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!out.empty()) {
      std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
    }
    return out;
  }

 private:
  void* base_ = nullptr;
  size_t bytes_, shift_;
};

class DevicePlan {
 public:
  DevicePlan(const Layout& layout, uint32_t tile) : lowered_(cuda::lower(layout, tile)) {
    const cuda::PlanImage image{lowered_.tiles.data(), lowered_.tiles.size(), lowered_.words.data(),
                                lowered_.words.size()};
    if (cuda_library().table->plan_create(&image, &plan_) != cudaSuccess) {
      std::abort();
    }
  }
  ~DevicePlan() { cuda_library().table->plan_destroy(plan_); }
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;

  [[nodiscard]] cuda::MoveCall call(DType type, const Slice& slice, const void* from, void* to,
                                    void* stream = nullptr) const {
    const cuda::TileSpan span = cuda::tiles_of(lowered_, slice.elem_begin, slice.elem_end);
    return {plan_,
            type,
            {slice.elem_begin, slice.elem_end, slice.kept_begin},
            static_cast<uint32_t>(span.first),
            static_cast<uint32_t>(span.last),
            from,
            to,
            nullptr,
            nullptr,
            stream};
  }
  [[nodiscard]] const cuda::Lowered& lowered() const { return lowered_; }

 private:
  cuda::Lowered lowered_;
  cuda::Plan* plan_ = nullptr;
};

}  // namespace prunex::tools

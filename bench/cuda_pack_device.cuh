// SPDX-License-Identifier: Apache-2.0
// cuda_pack_bench's device memory and clock: an error of CUDA ends the process with what failed.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "plugin/base/result.h"
#include "tools/cuda_device.cuh"

namespace prunex::bench {

using Bytes = std::vector<std::byte>;

inline const cuda::Table& table() { return *tools::cuda_library().table; }

[[noreturn]] inline void give_up(const std::string& what) {
  std::printf("cuda_pack_bench: %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);  // CUDA's own ends wait for a device that may not answer
}

inline void must(int error, const char* what) {
  if (error != 0) {
    give_up(strf("%s: %s", what, table().error_text(error)));
  }
}

class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    must(cudaMalloc(&data_, std::max<size_t>(bytes, 1)), "cudaMalloc");
  }
  ~Memory() { must(cudaFree(data_), "cudaFree"); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <class T = void>
  [[nodiscard]] T* at() const {
    return static_cast<T*>(data_);
  }
  void put(const Bytes& from) const {
    must(cudaMemcpy(data_, from.data(), bytes_, cudaMemcpyHostToDevice), "copy to the device");
  }
  void fill(int byte) const { must(cudaMemset(data_, byte, bytes_), "cudaMemset"); }
  [[nodiscard]] Bytes get() const {
    Bytes out(bytes_);
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    must(cudaMemcpy(out.data(), data_, bytes_, cudaMemcpyDeviceToHost), "copy from the device");
    return out;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// Launches of one round, on the i-th buffers.
using Launch = std::function<void(cudaStream_t, size_t set)>;

class Clock {
 public:
  Clock() {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    must(cudaEventCreate(&begin_), "cudaEventCreate");
    must(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Clock() {
    must(cudaEventDestroy(begin_), "cudaEventDestroy");
    must(cudaEventDestroy(end_), "cudaEventDestroy");
    must(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  // Seconds of a launch, over one round.
  double round(const Launch& launch, size_t sets) const {
    must(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (size_t i = 0; i < sets; ++i) {
      launch(stream_, i);
    }
    must(cudaEventRecord(end_, stream_), "cudaEventRecord");
    must(cudaEventSynchronize(end_), "a launch");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(ms) / 1000 / static_cast<double>(sets);
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

inline double median(std::vector<double> v) {
  std::ranges::sort(v);
  return v[v.size() / 2];
}

}  // namespace prunex::bench

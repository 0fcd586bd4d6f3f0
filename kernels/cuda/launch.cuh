// SPDX-License-Identifier: Apache-2.0
// Internal to libprunex-cuda: plans as the launchers see them. Only .cu files include this.
#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/table.h"
#include "kernels/cuda/tuning.h"

namespace prunex::cuda {

struct Plan {
  int device;
  uint32_t sms;
  Tuning tuning;
  Tile* tiles;  // of the device
  Word* words;  // of the device
  size_t num_tiles, num_words;
  uint64_t count;          // plan_reserve: elements
  uint32_t tile_elements;  // plan_reserve
  KeepArrays keeps;        // plan_reserve_keeps: of the device
  uint64_t num_rows;       // plan_reserve_keeps
};

// What the blocks of an auditing launch leave for the last one to add up.
inline constexpr uint32_t kMaxBlocks = 4096;
struct alignas(16) AuditScratch {
  uint32_t arrived;  // zero between launches
  uint32_t padding[3];
  AuditRecord of_block[kMaxBlocks];
};

[[nodiscard]] inline cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

// An error that its caller is told of is not found as the last one by whoever asks next.
inline cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
  return error;
}

// The error of this launch alone: the thread's last error may be somebody else's, and stays.
template <class... Parameters, class... Arguments>
[[nodiscard]] cudaError_t launch(void (*kernel)(Parameters...), uint32_t blocks, uint32_t threads,
                                 cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream;
  return told(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

[[nodiscard]] inline uint32_t blocks_for(const Plan& plan, uint64_t tiles) {
  const uint32_t blocks = grid_blocks(plan.tuning, plan.sms, tiles);
  return blocks < kMaxBlocks ? blocks : kMaxBlocks;
}

// To ask for a kernel's attributes loads it.
template <class... Kernels>
[[nodiscard]] int load_kernels(Kernels... kernels) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaSuccess;
  ((error = error != cudaSuccess ? error : cudaFuncGetAttributes(&attributes, kernels)), ...);
  return error;
}

// Zeroed memory of the device, for prepare_...(): CUB's kernels are loaded when they run.
struct Trial {
  static constexpr size_t kBytes = size_t{1} << 20;
  void* memory;
  cudaStream_t stream;
};

// move.cu
int pack(const MoveCall* call);
int unpack(const MoveCall* call);
int prepare_moves();
// reduce.cu
int reduce(const ReduceCall* call);
int prepare_reductions();
// blocks.cu
size_t block_scratch_bytes(size_t blocks);
int pack_blocks(const BlockCall* call);
int unpack_blocks(const BlockCall* call);
int prepare_blocks(const Trial& trial);
// index.cu
size_t mask_scratch_bytes(uint64_t count);
int index_from_bytes(const ByteMaskCall* call, uint32_t* index, uint32_t* kept);
int runs_from_bytes(const ByteMaskCall* call, uint32_t* begin, uint32_t* length, uint32_t* runs);
int plan_from_bytes(const ByteMaskCall* call, Plan* plan, uint32_t* kept);
int prepare_index(const Trial& trial);
// keeps.cu
size_t keep_scratch_bytes(const Plan* plan);
int plan_from_keeps(const KeepCall* call, Plan* plan, uint64_t* kept);
int prepare_keeps(const Trial& trial);
// score.cu
size_t norm_scratch_bytes(const GroupShape* shape);
int norms(const NormCall* call);
size_t top_k_scratch_bytes(uint32_t groups);
int top_k(const TopKCall* call);
int prepare_scores(const Trial& trial);

// CUB's algorithms end with the thread's last error, whoever left it: somebody's that was not asked
// for is set aside, and lost.
template <class F>
cudaError_t by_cub(F&& call) {
  static_cast<void>(cudaGetLastError());
  return told(call());
}

// For what a thread does beside its launches. Another may be capturing a graph in global mode
// (torch's own), in which calls like these would be an error here and the end of its graph.
template <class F>
int apart(F&& call) {
  const bool clean = cudaPeekAtLastError() == cudaSuccess;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  const bool relaxed = cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
  const auto error = static_cast<cudaError_t>(call());
  if (relaxed) {
    static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
  }
  return clean ? told(error) : error;  // else it is not ours to take away
}

}  // namespace prunex::cuda

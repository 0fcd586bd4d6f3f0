// SPDX-License-Identifier: Apache-2.0
// Keep vectors on the device to the words and tiles of all parameters of a buffer: two scans, and
// what lies between them.
#include "kernels/cuda/keeps.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/word_ranks.cuh"

namespace prunex::cuda {
namespace {

__global__ void __launch_bounds__(kMaxThreads)
    keep_words_kernel(const KeepArrays arrays, const uint8_t* keeps, Word* words, uint32_t n) {
  for (uint32_t w = blockIdx.x * blockDim.x + threadIdx.x; w < n; w += gridDim.x * blockDim.x) {
    words[w].bits = keep_word(arrays, keeps, w);
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    keep_ranks_kernel(const uint32_t* ranks, Word* words, uint32_t n) {
  for (uint32_t w = blockIdx.x * blockDim.x + threadIdx.x; w < n; w += gridDim.x * blockDim.x) {
    words[w].rank = ranks[w];
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    keep_tiles_kernel(const KeepArrays arrays, const uint8_t* keeps, const Word* words,
                      const uint64_t* kept_before, Tile* tiles, uint32_t n, uint64_t rows,
                      uint64_t* kept) {
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    tiles[i] = keep_tile(arrays, keeps, words, kept_before, i);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0 && kept != nullptr) {
    *kept = kept_before[rows];
  }
}

// Past the last row: nothing, so that the scan's last sum is the total.
struct RowKept {
  KeepArrays arrays;
  const uint8_t* keeps;
  const Word* words;
  uint64_t rows;
  __host__ __device__ uint64_t operator()(uint64_t row) const {
    return row < rows ? row_kept(arrays, keeps, words, row) : 0;
  }
};

cudaError_t sum_rows(void* temporary, size_t& bytes, const RowKept& rows, uint64_t* before,
                     cudaStream_t stream) {
  const auto counts = thrust::make_transform_iterator(thrust::counting_iterator<uint64_t>(0), rows);
  return by_cub([&] {
    return cub::DeviceScan::ExclusiveSum(temporary, bytes, counts, before,
                                         static_cast<int64_t>(rows.rows + 1), stream);
  });
}

struct Layout {
  uint32_t* ranks;
  uint64_t* kept_before;
  void* temporary;
  size_t temporary_bytes = 0;
};

size_t lay_out(const Plan& plan, void* scratch, Layout& out) {
  size_t words = 0, rows = 0;
  rank_words(nullptr, words, nullptr, nullptr, plan.num_words, nullptr);
  sum_rows(nullptr, rows, {plan.keeps, nullptr, nullptr, plan.num_rows}, nullptr, nullptr);
  out.temporary_bytes = words < rows ? rows : words;
  Carver carver(scratch);
  out.ranks = carver.take<uint32_t>(plan.num_words);
  out.kept_before = carver.take<uint64_t>(plan.num_rows + 1);
  out.temporary = carver.take<std::byte>(out.temporary_bytes);
  return carver.used();
}

cudaError_t make_words(const KeepCall& call, const Plan& plan, const Layout& layout) {
  const cudaStream_t stream = stream_of(call.stream);
  const auto words = static_cast<uint32_t>(plan.num_words);
  size_t bytes = layout.temporary_bytes;
  cudaError_t error = launch(keep_words_kernel, grid_of(words), kMaxThreads, stream, plan.keeps,
                             call.keeps, plan.words, words);
  if (error == cudaSuccess) {
    error = rank_words(layout.temporary, bytes, plan.words, layout.ranks, words, stream);
  }
  if (error == cudaSuccess) {
    error = launch(keep_ranks_kernel, grid_of(words), kMaxThreads, stream, layout.ranks, plan.words,
                   words);
  }
  return error;
}

}  // namespace

size_t keep_scratch_bytes(const Plan* plan) {
  Layout unused;
  return lay_out(*plan, nullptr, unused);
}

int plan_from_keeps(const KeepCall* call, Plan* plan, uint64_t* kept) {
  Layout layout;
  if (plan == nullptr || plan->keeps.tensors == nullptr ||
      lay_out(*plan, call->scratch, layout) > call->scratch_bytes) {
    return cudaErrorInvalidValue;
  }
  const cudaStream_t stream = stream_of(call->stream);
  cudaError_t error = plan->num_words != 0 ? make_words(*call, *plan, layout) : cudaSuccess;
  if (error == cudaSuccess) {
    size_t bytes = layout.temporary_bytes;
    const RowKept rows{plan->keeps, call->keeps, plan->words, plan->num_rows};
    error = sum_rows(layout.temporary, bytes, rows, layout.kept_before, stream);
  }
  if (error != cudaSuccess) {
    return error;
  }
  const auto tiles = static_cast<uint32_t>(plan->num_tiles);
  return launch(keep_tiles_kernel, grid_of(tiles), kMaxThreads, stream, plan->keeps, call->keeps,
                plan->words, layout.kept_before, plan->tiles, tiles, plan->num_rows, kept);
}

int prepare_keeps(const Trial& trial) {
  int error = load_kernels(keep_words_kernel, keep_ranks_kernel, keep_tiles_kernel);
  // The scans, of one word and of no row.
  Plan plan{};
  plan.num_words = 1;
  Layout layout;
  Carver carver(trial.memory);
  auto* const word = carver.take<Word>(1);
  lay_out(plan, carver.take<std::byte>(lay_out(plan, nullptr, layout)), layout);
  size_t bytes = layout.temporary_bytes;
  if (carver.used() > Trial::kBytes) {
    return cudaErrorMemoryAllocation;
  }
  if (error == cudaSuccess) {
    error = rank_words(layout.temporary, bytes, word, layout.ranks, 1, trial.stream);
  }
  bytes = layout.temporary_bytes;
  if (error == cudaSuccess) {
    error = sum_rows(layout.temporary, bytes, {}, layout.kept_before, trial.stream);
  }
  return error;
}

}  // namespace prunex::cuda

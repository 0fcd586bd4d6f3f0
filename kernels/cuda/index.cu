// SPDX-License-Identifier: Apache-2.0
// Byte masks on the device: to kept positions, to runs, and to a plan's words and tiles.
#include "kernels/cuda/index.h"

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_run_length_encode.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/word_ranks.cuh"

namespace prunex::cuda {
namespace {

using Positions = thrust::counting_iterator<uint32_t>;

struct Keeps {
  const uint8_t* cells;
  __host__ __device__ bool operator()(uint32_t i) const { return cells[i] != 0; }
};

auto keep_flags(const uint8_t* cells) {
  return thrust::make_transform_iterator(Positions(0), Keeps{cells});
}

cudaError_t select_kept(void* temporary, size_t& bytes, const ByteMaskCall& call, uint32_t* index,
                        uint32_t* kept) {
  return by_cub([&] {
    return cub::DeviceSelect::If(temporary, bytes, Positions(0), index, kept,
                                 static_cast<int64_t>(call.count), Keeps{call.cells},
                                 stream_of(call.stream));
  });
}

cudaError_t encode(void* temporary, size_t& bytes, const ByteMaskCall& call, bool* kept,
                   uint32_t* length, uint32_t* runs) {
  return by_cub([&] {
    return cub::DeviceRunLengthEncode::Encode(temporary, bytes, keep_flags(call.cells), kept,
                                              length, runs, static_cast<int>(call.count),
                                              stream_of(call.stream));
  });
}

cudaError_t sum_before(void* temporary, size_t& bytes, const uint32_t* values, uint32_t* sums,
                       uint64_t n, cudaStream_t stream) {
  return by_cub([&] {
    return cub::DeviceScan::ExclusiveSum(temporary, bytes, values, sums, static_cast<int64_t>(n),
                                         stream);
  });
}

// Runs of kept and of dropped cells take turns: every second one is kept, from the first that is.
__global__ void __launch_bounds__(kMaxThreads)
    kept_runs_kernel(const bool* kept, const uint32_t* begins, const uint32_t* lengths,
                     const uint32_t* all_runs, uint32_t* begin, uint32_t* length, uint32_t* runs) {
  const uint32_t n = *all_runs;
  const uint32_t first = n != 0 && kept[0] ? 0 : 1;
  for (uint32_t r = blockIdx.x * blockDim.x + threadIdx.x; first + 2 * r < n;
       r += gridDim.x * blockDim.x) {
    begin[r] = begins[first + 2 * r];
    length[r] = lengths[first + 2 * r];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *runs = n > first ? (n - first + 1) / 2 : 0;
  }
}

// One word more than the cells need: it is zero, and gets the total as its rank.
__global__ void __launch_bounds__(kMaxThreads)
    words_kernel(const uint8_t* cells, uint64_t count, Word* words, uint64_t num_words) {
  for (uint64_t w = blockIdx.x * blockDim.x + threadIdx.x; w < num_words;
       w += uint64_t{gridDim.x} * blockDim.x) {
    words[w].bits = cell_bits(cells, count, w);
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    ranks_kernel(const uint32_t* ranks, Word* words, uint64_t num_words, uint32_t* kept) {
  for (uint64_t w = blockIdx.x * blockDim.x + threadIdx.x; w < num_words;
       w += uint64_t{gridDim.x} * blockDim.x) {
    words[w].rank = ranks[w];
    if (w + 1 == num_words && kept != nullptr) {
      *kept = ranks[w];
    }
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    tiles_kernel(const Word* words, uint64_t count, uint32_t size, Tile* tiles, uint32_t n) {
  for (uint32_t t = blockIdx.x * blockDim.x + threadIdx.x; t < n; t += gridDim.x * blockDim.x) {
    tiles[t] = bitmap_tile(words, count, size, t);
  }
}

uint64_t words_of(uint64_t count) { return (count + 31) / 32 + 1; }

struct Layout {
  bool* kept;
  uint32_t *lengths, *begins, *runs;  // of all runs; `lengths` also serves as the words' ranks
  void* temporary;
  size_t temporary_bytes = 0;
};

size_t lay_out(const ByteMaskCall& call, void* scratch, Layout& out) {
  const uint64_t n = call.count + 1;
  size_t needs[4] = {};
  select_kept(nullptr, needs[0], call, nullptr, nullptr);
  encode(nullptr, needs[1], call, nullptr, nullptr, nullptr);
  sum_before(nullptr, needs[2], nullptr, nullptr, n, nullptr);
  rank_words(nullptr, needs[3], nullptr, nullptr, words_of(call.count), nullptr);
  for (const size_t need : needs) {
    out.temporary_bytes = out.temporary_bytes < need ? need : out.temporary_bytes;
  }
  Carver carver(scratch);
  out.kept = carver.take<bool>(n);
  out.lengths = carver.take<uint32_t>(n);
  out.begins = carver.take<uint32_t>(n);
  out.runs = carver.take<uint32_t>(1);
  out.temporary = carver.take<std::byte>(out.temporary_bytes);
  return carver.used();
}

// Scratch cut up, or false when the call cannot be served.
bool prepare(const ByteMaskCall& call, Layout& layout) {
  return call.count <= kMostCells && lay_out(call, call.scratch, layout) <= call.scratch_bytes;
}

}  // namespace

size_t mask_scratch_bytes(uint64_t count) {
  Layout unused;
  ByteMaskCall call{};
  call.count = count;
  return lay_out(call, nullptr, unused);
}

int index_from_bytes(const ByteMaskCall* call, uint32_t* index, uint32_t* kept) {
  Layout layout;
  if (!prepare(*call, layout)) {
    return cudaErrorInvalidValue;
  }
  return select_kept(layout.temporary, layout.temporary_bytes, *call, index, kept);
}

int runs_from_bytes(const ByteMaskCall* call, uint32_t* begin, uint32_t* length, uint32_t* runs) {
  Layout layout;
  if (!prepare(*call, layout)) {
    return cudaErrorInvalidValue;
  }
  const cudaStream_t stream = stream_of(call->stream);
  // How many runs there are is known to the device only: lengths behind the last count as nothing.
  cudaError_t error =
      cudaMemsetAsync(layout.lengths, 0, (call->count + 1) * sizeof(uint32_t), stream);
  size_t bytes = layout.temporary_bytes;
  if (error == cudaSuccess) {
    error = encode(layout.temporary, bytes, *call, layout.kept, layout.lengths, layout.runs);
  }
  bytes = layout.temporary_bytes;
  if (error == cudaSuccess) {
    error =
        sum_before(layout.temporary, bytes, layout.lengths, layout.begins, call->count + 1, stream);
  }
  if (error != cudaSuccess) {
    return error;
  }
  return launch(kept_runs_kernel, grid_of(call->count / 2 + 1), kMaxThreads, stream, layout.kept,
                layout.begins, layout.lengths, layout.runs, begin, length, runs);
}

int plan_from_bytes(const ByteMaskCall* call, Plan* plan, uint32_t* kept) {
  Layout layout;
  if (plan == nullptr || plan->tile_elements == 0 || plan->count != call->count ||
      !prepare(*call, layout)) {
    return cudaErrorInvalidValue;
  }
  const cudaStream_t stream = stream_of(call->stream);
  const uint64_t words = words_of(call->count);
  size_t bytes = layout.temporary_bytes;
  cudaError_t error = launch(words_kernel, grid_of(words), kMaxThreads, stream, call->cells,
                             call->count, plan->words, words);
  if (error == cudaSuccess) {
    error = rank_words(layout.temporary, bytes, plan->words, layout.lengths, words, stream);
  }
  if (error == cudaSuccess) {
    error = launch(ranks_kernel, grid_of(words), kMaxThreads, stream, layout.lengths, plan->words,
                   words, kept);
  }
  if (error == cudaSuccess && plan->num_tiles != 0) {
    error = launch(tiles_kernel, grid_of(plan->num_tiles), kMaxThreads, stream, plan->words,
                   call->count, plan->tile_elements, plan->tiles,
                   static_cast<uint32_t>(plan->num_tiles));
  }
  return error;
}

int prepare_index(const Trial& trial) {
  int error = load_kernels(words_kernel, ranks_kernel, tiles_kernel);
  Carver carver(trial.memory);
  ByteMaskCall call{};
  call.count = 1;
  call.cells = carver.take<uint8_t>(1);
  call.scratch_bytes = mask_scratch_bytes(1);
  call.scratch = carver.take<std::byte>(call.scratch_bytes);
  call.stream = trial.stream;
  auto *const a = carver.take<uint32_t>(1), *const b = carver.take<uint32_t>(1),
              *const n = carver.take<uint32_t>(1);
  if (carver.used() > Trial::kBytes) {
    return cudaErrorMemoryAllocation;
  }
  error = error != cudaSuccess ? error : index_from_bytes(&call, a, n);
  return error != cudaSuccess ? error : runs_from_bytes(&call, a, b, n);
}

}  // namespace prunex::cuda

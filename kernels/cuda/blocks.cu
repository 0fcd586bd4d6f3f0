// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/blocks.h"

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_scan.cuh>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scratch.h"

namespace prunex::cuda {
namespace {

constexpr uint32_t kWarps = kMaxThreads / kWarpLanes;

// Halves of the 64-bit words, low half first, as they lie in memory.
__global__ void __launch_bounds__(kMaxThreads)
    vote_kernel(const std::byte* from, uint64_t blocks, uint32_t words, uint32_t* bits) {
  const uint32_t lane = threadIdx.x % kWarpLanes;
  for (uint32_t word = blockIdx.x * kWarps + threadIdx.x / kWarpLanes; word < words;
       word += gridDim.x * kWarps) {
    Vector16 part[kSteps];
    PRUNEX_UNROLL
    for (uint32_t step = 0; step < kSteps; ++step) {
      part[step] = block_part(from, blocks, word, step, lane);
    }
    uint32_t set = 0;
    PRUNEX_UNROLL
    for (uint32_t step = 0; step < kSteps; ++step) {
      const uint32_t votes = __ballot_sync(~0u, (part[step].low | part[step].high) != 0);
      set |= block_bits(votes) << (step * kBlocksPerStep);
    }
    if (lane == 0) {
      bits[word] = set;
    }
  }
}

template <bool kPack>
__global__ void __launch_bounds__(kMaxThreads)
    move_blocks_kernel(const std::byte* from, std::byte* to, uint64_t blocks, uint32_t words,
                       const uint32_t* bits, const uint32_t* ranks, uint64_t* total) {
  const uint32_t lane = threadIdx.x % kWarpLanes;
  for (uint32_t word = blockIdx.x * kWarps + threadIdx.x / kWarpLanes; word < words;
       word += gridDim.x * kWarps) {
    const uint32_t set = bits[word];
    const uint32_t rank = ranks[word];
    PRUNEX_UNROLL
    for (uint32_t step = 0; step < kSteps; ++step) {
      if constexpr (kPack) {
        pack_block_part(from, blocks, word, set, rank, step, lane, to);
      } else {
        unpack_block_part(from, blocks, word, set, rank, step, lane, to);
      }
    }
    if (kPack && total != nullptr && word + 1 == words && lane == 0) {
      *total = rank + popcount(set);
    }
  }
}

struct SetBits {
  const uint32_t* bits;
  __host__ __device__ uint32_t operator()(uint32_t word) const { return popcount(bits[word]); }
};

// Set blocks before each word. The bits are memory of the device by then.
cudaError_t scan_ranks(void* temporary, size_t& bytes, const uint32_t* bits, uint32_t* ranks,
                       uint32_t words, cudaStream_t stream) {
  const auto counts =
      thrust::make_transform_iterator(thrust::counting_iterator<uint32_t>(0), SetBits{bits});
  return by_cub([&] {
    return cub::DeviceScan::ExclusiveSum(temporary, bytes, counts, ranks, words, stream);
  });
}

// 64-bit words, so that both halves of the last one are written.
uint32_t words_of(size_t blocks) { return static_cast<uint32_t>((blocks + 63) / 64 * 2); }

uint32_t grid_of(uint32_t words) {
  const uint32_t blocks = (words + kWarps - 1) / kWarps;
  return blocks < kMaxBlocks ? blocks : kMaxBlocks;
}

struct Layout {
  uint32_t* ranks;
  void* temporary;
  size_t temporary_bytes = 0;
};

size_t lay_out(size_t blocks, void* scratch, Layout& out) {
  Carver carver(scratch);
  out.ranks = carver.take<uint32_t>(words_of(blocks));
  scan_ranks(nullptr, out.temporary_bytes, nullptr, nullptr, words_of(blocks), nullptr);
  out.temporary = carver.take<std::byte>(out.temporary_bytes);
  return carver.used();
}

bool valid(const BlockCall& call, uint32_t multiple) {
  return call.blocks < uint64_t{1} << 36 && address_mod(call.packed, multiple) == 0 &&
         address_mod(call.bits, 8) == 0 && call.scratch_bytes >= block_scratch_bytes(call.blocks);
}

}  // namespace

size_t block_scratch_bytes(size_t blocks) {
  Layout unused;
  return lay_out(blocks, nullptr, unused);
}

int pack_blocks(const BlockCall* call) {
  const cudaStream_t stream = stream_of(call->stream);
  if (!valid(*call, 8)) {
    return cudaErrorInvalidValue;
  }
  if (call->blocks == 0) {
    return call->packed_blocks != nullptr
               ? cudaMemsetAsync(call->packed_blocks, 0, sizeof(uint64_t), stream)
               : cudaSuccess;
  }
  Layout layout;
  lay_out(call->blocks, call->scratch, layout);
  const uint32_t words = words_of(call->blocks);
  auto* bits = reinterpret_cast<uint32_t*>(call->bits);
  const auto* from = static_cast<const std::byte*>(call->from);
  cudaError_t error =
      launch(vote_kernel, grid_of(words), kMaxThreads, stream, from, call->blocks, words, bits);
  if (error == cudaSuccess) {
    error = scan_ranks(layout.temporary, layout.temporary_bytes, bits, layout.ranks, words, stream);
  }
  if (error != cudaSuccess) {
    return error;
  }
  return launch(move_blocks_kernel<true>, grid_of(words), kMaxThreads, stream, from,
                static_cast<std::byte*>(call->packed), call->blocks, words, bits, layout.ranks,
                call->packed_blocks);
}

int unpack_blocks(const BlockCall* call) {
  const cudaStream_t stream = stream_of(call->stream);
  if (!valid(*call, 16)) {
    return cudaErrorInvalidValue;
  }
  if (call->blocks == 0) {
    return cudaSuccess;
  }
  Layout layout;
  lay_out(call->blocks, call->scratch, layout);
  const uint32_t words = words_of(call->blocks);
  const auto* bits = reinterpret_cast<const uint32_t*>(call->bits);
  const cudaError_t scanned =
      scan_ranks(layout.temporary, layout.temporary_bytes, bits, layout.ranks, words, stream);
  if (scanned != cudaSuccess) {
    return scanned;
  }
  auto* to = static_cast<std::byte*>(const_cast<void*>(call->from));
  return launch(move_blocks_kernel<false>, grid_of(words), kMaxThreads, stream,
                static_cast<const std::byte*>(call->packed), to, call->blocks, words, bits,
                layout.ranks, nullptr);
}

int prepare_blocks(const Trial& trial) {
  Carver carver(trial.memory);
  BlockCall call{};
  call.blocks = 1;
  call.from = carver.take<std::byte>(kBlockBytes);
  call.packed = carver.take<std::byte>(kBlockBytes);
  call.bits = carver.take<uint64_t>(1);
  call.scratch_bytes = block_scratch_bytes(1);
  call.scratch = carver.take<std::byte>(call.scratch_bytes);
  call.stream = trial.stream;
  const int packed =
      carver.used() <= Trial::kBytes ? pack_blocks(&call) : cudaErrorMemoryAllocation;
  return packed != cudaSuccess ? packed : unpack_blocks(&call);
}

}  // namespace prunex::cuda

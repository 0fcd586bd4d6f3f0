// SPDX-License-Identifier: Apache-2.0
// Scores of groups, and the groups that stay: the exact projection of H-SADMM.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_segmented_reduce.cuh>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/scratch.h"

namespace prunex::cuda {
namespace {

struct Square {
  const std::byte* data;
  GroupShape shape;
  DType type;
  __host__ __device__ double operator()(uint64_t i) const {
    return square_of(type, data, shape.element(i));
  }
};
struct GroupBegin {
  uint64_t members;
  __host__ __device__ uint64_t operator()(uint64_t group) const { return group * members; }
};

using Numbers = thrust::counting_iterator<uint64_t>;

cudaError_t sum_squares(void* temporary, size_t& bytes, const NormCall& call) {
  const auto squares = thrust::make_transform_iterator(
      Numbers(0), Square{static_cast<const std::byte*>(call.data), call.shape, call.type});
  const auto begins = thrust::make_transform_iterator(Numbers(0), GroupBegin{call.shape.members()});
  return by_cub([&] {
    return cub::DeviceSegmentedReduce::Sum(temporary, bytes, squares, call.out,
                                           static_cast<int64_t>(call.shape.groups), begins,
                                           begins + 1, stream_of(call.stream));
  });
}

// Largest first; equal ones stay in their order, so that ties go to the lower group.
cudaError_t sort(void* temporary, size_t& bytes, const uint64_t* keys, uint64_t* sorted,
                 const uint32_t* groups, uint32_t* order, uint32_t n, cudaStream_t stream) {
  return by_cub([&] {
    return cub::DeviceRadixSort::SortPairsDescending(temporary, bytes, keys, sorted, groups, order,
                                                     n, 0, 64, stream);
  });
}

__global__ void __launch_bounds__(kMaxThreads)
    keys_kernel(const double* scores, const uint8_t* incumbents, double factor, uint32_t n,
                uint64_t* keys, uint32_t* groups) {
  const uint32_t g = blockIdx.x * blockDim.x + threadIdx.x;
  if (g < n) {
    const bool incumbent = incumbents != nullptr && incumbents[g] != 0;
    keys[g] = order_key(incumbent ? scores[g] * factor : scores[g]);
    groups[g] = g;
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    keep_kernel(const uint32_t* order, uint32_t n, uint32_t keep, uint8_t* keep_out) {
  const uint32_t place = blockIdx.x * blockDim.x + threadIdx.x;
  if (place < n) {
    keep_out[order[place]] = place < keep ? 1 : 0;
  }
}

struct Layout {
  uint64_t *keys, *sorted;
  uint32_t *groups, *order;
  void* temporary;
  size_t temporary_bytes = 0;
};

size_t lay_out(uint32_t n, void* scratch, Layout& out) {
  sort(nullptr, out.temporary_bytes, nullptr, nullptr, nullptr, nullptr, n, nullptr);
  Carver carver(scratch);
  out.keys = carver.take<uint64_t>(n);
  out.sorted = carver.take<uint64_t>(n);
  out.groups = carver.take<uint32_t>(n);
  out.order = carver.take<uint32_t>(n);
  out.temporary = carver.take<std::byte>(out.temporary_bytes);
  return carver.used();
}

}  // namespace

size_t norm_scratch_bytes(const GroupShape* shape) {
  NormCall call{};
  call.shape = *shape;
  size_t bytes = 0;
  sum_squares(nullptr, bytes, call);
  return bytes;
}

int norms(const NormCall* call) {
  if (!is_float(call->type)) {
    return cudaErrorInvalidValue;
  }
  if (call->shape.groups == 0) {
    return cudaSuccess;
  }
  size_t bytes = call->scratch_bytes;
  return sum_squares(call->scratch, bytes, *call);
}

size_t top_k_scratch_bytes(uint32_t groups) {
  Layout unused;
  return lay_out(groups, nullptr, unused);
}

int top_k(const TopKCall* call) {
  Layout layout;
  if (call->keep > call->groups ||
      lay_out(call->groups, call->scratch, layout) > call->scratch_bytes) {
    return cudaErrorInvalidValue;
  }
  if (call->groups == 0) {
    return cudaSuccess;
  }
  const cudaStream_t stream = stream_of(call->stream);
  const uint32_t blocks = (call->groups + kMaxThreads - 1) / kMaxThreads;
  cudaError_t error =
      launch(keys_kernel, blocks, kMaxThreads, stream, call->scores, call->incumbents, call->factor,
             call->groups, layout.keys, layout.groups);
  if (error == cudaSuccess) {
    error = sort(layout.temporary, layout.temporary_bytes, layout.keys, layout.sorted,
                 layout.groups, layout.order, call->groups, stream);
  }
  if (error != cudaSuccess) {
    return error;
  }
  return launch(keep_kernel, blocks, kMaxThreads, stream, layout.order, call->groups, call->keep,
                call->keep_out);
}

int prepare_scores(const Trial& trial) {
  Carver carver(trial.memory);
  auto* const scores = carver.take<double>(1);
  NormCall norm{};
  norm.shape = {1, 1, 1};
  norm.data = carver.take<double>(1);
  norm.out = scores;
  norm.scratch_bytes = norm_scratch_bytes(&norm.shape);
  norm.scratch = carver.take<std::byte>(norm.scratch_bytes);
  norm.stream = trial.stream;
  norm.type = DType::f32;
  TopKCall top{};
  top.scores = scores;
  top.groups = 1;
  top.keep_out = carver.take<uint8_t>(1);
  top.scratch_bytes = top_k_scratch_bytes(1);
  top.scratch = carver.take<std::byte>(top.scratch_bytes);
  top.stream = trial.stream;
  const int summed = carver.used() <= Trial::kBytes ? norms(&norm) : cudaErrorMemoryAllocation;
  return summed != cudaSuccess ? summed : top_k(&top);
}

}  // namespace prunex::cuda

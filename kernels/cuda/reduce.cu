// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/audit_blocks.cuh"

namespace prunex::cuda {
namespace {

struct Strided {
  const Tile* tiles;
  const Word* words;
  Range range;
  uint64_t value_bits;
  uint32_t num_tiles;
};

template <class A>
__global__ void __launch_bounds__(kMaxThreads) flat_kernel(const Reduction r, uint64_t count) {
  const uint64_t thread = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  reduce_flat<A>(r, count, thread, uint64_t{gridDim.x} * blockDim.x);
}

template <class A>
__global__ void __launch_bounds__(kMaxThreads, 4)
    strided_kernel(const Reduction r, const Strided s, AuditScratch* scratch, AuditRecord* record) {
  Auditor auditor{r.in, s.value_bits, {}};
  for (uint32_t t = blockIdx.x; t < s.num_tiles; t += gridDim.x) {
    reduce_tile<A>(r, s.tiles[t], s.words, s.range, threadIdx.x, blockDim.x, record != nullptr,
                   auditor);
  }
  if (record != nullptr) {
    publish(auditor.found, scratch, record);
  }
}

bool aligned(const Reduction& r) {
  bool all = address_mod(r.out, static_cast<uint32_t>(size_of(r.out_type))) == 0;
  for (int s = 0; s < r.sources; ++s) {
    all = all && address_mod(r.source[s], static_cast<uint32_t>(size_of(r.in))) == 0;
  }
  return all;
}

int reduce_strided(const ReduceCall& call) {
  const MoveCall& m = call.move;
  if (m.plan == nullptr || m.first_tile > m.last_tile || m.last_tile > m.plan->num_tiles ||
      (m.record != nullptr && m.scratch == nullptr)) {
    return cudaErrorInvalidValue;
  }
  const Strided s{m.plan->tiles + m.first_tile, m.plan->words, m.range,
                  value_bits(call.reduction.in), m.last_tile - m.first_tile};
  return with_accumulator(call.reduction.in, [&](auto acc) {
    return launch(strided_kernel<decltype(acc)>, blocks_for(*m.plan, s.num_tiles),
                  m.plan->tuning.threads, stream_of(m.stream), call.reduction, s,
                  static_cast<AuditScratch*>(m.scratch), m.record);
  });
}

}  // namespace

int reduce(const ReduceCall* call) {
  const Reduction& r = call->reduction;
  if (r.sources < 1 || r.sources > kMaxSources || r.own >= r.sources ||
      !reducible(r.in, r.out_type) || !aligned(r)) {
    return cudaErrorInvalidValue;
  }
  if (r.own >= 0) {
    return reduce_strided(*call);
  }
  if (call->count == 0) {
    return cudaSuccess;
  }
  const uint64_t blocks = (call->count + kMaxThreads * 4 - 1) / (kMaxThreads * 4);
  return with_accumulator(r.in, [&](auto acc) {
    return launch(flat_kernel<decltype(acc)>,
                  static_cast<uint32_t>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kMaxThreads,
                  stream_of(call->move.stream), r, call->count);
  });
}

int prepare_reductions() {
  int error = cudaSuccess;
  for (const DType type : {DType::f32, DType::f64, DType::i64, DType::u64}) {
    with_accumulator(type, [&](auto acc) {
      const int loaded = load_kernels(flat_kernel<decltype(acc)>, strided_kernel<decltype(acc)>);
      error = error != cudaSuccess ? error : loaded;
    });
  }
  return error;
}

}  // namespace prunex::cuda

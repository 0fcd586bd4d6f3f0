// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/audit_blocks.cuh"
#include "kernels/cuda/dispatch.h"

namespace prunex::cuda {
namespace {

struct Move {
  const Tile* tiles;
  const Word* words;
  const std::byte* from;
  std::byte* to;
  Range range;
  uint64_t value_bits;
  uint32_t num_tiles;
  DType type;
};

// Blocks that an SM holds at least: with one more, the compiler would spill.
template <int kMove, bool kAudit>
__global__ void __launch_bounds__(kMaxThreads, kAudit ? 4 : 5)
    pack_kernel(const Move m, AuditScratch* scratch, AuditRecord* record) {
  Auditor auditor{m.type, m.value_bits, {}};
  for (uint32_t t = blockIdx.x; t < m.num_tiles; t += gridDim.x) {
    const Tile tile = m.tiles[t];  // what is stored cannot be its fields
    pack_one<kMove>(tile, m.words, m.from, m.range, m.to, m.type, threadIdx.x, blockDim.x,
                    kAudit ? &auditor : nullptr);
  }
  if constexpr (kAudit) {
    publish(auditor.found, scratch, record);
  }
}

template <int kMove>
__global__ void __launch_bounds__(kMaxThreads, kMove == 1 ? 4 : 5) unpack_kernel(const Move m) {
  for (uint32_t t = blockIdx.x; t < m.num_tiles; t += gridDim.x) {
    const Tile tile = m.tiles[t];
    unpack_one<kMove>(tile, m.words, m.from, m.range, m.to, m.type, threadIdx.x, blockDim.x);
  }
}

Move move_for(const MoveCall& call) {
  Move m{};
  m.tiles = call.plan->tiles + call.first_tile;
  m.words = call.plan->words;
  m.from = static_cast<const std::byte*>(call.from);
  m.to = static_cast<std::byte*>(call.to);
  m.range = call.range;
  m.value_bits = audited_bits(call.type, call.exact);
  m.num_tiles = call.last_tile - call.first_tile;
  m.type = call.type;
  return m;
}

bool valid(const MoveCall& call) {
  return call.plan != nullptr && call.first_tile <= call.last_tile &&
         call.last_tile <= call.plan->num_tiles &&
         (call.record == nullptr || call.scratch != nullptr);
}

}  // namespace

int pack(const MoveCall* call) {
  if (!valid(*call)) {
    return cudaErrorInvalidValue;
  }
  const Move m = move_for(*call);
  // Without tiles, too, the record is written.
  if (m.num_tiles == 0 && call->record == nullptr) {
    return cudaSuccess;
  }
  const uint32_t blocks = blocks_for(*call->plan, m.num_tiles);
  const uint32_t threads = call->plan->tuning.threads;
  auto* scratch = static_cast<AuditScratch*>(call->scratch);
  return with_move(move_of(call->type, call->from, call->to), [&](auto move) {
    if (call->record != nullptr) {
      return launch(pack_kernel<move(), true>, blocks, threads, stream_of(call->stream), m, scratch,
                    call->record);
    }
    return launch(pack_kernel<move(), false>, blocks, threads, stream_of(call->stream), m, nullptr,
                  nullptr);
  });
}

int unpack(const MoveCall* call) {
  if (!valid(*call)) {
    return cudaErrorInvalidValue;
  }
  const Move m = move_for(*call);
  if (m.num_tiles == 0) {
    return cudaSuccess;
  }
  return with_move(move_of(call->type, call->from, call->to), [&](auto move) {
    return launch(unpack_kernel<move()>, blocks_for(*call->plan, m.num_tiles),
                  call->plan->tuning.threads, stream_of(call->stream), m);
  });
}

int prepare_moves() {
  int error = cudaSuccess;
  for (const int size : {0, 1, 2, 4, 8}) {
    with_move(size, [&](auto move) {
      const int loaded = load_kernels(pack_kernel<move(), true>, pack_kernel<move(), false>,
                                      unpack_kernel<move()>);
      error = error != cudaSuccess ? error : loaded;
    });
  }
  return error;
}

}  // namespace prunex::cuda

// SPDX-License-Identifier: Apache-2.0
// A piece that all nodes have agreed on: packed, moved, unpacked.
#include <algorithm>
#include <cstring>

#include "plugin/base/clock.h"
#include "plugin/nccl/coll/comm.h"

namespace prunex::nccl::coll {
namespace {

constexpr size_t kGatherChunk = size_t{512} << 10;  // nothing is computed on them

}  // namespace

void CollComm::start(Piece& p) {
  p.phase = Phase::moving;
  p.moved_ns = now_ns();
  if (p.came_inlined) {
    return;
  }
  TransferSpec spec;
  spec.type = p.type;
  spec.op = p.op;
  spec.chunk_bytes = tuning_.chunk_bytes;
  if (p.function == Function::all_reduce) {
    const uint64_t elements = p.stream.bytes() / size_of(p.type);
    const bool scatter = algorithm_for(p, elements) == collective::Algorithm::scatter;
    spec.shape = scatter ? Shape::scatter : Shape::exchange;
    spec.source = p.stream.source();
    spec.result = p.stream.result();
    spec.bytes = p.stream.bytes();
    spec.source_region = p.stream.dense() ? p.send_region.get() : p.stream.region();
    spec.result_region = p.stream.dense() ? p.recv_region.get() : p.stream.region();
    const size_t chunk = choose_chunk_bytes(tuning_, spec.bytes);
    spec.chunk_bytes = std::max<size_t>(64, chunk / 64 * 64);
  } else {
    const bool gather = p.function == Function::all_gather;
    spec.shape = gather ? Shape::gather : Shape::reduce_scatter;
    spec.chunk_bytes = gather ? kGatherChunk : tuning_.chunk_bytes;
    spec.source = p.send;
    spec.result = p.recv;
    spec.source_region = p.send_region.get();
    spec.result_region = p.recv_region.get();
    if (p.staged) {
      (gather ? spec.result_region : spec.source_region) = p.memory.region();
    }
    spec.segments = p.segments;
  }
  p.transfer.start(spec, p.scratch);
  p.transfers = true;
}

Result<bool> CollComm::move(Piece& p, int64_t* budget) {
  bool moved = false;
  while (*budget > 0 && !p.stream.packed()) {
    *budget -= static_cast<int64_t>(p.stream.pack_step());
    moved = true;
  }
  if (p.transfers) {
    p.transfer.source_ready(p.stream.packed_bytes());
    auto polled = p.transfer.poll(budget);
    if (!polled) {
      return polled;
    }
    moved = moved || *polled;
  }
  const size_t finished = p.transfers ? p.transfer.finished_bytes() : p.stream.bytes();
  while (*budget > 0) {
    const size_t done = p.stream.unpack_step(finished);
    if (done == 0) {
      break;
    }
    *budget -= static_cast<int64_t>(done);
    moved = true;
  }
  const Segment own = p.function == Function::all_gather ? p.segments[setup_.self] : Segment{};
  if (p.send == p.recv + own.offset) {
    p.copied = own.bytes;
  }
  while (*budget > 0 && p.copied < own.bytes) {
    const size_t n = std::min(kStepBytes, own.bytes - p.copied);
    std::memcpy(p.recv + own.offset + p.copied, p.send + p.copied, n);
    p.copied += n;
    *budget -= static_cast<int64_t>(n);
    moved = true;
  }
  if (p.stream.packed() && p.stream.unpacked() && p.copied == own.bytes &&
      (!p.transfers || p.transfer.complete()) &&
      (setup_.links == nullptr || setup_.links->all_sent())) {
    p.phase = Phase::finished;
    return true;
  }
  if (moved) {
    p.moved_ns = now_ns();
  } else if (static_cast<double>(now_ns() - p.moved_ns) * 1e-9 > setup_.config.timeout_s) {
    const int node = p.transfers ? p.transfer.awaited_node() : -1;
    return fail(Code::timeout,
                strf("nothing has moved for %g s in the middle of a call (PRUNEX_TIMEOUT); it does "
                     "not answer, or the network between the nodes is down",
                     setup_.config.timeout_s),
                0, node);
  }
  return moved;
}

void CollComm::finish(Piece& p) {
  Request& request = *p.request;
  if (p.staged && p.function == Function::all_gather) {
    size_t at = 0;
    for (const CollPart& part : request.parts) {
      if (part.bytes > 0) {
        std::memcpy(part.address, p.memory.data() + at, part.bytes);
      }
      at += part.bytes;
    }
  }
  --request.pieces_left;
  const std::lock_guard lock(stats_mutex_);
  if (request.pieces_left == 0) {
    request.regions = {};
    request.hit.reset();
    ++stats_.calls;
    stats_.logical_bytes += request.bytes;
  }
}

}  // namespace prunex::nccl::coll

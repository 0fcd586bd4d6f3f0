// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/coll/stream.h"

#include <algorithm>
#include <utility>

#include "kernels/pattern.h"

namespace prunex::nccl::coll {

uint64_t kept_before(const CompiledMask& mask, uint64_t index) {
  uint64_t low = 0, high = mask.kept;  // the first k whose element is not before index
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (select_kept(mask, middle) < index) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

MaskedPiece make_piece(std::shared_ptr<const Layout> layout, uint64_t begin, uint64_t end) {
  MaskedPiece piece;
  const CompiledMask& mask = *layout->segments[0].mask;
  piece.begin = begin;
  piece.end = end;
  piece.kept_begin = kept_before(mask, begin);
  piece.kept_end = kept_before(mask, end);
  piece.layout = std::move(layout);
  return piece;
}

Stream Stream::dense(const std::byte* send, std::byte* recv, size_t bytes) {
  Stream s;
  s.send_ = send;
  s.recv_ = recv;
  s.logical_ = s.logical_packed_ = s.logical_unpacked_ = bytes;
  s.bytes_ = s.packed_ = s.unpacked_ = bytes;
  return s;
}

Stream Stream::masked(const std::byte* send, std::byte* recv, DType type, MaskedPiece piece,
                      bool counted, transport::Staging& memory) {
  Stream s;
  s.kind_ = Kind::masked;
  s.type_ = type;
  s.send_ = send;
  s.recv_ = recv;
  s.logical_ = (piece.end - piece.begin) * size_of(type);
  s.bytes_ = piece.kept() * size_of(type);
  s.piece_ = std::move(piece);
  s.counted_ = counted;
  s.memory_ = &memory;
  memory.reserve(s.bytes_);
  return s;
}

Stream Stream::mapped(const std::byte* send, std::byte* recv, const BlockMap& map,
                      transport::Staging& memory) {
  Stream s;
  s.kind_ = Kind::mapped;
  s.send_ = send;
  s.recv_ = recv;
  s.logical_ = map.bytes;
  s.bytes_ = map.kept_bytes();
  s.map_ = &map;
  s.memory_ = &memory;
  memory.reserve(s.bytes_);
  return s;
}

// Of kStepBytes of the user's buffer from byte `logical` on.
Stream::Step Stream::step_at(size_t logical) const {
  Step step;
  if (kind_ == Kind::mapped) {
    const size_t blocks = std::max<size_t>(64, kStepBytes / map_->block_bytes / 64 * 64);
    step.begin = logical / map_->block_bytes;
    step.end = std::min<uint64_t>(map_->blocks(), step.begin + blocks);
    step.bytes = kept_in(*map_, step.begin, step.end);
    step.logical = std::min(map_->bytes, step.end * map_->block_bytes) - logical;
    return step;
  }
  const size_t size = size_of(type_);
  const CompiledMask& mask = *piece_.layout->segments[0].mask;
  step.begin = piece_.begin + logical / size;
  step.end = std::min(piece_.end, step.begin + kStepBytes / size);
  step.slice = {kept_before(mask, step.begin), kept_before(mask, step.end), step.begin, step.end};
  step.bytes = (step.slice.kept_end - step.slice.kept_begin) * size;
  step.logical = (step.end - step.begin) * size;
  return step;
}

size_t Stream::pack_step() {
  if (packed()) {
    return 0;
  }
  const Step step = step_at(logical_packed_);
  if (kind_ == Kind::mapped) {
    pack_blocks(*map_, send_, step.begin, step.end, memory_->data() + packed_);
  } else {
    pack(*piece_.layout, type_, tensor(send_), step.slice, memory_->data() + packed_,
         counted_ ? &dropped_ : nullptr);
  }
  packed_ += step.bytes;
  logical_packed_ += step.logical;
  return step.logical;
}

size_t Stream::unpack_step(size_t finished) {
  if (unpacked()) {
    return 0;
  }
  const Step step = step_at(logical_unpacked_);
  if (unpacked_ + step.bytes > finished) {
    return 0;
  }
  if (kind_ == Kind::mapped) {
    // In place, what is zero on all nodes is zero here.
    unpack_blocks(*map_, memory_->data() + unpacked_, step.begin, step.end, recv_, send_ != recv_);
  } else {
    unpack(*piece_.layout, type_, memory_->data() + unpacked_, step.slice, tensor(recv_));
  }
  unpacked_ += step.bytes;
  logical_unpacked_ += step.logical;
  return step.logical;
}

}  // namespace prunex::nccl::coll

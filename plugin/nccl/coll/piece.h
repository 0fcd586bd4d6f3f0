// SPDX-License-Identifier: Apache-2.0
// A part of a call on its way. There are a few in a communicator, each with memory that the next
// call to have its place uses again: a call allocates nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plugin/collective/table.h"
#include "plugin/nccl/coll/call.h"
#include "plugin/nccl/coll/stream.h"
#include "plugin/nccl/coll/transfer.h"
#include "plugin/transport/staging.h"

namespace prunex::nccl::coll {

enum class Phase : uint8_t { fresh, preparing, announced, agreed, moving, finished };

// As new for every piece.
struct PieceState {
  Function function = Function::all_reduce;
  Request* request = nullptr;
  const std::byte* send = nullptr;
  std::byte* recv = nullptr;
  std::shared_ptr<const transport::Region> send_region, recv_region;
  DType type = DType::i8;
  Op op = Op::sum;
  uint64_t count = 0;                // elements of the whole call
  uint64_t first = 0, elements = 0;  // of this piece
  uint64_t index = 0;
  bool staged = false;  // the window lies in `memory`, the user's being in several parts
  std::optional<api::RangeHit> hit;

  Phase phase = Phase::fresh;
  uint64_t sequence = 0;
  Wish wish = Wish::dense;
  bool audited = false;
  bool broken = false;  // its mask did not keep its promise
  uint64_t kept = 0;    // elements that cross, as far as this node knows
  Stream stream;
  size_t scanned = 0;  // blocks
  CollHead head;       // as announced
  collective::CallHeader header;
  bool came_inlined = false;  // the sum is there already
  bool transfers = false;     // `transfer` is of this piece
  size_t copied = 0;          // of the own segment, all-gather
  int64_t moved_ns = 0;       // when something last moved
  [[nodiscard]] size_t bytes() const { return elements * size_of(type); }
};

struct Piece : PieceState {
  // transport: nullptr where there is one node.
  Piece(transport::Transport* transport, collective::LeaderLinks* links, size_t nodes, size_t self)
      : segments(nodes), memory(transport), transfer(links, nodes, self), scratch(transport) {
    payload.reserve(CollHead::kWireBytes + collective::Tuning::kInlineLimit);
  }
  // Lets go of what is the call's.
  void renew() { static_cast<PieceState&>(*this) = PieceState(); }

  std::vector<Segment> segments;   // of a window, by node
  BlockMap map;                    // while it is mapped
  std::vector<std::byte> payload;  // as announced
  transport::Staging memory;       // of a packed stream or a window
  Transfer transfer;
  transport::Staging scratch;  // its partial sums
};

}  // namespace prunex::nccl::coll

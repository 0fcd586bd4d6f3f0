// SPDX-License-Identifier: Apache-2.0
// The data of one collective among n nodes, after they have agreed on it: linear streams cut into
// chunks, posted and reaped by polling. Nothing in here waits or decides; both ends derive the same
// messages from the same numbers.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plugin/base/dtype.h"
#include "plugin/base/result.h"
#include "plugin/collective/leader_links.h"
#include "plugin/collective/table.h"
#include "plugin/transport/staging.h"

namespace prunex::nccl::coll {

enum class Shape : uint8_t {
  exchange,        // everybody sends all of it to everybody and adds all
  scatter,         // everybody adds its part of each chunk and sends the sum round
  reduce_scatter,  // everybody adds the segment it owns
  gather,          // everybody sends the segment it owns to everybody
};

struct Segment {  // bytes of the common stream that one node owns
  size_t offset = 0, bytes = 0;
};

struct TransferSpec {
  Shape shape = Shape::exchange;
  DType type = DType::f32;
  Op op = Op::sum;
  const std::byte* source = nullptr;  // this node's contribution; in gather its own segment only
  // Where results go: the stream, in reduce_scatter the own segment only. May be the source.
  std::byte* result = nullptr;
  // Of the two; nullptr: not registered.
  const transport::Region* source_region = nullptr;
  const transport::Region* result_region = nullptr;
  size_t bytes = 0;        // of the stream; exchange and scatter
  size_t chunk_bytes = 0;  // a multiple of 64
  // By node; reduce_scatter and gather. The caller's, until the transfer is complete.
  std::span<const Segment> segments;
};

class Transfer {
 public:
  // `links` may be null when there is one node. Allocates what all transfers of it will need.
  Transfer(collective::LeaderLinks* links, size_t nodes, size_t self);
  // The next one; the last is complete. `scratch` holds partial sums: it grows to scratch_bytes()
  // and is this transfer's until it is complete.
  void start(const TransferSpec& spec, transport::Staging& scratch);
  // Of a transfer by which this node reduces a stream, or a segment, of that many bytes.
  [[nodiscard]] static size_t scratch_bytes(Shape shape, size_t nodes, size_t chunk_bytes,
                                            size_t bytes);

  // Bytes of the source that may be sent: packing may still be under way.
  void source_ready(size_t bytes) { ready_ = bytes; }
  // Posts, reaps and reduces until nothing moves or *budget (bytes of reduction) is spent. true:
  // something moved.
  [[nodiscard]] Result<bool> poll(int64_t* budget);
  // The stream is final up to here (exchange and scatter).
  [[nodiscard]] size_t finished_bytes() const;
  // Nothing is outstanding: all received, all sent handed to the transport.
  [[nodiscard]] bool complete() const;
  // Every message is with its connection: whatever follows may be posted behind them.
  [[nodiscard]] bool posted() const;
  // The node that this one waits for; -1: none.
  [[nodiscard]] int awaited_node() const;

 private:
  // Messages of one peer, kind and direction, in the order of chunks.
  enum Kind : uint8_t { kSendPartial, kRecvPartial, kSendResult, kRecvResult };
  static constexpr size_t kKinds = 4;
  static constexpr size_t kTickets = transport::kMaxInFlight;
  struct Lane {
    size_t total = 0, next = 0, done = 0;  // chunks; done <= next <= total
    // Of chunks [done, next), at most kTickets, each at its number modulo kTickets; 0: nothing to
    // send.
    std::array<transport::Ticket, kTickets> tickets{};
  };
  struct Depth {
    size_t slots = 1, slot_bytes = 0;
  };
  [[nodiscard]] static Depth depth_for(Shape shape, size_t nodes, size_t chunk_bytes,
                                       size_t chunks);
  struct Piece {
    std::byte* at = nullptr;
    size_t bytes = 0;
    const transport::Region* region = nullptr;
  };

  [[nodiscard]] Piece piece_of(size_t node, Kind kind, size_t chunk) const;
  [[nodiscard]] Piece own_part(size_t chunk) const;  // of the source, in stream order
  [[nodiscard]] std::byte* partial_of(size_t node, size_t chunk) const;
  [[nodiscard]] bool may_post(size_t node, Kind kind, size_t chunk) const;
  [[nodiscard]] Result<bool> advance(size_t node, Kind kind);
  [[nodiscard]] bool combinable() const;
  size_t combine();  // returns bytes read
  [[nodiscard]] size_t chunks_of(size_t bytes) const;
  [[nodiscard]] bool reduces() const { return spec_.shape != Shape::gather; }

  collective::LeaderLinks* links_;
  size_t nodes_, self_;
  TransferSpec spec_;
  transport::Staging* scratch_ = nullptr;
  size_t ready_ = 0;
  size_t chunks_ = 0;  // that this node reduces
  size_t combined_ = 0;
  Depth depth_;                       // partial sums held at a time, of one peer
  std::vector<Lane> lanes_;           // by node and kind
  std::vector<const void*> sources_;  // by node
};

}  // namespace prunex::nccl::coll

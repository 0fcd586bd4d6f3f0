// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/coll/transfer.h"

#include <algorithm>
#include <utility>

#include "kernels/pack.h"
#include "plugin/collective/plan.h"

namespace prunex::nccl::coll {
namespace {

using collective::Channel;
using collective::peer_error;
using transport::Io;

// What a round of posting and reaping counts for: the transport copies in it, too.
constexpr int64_t kPassBytes = int64_t{64} << 10;
constexpr size_t kMaxDepth = 8;
constexpr size_t kScratchBytes = size_t{8} << 20;

}  // namespace

Transfer::Transfer(collective::LeaderLinks* links, size_t nodes, size_t self)
    : links_(links), nodes_(nodes), self_(self), lanes_(nodes * kKinds), sources_(nodes) {}

void Transfer::start(const TransferSpec& spec, transport::Staging& scratch) {
  spec_ = spec;
  scratch_ = &scratch;
  ready_ = combined_ = 0;
  depth_ = {};
  const bool whole = spec_.shape == Shape::exchange || spec_.shape == Shape::scatter;
  chunks_ = chunks_of(whole ? spec_.bytes : spec_.segments[self_].bytes);
  for (size_t n = 0; n < nodes_; ++n) {
    if (n == self_) {
      continue;
    }
    const size_t theirs = whole ? chunks_ : chunks_of(spec_.segments[n].bytes);
    Lane* lane = &lanes_[n * kKinds];
    for (size_t k = 0; k < kKinds; ++k) {
      lane[k].next = lane[k].done = 0;
    }
    lane[kSendPartial].total = reduces() ? theirs : 0;
    lane[kRecvPartial].total = reduces() ? chunks_ : 0;
    lane[kSendResult].total = spec_.shape == Shape::scatter || !reduces() ? chunks_ : 0;
    lane[kRecvResult].total = spec_.shape == Shape::scatter || !reduces() ? theirs : 0;
  }
  if (!reduces()) {
    combined_ = chunks_;
    return;
  }
  depth_ = depth_for(spec_.shape, nodes_, spec_.chunk_bytes, chunks_);
  scratch.reserve(depth_.slots * depth_.slot_bytes * (nodes_ - 1));
}

Transfer::Depth Transfer::depth_for(Shape shape, size_t nodes, size_t chunk_bytes, size_t chunks) {
  const size_t parts = shape == Shape::scatter ? nodes : 1, peers = nodes - 1;
  // A part is cut at multiples of 64 bytes, so it may be that much longer than its share.
  const size_t slot = std::min(chunk_bytes, chunk_bytes / parts + 64);
  const size_t most =
      peers == 0 ? 1 : std::clamp<size_t>(kScratchBytes / (slot * peers), 2, kMaxDepth);
  return {std::clamp<size_t>(chunks, 1, most), slot};
}

size_t Transfer::scratch_bytes(Shape shape, size_t nodes, size_t chunk_bytes, size_t bytes) {
  if (shape == Shape::gather) {
    return 0;
  }
  const size_t chunks = (bytes + chunk_bytes - 1) / chunk_bytes;
  const Depth depth = depth_for(shape, nodes, chunk_bytes, chunks);
  return depth.slots * depth.slot_bytes * (nodes - 1);
}

size_t Transfer::chunks_of(size_t bytes) const {
  return (bytes + spec_.chunk_bytes - 1) / spec_.chunk_bytes;
}

std::byte* Transfer::partial_of(size_t node, size_t chunk) const {
  const size_t peer = node < self_ ? node : node - 1;
  return scratch_->data() + (chunk % depth_.slots * (nodes_ - 1) + peer) * depth_.slot_bytes;
}

// In stream order; `at` is an offset into the source for whoever reduces.
Transfer::Piece Transfer::own_part(size_t chunk) const {
  return piece_of(self_, kSendPartial, chunk);
}

// What crosses: for partial sums what `node` adds up (received: what this node does), for results
// what its owner has added up.
Transfer::Piece Transfer::piece_of(size_t node, Kind kind, size_t chunk) const {
  const size_t begin = chunk * spec_.chunk_bytes;
  auto* source = const_cast<std::byte*>(spec_.source);  // only read: sends take const
  const bool own = kind == kRecvPartial || kind == kSendResult;
  const size_t owner = own ? self_ : node;
  if (spec_.shape == Shape::gather || spec_.shape == Shape::reduce_scatter) {
    const Segment& s = spec_.segments[owner];
    const size_t bytes = std::min(spec_.chunk_bytes, s.bytes - begin);
    if (kind == kRecvPartial) {
      return {partial_of(node, chunk), bytes, scratch_->region()};
    }
    if (kind == kSendResult) {  // gather: the source is the own segment
      return {source + begin, bytes, spec_.source_region};
    }
    return kind == kSendPartial
               ? Piece{source + s.offset + begin, bytes, spec_.source_region}
               : Piece{spec_.result + s.offset + begin, bytes, spec_.result_region};
  }
  const size_t size = size_of(spec_.type);
  const size_t end = std::min(spec_.bytes, begin + spec_.chunk_bytes);
  collective::Part part{0, (end - begin) / size};
  if (spec_.shape == Shape::scatter) {
    part = collective::part_of(part.count, nodes_, owner, size);
  }
  const size_t bytes = part.count * size;
  if (kind == kRecvPartial) {
    return {partial_of(node, chunk), bytes, scratch_->region()};
  }
  const size_t at = begin + part.offset * size;
  return kind == kSendPartial ? Piece{source + at, bytes, spec_.source_region}
                              : Piece{spec_.result + at, bytes, spec_.result_region};
}

bool Transfer::may_post(size_t node, Kind kind, size_t chunk) const {
  switch (kind) {
    case kSendPartial:
      return spec_.shape == Shape::reduce_scatter ||
             std::min(spec_.bytes, (chunk + 1) * spec_.chunk_bytes) <= ready_;
    case kRecvPartial:
      return chunk < combined_ + depth_.slots;
    case kSendResult:
      return chunk < combined_;
    case kRecvResult:
      // In place the result replaces what is still to be sent: the owner answers only when it has
      // all of it, but nothing here relies on that.
      return spec_.shape == Shape::gather || lanes_[node * kKinds + kSendPartial].done > chunk;
  }
  return false;
}

// Reaps what is done, in order, and posts what may be. The last look at the first unfinished
// message drives the connection.
Result<bool> Transfer::advance(size_t node, Kind kind) {
  Lane& lane = lanes_[node * kKinds + kind];
  if (lane.done == lane.total) {
    return false;
  }
  const bool sends = kind == kSendPartial || kind == kSendResult;
  const bool partial = kind == kSendPartial || kind == kRecvPartial;
  transport::Connection& link = links_->link(node, partial ? Channel::partials : Channel::results);
  const auto broken = [&] { return tl::unexpected(peer_error(links_->peer(node), link)); };
  bool moved = false;
  while (lane.next < lane.total && may_post(node, kind, lane.next)) {
    const Piece piece = piece_of(node, kind, lane.next);
    transport::Ticket ticket = 0;
    if (piece.bytes > 0) {
      const Io io = sends ? link.isend(piece.at, piece.bytes, piece.region, &ticket)
                          : link.irecv(piece.at, piece.bytes, piece.region, &ticket);
      if (io == Io::failed) {
        return broken();
      }
      if (io == Io::again) {
        break;
      }
      (sends ? links_->bytes_sent : links_->bytes_received) += piece.bytes;
    }
    lane.tickets[lane.next % kTickets] = ticket;
    ++lane.next;
    moved = true;
  }
  while (lane.done < lane.next) {
    if (const transport::Ticket ticket = lane.tickets[lane.done % kTickets]; ticket != 0) {
      size_t bytes = 0;
      const Io io = link.test(ticket, &bytes);
      if (io == Io::failed) {
        return broken();
      }
      if (io == Io::again) {
        break;
      }
      if (const size_t want = piece_of(node, kind, lane.done).bytes; bytes != want) {
        return fail(Code::internal,
                    strf("node %zu sent %zu bytes where %zu were due: the nodes run different "
                         "builds of this library",
                         node, bytes, want),
                    0, static_cast<int>(node));
      }
    }
    ++lane.done;
    moved = true;
  }
  return moved;
}

bool Transfer::combinable() const {
  if (combined_ >= chunks_) {
    return false;
  }
  if (spec_.shape != Shape::reduce_scatter &&
      std::min(spec_.bytes, (combined_ + 1) * spec_.chunk_bytes) > ready_) {
    return false;
  }
  for (size_t n = 0; n < nodes_; ++n) {
    if (n == self_) {
      continue;
    }
    const Lane* lane = &lanes_[n * kKinds];
    // In place the sum replaces what is sent to everybody.
    const bool sent = spec_.shape != Shape::exchange || lane[kSendPartial].done > combined_;
    if (lane[kRecvPartial].done <= combined_ || !sent) {
      return false;
    }
  }
  return true;
}

// Contributions are added in ascending node order whatever the order of arrival.
size_t Transfer::combine() {
  const Piece own = own_part(combined_);
  for (size_t n = 0; n < nodes_; ++n) {
    sources_[n] = n == self_ ? own.at : partial_of(n, combined_);
  }
  std::byte* to = spec_.shape == Shape::reduce_scatter
                      ? spec_.result + combined_ * spec_.chunk_bytes
                      : spec_.result + (own.at - spec_.source);
  if (own.bytes > 0) {
    reduce(to, spec_.type, sources_, spec_.type, own.bytes / size_of(spec_.type), spec_.op);
  }
  ++combined_;
  return own.bytes * nodes_;
}

Result<bool> Transfer::poll(int64_t* budget) {
  bool any = false;
  for (bool moved = true; moved && *budget > 0;) {
    moved = false;
    for (size_t d = 1; d < nodes_; ++d) {
      const size_t node = (self_ + d) % nodes_;  // not everybody starts with node 0
      for (const Kind kind : {kRecvPartial, kSendPartial, kRecvResult, kSendResult}) {
        auto one = advance(node, kind);
        if (!one) {
          return one;
        }
        moved = moved || *one;
      }
    }
    while (*budget > 0 && combinable()) {
      *budget -= static_cast<int64_t>(combine());
      moved = true;
    }
    any = any || moved;
    *budget -= kPassBytes;
  }
  return any;
}

size_t Transfer::finished_bytes() const {
  size_t chunks = combined_;
  for (size_t n = 0; n < nodes_; ++n) {
    if (n != self_ && spec_.shape == Shape::scatter) {
      chunks = std::min(chunks, lanes_[n * kKinds + kRecvResult].done);
    }
  }
  return std::min(spec_.bytes, chunks * spec_.chunk_bytes);
}

bool Transfer::complete() const {
  return combined_ == chunks_ &&
         std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& l) { return l.done == l.total; });
}

bool Transfer::posted() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& l) { return l.next == l.total; });
}

int Transfer::awaited_node() const {
  for (const Kind kind : {kRecvPartial, kRecvResult, kSendPartial, kSendResult}) {
    for (size_t n = 0; n < nodes_; ++n) {
      const Lane& lane = lanes_[n * kKinds + kind];
      if (n != self_ && lane.done < lane.next) {
        return static_cast<int>(n);
      }
    }
  }
  return -1;
}

}  // namespace prunex::nccl::coll

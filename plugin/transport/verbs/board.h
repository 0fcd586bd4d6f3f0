// SPDX-License-Identifier: Apache-2.0
// The registered memory of one connection: what the other end writes to, and what is on its way
// out.
#pragma once
#include <memory>
#include <utility>

#include "plugin/transport/verbs/memory.h"
#include "plugin/transport/verbs/wire.h"

namespace prunex::transport::verbs {

class Board {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Board>> open(Memory::Devices devices);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  [[nodiscard]] std::byte* at(size_t area, size_t place, size_t place_bytes) const {
    return base_ + area + place * place_bytes;
  }
  [[nodiscard]] std::byte* credit(uint32_t sequence) const {
    return at(kCreditsAt, sequence % kPlaces, kPlaceBytes);
  }
  [[nodiscard]] std::byte* notice(uint32_t sequence) const {
    return at(kNoticesAt, sequence % kPlaces, kPlaceBytes);
  }
  [[nodiscard]] std::byte* eager(uint32_t sequence) const {
    return at(kEagerAt, sequence % kPlaces, kEagerBytes);
  }
  [[nodiscard]] std::byte* bounce(int slot) const {
    return at(kBounceAt, static_cast<size_t>(slot), kEagerBytes);
  }
  // The places of the two rings, by the count of their pieces.
  [[nodiscard]] std::byte* ring(uint32_t piece) const {
    return at(kRingAt, piece % kPieces, kPieceBytes);
  }
  [[nodiscard]] std::byte* out_ring(uint32_t piece) const {
    return at(kOutRingAt, piece % kPieces, kPieceBytes);
  }
  // The next place for a record on its way out: free again before its turn comes, since no more
  // than kSendDepth writes are under way.
  // n: side by side.
  [[nodiscard]] std::byte* outbox(size_t n = 1) {
    next_ = next_ % kSendDepth + n > kSendDepth ? 0 : next_ % kSendDepth;
    return at(kOutboxAt, std::exchange(next_, next_ + static_cast<uint32_t>(n)), kPlaceBytes);
  }

  [[nodiscard]] const Memory& memory() const { return *memory_; }

 private:
  explicit Board(std::byte* base) : base_(base) {}
  std::byte* base_;
  uint32_t next_ = 0;
  std::shared_ptr<const Memory> memory_;
};

}  // namespace prunex::transport::verbs

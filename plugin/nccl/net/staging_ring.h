// SPDX-License-Identifier: Apache-2.0
// Pieces of one buffer for messages on their way, taken in the order of the messages and given back
// in about that order. Only numbers: the memory is somebody else's.
#pragma once
#include <array>
#include <cstddef>
#include <optional>

namespace prunex::nccl {

class StagingRing {
 public:
  static constexpr size_t kAlign = 64;
  static constexpr size_t kPieces = 64;
  explicit StagingRing(size_t bytes) : bytes_(bytes / kAlign * kAlign) {}

  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }

  // Where the piece begins, a multiple of kAlign; nothing while there is no room.
  [[nodiscard]] std::optional<size_t> take(size_t bytes) {
    const size_t need = (bytes + kAlign - 1) / kAlign * kAlign;
    if (need == 0 || need > bytes_ || count_ == kPieces) {
      return std::nullopt;
    }
    const std::optional<size_t> at = place(need);
    if (at) {
      pieces_[(first_ + count_++) % kPieces] = {*at, *at + need, false};
    }
    return at;
  }

  // Room comes back when all pieces before it are given back, too.
  void give(size_t at) {
    for (size_t i = 0; i < count_; ++i) {
      Piece& piece = pieces_[(first_ + i) % kPieces];
      if (piece.begin == at) {
        piece.free = true;
        break;
      }
    }
    while (count_ > 0 && pieces_[first_].free) {
      first_ = (first_ + 1) % kPieces;
      --count_;
    }
  }

 private:
  struct Piece {
    size_t begin = 0, end = 0;
    bool free = false;
  };

  [[nodiscard]] std::optional<size_t> place(size_t need) const {
    if (count_ == 0) {
      return 0;
    }
    const size_t head = pieces_[first_].begin;
    const size_t tail = pieces_[(first_ + count_ - 1) % kPieces].end;
    if (tail > head) {  // behind the last, or from the start again
      return tail + need <= bytes_ ? std::optional(tail)
             : need <= head        ? std::optional<size_t>(0)
                                   : std::nullopt;
    }
    return tail + need <= head ? std::optional(tail) : std::nullopt;
  }

  size_t bytes_;
  std::array<Piece, kPieces> pieces_{};
  size_t first_ = 0, count_ = 0;
};

}  // namespace prunex::nccl

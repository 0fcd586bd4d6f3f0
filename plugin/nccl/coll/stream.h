// SPDX-License-Identifier: Apache-2.0
// What of a user's buffer crosses, as one linear stream: all of it where it lies, or the elements
// that a mask keeps, or the blocks that are not zero everywhere, packed into memory of its own.
// Packing and unpacking go in steps, so that no call takes long.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/layout.h"
#include "kernels/pack.h"
#include "plugin/base/dtype.h"
#include "plugin/nccl/coll/blocks.h"
#include "plugin/transport/staging.h"

namespace prunex::nccl::coll {

inline constexpr size_t kStepBytes = size_t{128} << 10;  // of the user's buffer, per step

// A piece [begin, end) of the tensor that a layout of one masked segment describes.
struct MaskedPiece {
  std::shared_ptr<const Layout> layout;
  uint64_t begin = 0, end = 0;            // elements of the tensor
  uint64_t kept_begin = 0, kept_end = 0;  // of its packed stream
  [[nodiscard]] uint64_t kept() const { return kept_end - kept_begin; }
};
// Cuts the piece of `layout`, which has one segment with a mask.
[[nodiscard]] MaskedPiece make_piece(std::shared_ptr<const Layout> layout, uint64_t begin,
                                     uint64_t end);
// Kept elements before `index`. O(log^2).
[[nodiscard]] uint64_t kept_before(const CompiledMask& mask, uint64_t index);

class Stream {
 public:
  Stream() = default;
  [[nodiscard]] static Stream dense(const std::byte* send, std::byte* recv, size_t bytes);
  // memory: for the packed elements; it and the map are the caller's and outlive the stream.
  [[nodiscard]] static Stream masked(const std::byte* send, std::byte* recv, DType type,
                                     MaskedPiece piece, bool counted, transport::Staging& memory);
  [[nodiscard]] static Stream mapped(const std::byte* send, std::byte* recv, const BlockMap& map,
                                     transport::Staging& memory);

  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] const std::byte* source() const {
    return kind_ == Kind::dense ? send_ : memory_->data();
  }
  [[nodiscard]] std::byte* result() { return kind_ == Kind::dense ? recv_ : memory_->data(); }

  // Of what is packed; nullptr in a dense stream, and where it is not registered.
  [[nodiscard]] const transport::Region* region() const {
    return kind_ == Kind::dense ? nullptr : memory_->region();
  }
  [[nodiscard]] bool dense() const { return kind_ == Kind::dense; }

  // The next step of packing; bytes of the user's buffer looked at, 0: all is packed.
  size_t pack_step();
  [[nodiscard]] size_t packed_bytes() const { return packed_; }
  [[nodiscard]] bool packed() const { return logical_packed_ == logical_; }
  [[nodiscard]] const AuditCount& dropped() const { return dropped_; }

  // The next step of unpacking, of a stream that is final up to `finished`; 0: not now, or done.
  size_t unpack_step(size_t finished);
  [[nodiscard]] bool unpacked() const { return logical_unpacked_ == logical_; }

 private:
  enum class Kind : uint8_t { dense, masked, mapped };
  struct Step {
    uint64_t begin = 0, end = 0;  // elements of the tensor, or blocks
    size_t bytes = 0;             // of the packed stream
    size_t logical = 0;           // bytes of the user's buffer
    Slice slice;
  };
  [[nodiscard]] Step step_at(size_t logical) const;
  // Element 0 of the tensor of which this is a piece.
  template <class Byte>
  [[nodiscard]] Byte* tensor(Byte* piece) const {
    return piece - piece_.begin * size_of(type_);
  }

  Kind kind_ = Kind::dense;
  DType type_ = DType::i8;
  const std::byte* send_ = nullptr;
  std::byte* recv_ = nullptr;
  size_t logical_ = 0;  // bytes of the user's buffer
  size_t bytes_ = 0;    // of the stream
  MaskedPiece piece_;
  bool counted_ = false;  // dropped elements are looked at
  const BlockMap* map_ = nullptr;
  transport::Staging* memory_ = nullptr;
  size_t packed_ = 0, unpacked_ = 0;                  // bytes of the stream
  size_t logical_packed_ = 0, logical_unpacked_ = 0;  // bytes of the user's buffer
  AuditCount dropped_;
};

}  // namespace prunex::nccl::coll

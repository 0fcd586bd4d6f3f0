// SPDX-License-Identifier: Apache-2.0
// Leaves out blocks of 128 bytes that hold only zero bits. Bytes are tested, never values: -0.0 and
// NaN are ordinary bytes.
//
// Not for NCCL's LL and LL128 protocols, whose receivers poll the buffer for flags while it is
// being written. An LL line holds a flag in every 8 bytes and an LL128 line one in every 128, so
// such a message never has a zero block: it would be scanned for nothing.
//
// Payload: one bit per whole block, set when the block is there, in little-endian 64-bit words
// (bits past the last block are 0); those blocks; what is left of the source behind its last whole
// block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/nccl/codec/step.h"

namespace prunex::nccl::codec {

inline constexpr size_t kLeastScanned = 4096;  // bytes; shorter messages are not worth a scan

// A look at 32 blocks spread over the message: are enough of them zero for an encoder to pay? The
// same answer for the same bytes. Dense data cost one cache line per block looked at.
[[nodiscard]] bool worth_scanning(const void* src, size_t bytes);

// An encoding pays when it has at most this many bytes.
[[nodiscard]] constexpr size_t paying_size(size_t bytes) { return bytes - (bytes + 15) / 16; }

// Bytes that the bitmap of a piece's blocks takes.
[[nodiscard]] constexpr size_t block_map_bytes(size_t blocks) { return (blocks + 63) / 64 * 8; }

class ZeroBlockEncoder {
 public:
  // Writes to out only, at most paying_size(bytes) of it.
  void begin(const void* src, size_t bytes, std::span<std::byte> out);
  [[nodiscard]] Encoding step(size_t budget);
  [[nodiscard]] size_t size() const { return size_; }  // of the payload, when done

 private:
  Encoding run(size_t budget);
  Encoding finish();

  const std::byte* src_ = nullptr;
  std::byte* out_ = nullptr;
  size_t bytes_ = 0, blocks_ = 0;
  size_t at_ = 0;     // blocks scanned
  size_t size_ = 0;   // bytes of out written
  size_t limit_ = 0;  // bytes of out that bitmap and blocks may take
  uint64_t word_ = 0;
  Encoding state_ = Encoding::does_not_pay;
};

class ZeroBlockDecoder {
 public:
  // `logical`: bytes of the piece, from its header; `capacity`: bytes at dst. All of in is checked
  // here, so that a corrupt payload writes nothing. Afterwards the first `logical` bytes of dst are
  // written, once each, by ordinary stores to ascending addresses.
  void begin(std::span<const std::byte> in, size_t logical, void* dst, size_t capacity);
  [[nodiscard]] bool refused() const { return state_ == Decoding::corrupt; }  // by begin()
  [[nodiscard]] Decoding step(size_t budget);

 private:
  const std::byte* bitmap_ = nullptr;
  const std::byte* in_ = nullptr;  // the next block that is there
  std::byte* dst_ = nullptr;
  size_t logical_ = 0, blocks_ = 0;
  size_t at_ = 0;  // blocks written
  Decoding state_ = Decoding::corrupt;
};

}  // namespace prunex::nccl::codec

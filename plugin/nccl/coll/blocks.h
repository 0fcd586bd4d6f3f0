// SPDX-License-Identifier: Apache-2.0
// Maps of the blocks of a buffer that are not all zero bytes. Bytes are compared, not values: -0.0
// and NaN are not zero, and no type is assumed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace prunex::nccl::coll {

// Bytes of a block: 128, more among many nodes, so that the maps stay below 0.8 % of what a dense
// all-reduce moves.
[[nodiscard]] size_t block_bytes_for(size_t nodes);

struct BlockMap {
  size_t block_bytes = 128;
  size_t bytes = 0;             // of the buffer; the last block may be shorter
  std::vector<uint64_t> words;  // bit set: the block is kept; bits past the last block are zero

  [[nodiscard]] size_t blocks() const { return (bytes + block_bytes - 1) / block_bytes; }
  [[nodiscard]] size_t map_bytes() const { return words.size() * sizeof(uint64_t); }
  [[nodiscard]] bool kept(size_t block) const {
    return (words[block / 64] >> (block % 64) & 1) != 0;
  }
  // Bytes of kept blocks.
  [[nodiscard]] size_t kept_bytes() const;
};

[[nodiscard]] BlockMap make_block_map(size_t bytes, size_t block_bytes);
// The same in a map that is used again: allocates only where it becomes longer than ever.
void reset_block_map(BlockMap& map, size_t bytes, size_t block_bytes);

// Sets the bits of blocks [first, last) whose bytes are not all zero. first is a multiple of 64.
void scan_blocks(BlockMap& map, const std::byte* buffer, size_t first, size_t last);

// Adds another node's map, as it came over the wire. false: it has another size, or bits past the
// end.
[[nodiscard]] bool merge_map(BlockMap& map, std::span<const std::byte> other);

// Copies kept blocks of [first, last) to `packed`, or back with zeros in all others (left alone
// when `zeros` is false: the buffer holds them already). Returns the bytes packed or unpacked.
size_t pack_blocks(const BlockMap& map, const std::byte* buffer, size_t first, size_t last,
                   std::byte* packed);
size_t unpack_blocks(const BlockMap& map, const std::byte* packed, size_t first, size_t last,
                     std::byte* buffer, bool zeros);
// Bytes that pack_blocks would write.
[[nodiscard]] size_t kept_in(const BlockMap& map, size_t first, size_t last);

}  // namespace prunex::nccl::coll

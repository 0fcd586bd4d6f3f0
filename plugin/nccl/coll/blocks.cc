// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/coll/blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace prunex::nccl::coll {
namespace {

size_t end_of(const BlockMap& map, size_t block) {
  return std::min(map.bytes, (block + 1) * map.block_bytes);
}

// A loop without an early exit, which the compiler makes wide; blocks are short.
bool is_nonzero(const std::byte* p, size_t bytes) {
  uint64_t any = 0;
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, p + at, 8);
    any |= word;
  }
  for (; at < bytes; ++at) {
    any |= std::to_integer<uint64_t>(p[at]);
  }
  return any != 0;
}

// visit(begin, end, kept) for stretches of blocks that are all kept or all not.
template <class Visit>
void for_each_stretch(const BlockMap& map, size_t first, size_t last, Visit visit) {
  for (size_t at = first; at < last;) {
    const bool kept = map.kept(at);
    size_t end = at + 1;
    while (end < last) {
      const uint64_t word = map.words[end / 64] ^ (kept ? ~uint64_t{0} : 0);  // 1: another kind
      const uint64_t rest = word >> (end % 64);
      if (rest != 0) {
        end += static_cast<size_t>(std::countr_zero(rest));
        break;
      }
      end = (end / 64 + 1) * 64;
    }
    end = std::min(end, last);
    visit(at * map.block_bytes, end_of(map, end - 1), kept);
    at = end;
  }
}

}  // namespace

size_t block_bytes_for(size_t nodes) { return std::max<size_t>(128, std::bit_ceil(8 * nodes)); }

BlockMap make_block_map(size_t bytes, size_t block_bytes) {
  BlockMap map;
  reset_block_map(map, bytes, block_bytes);
  return map;
}

void reset_block_map(BlockMap& map, size_t bytes, size_t block_bytes) {
  map.block_bytes = block_bytes;
  map.bytes = bytes;
  map.words.assign((map.blocks() + 63) / 64, 0);
}

size_t BlockMap::kept_bytes() const { return kept_in(*this, 0, blocks()); }

void scan_blocks(BlockMap& map, const std::byte* buffer, size_t first, size_t last) {
  for (size_t at = first; at < last; at += 64) {
    uint64_t word = 0;
    const size_t end = std::min(last, at + 64);
    for (size_t b = at; b < end; ++b) {
      const size_t begin = b * map.block_bytes;
      const bool nonzero = is_nonzero(buffer + begin, end_of(map, b) - begin);
      word |= static_cast<uint64_t>(nonzero) << (b - at);
    }
    map.words[at / 64] = word;
  }
}

bool merge_map(BlockMap& map, std::span<const std::byte> other) {
  if (other.size() != map.map_bytes()) {
    return false;
  }
  for (size_t i = 0; i < map.words.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, other.data() + i * sizeof word, sizeof word);
    map.words[i] |= word;
  }
  const size_t tail = map.blocks() % 64;
  return tail == 0 || map.words.back() >> tail == 0;
}

size_t pack_blocks(const BlockMap& map, const std::byte* buffer, size_t first, size_t last,
                   std::byte* packed) {
  std::byte* to = packed;
  for_each_stretch(map, first, last, [&](size_t begin, size_t end, bool kept) {
    if (kept) {
      std::memcpy(to, buffer + begin, end - begin);
      to += end - begin;
    }
  });
  return static_cast<size_t>(to - packed);
}

size_t unpack_blocks(const BlockMap& map, const std::byte* packed, size_t first, size_t last,
                     std::byte* buffer, bool zeros) {
  const std::byte* from = packed;
  for_each_stretch(map, first, last, [&](size_t begin, size_t end, bool kept) {
    if (kept) {
      std::memcpy(buffer + begin, from, end - begin);
      from += end - begin;
    } else if (zeros) {
      std::memset(buffer + begin, 0, end - begin);
    }
  });
  return static_cast<size_t>(from - packed);
}

size_t kept_in(const BlockMap& map, size_t first, size_t last) {
  size_t bytes = 0;
  for_each_stretch(map, first, last,
                   [&](size_t begin, size_t end, bool kept) { bytes += kept ? end - begin : 0; });
  return bytes;
}

}  // namespace prunex::nccl::coll

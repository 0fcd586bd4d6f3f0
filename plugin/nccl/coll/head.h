// SPDX-License-Identifier: Apache-2.0
// What nodes tell each other before a collective, behind the engine's call header in the same
// message; then the node's block map, or, in small calls, its whole contribution.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/base/result.h"
#include "plugin/collective/call.h"

namespace prunex::nccl::coll {

enum class Function : uint8_t { all_reduce = 0, all_gather, reduce_scatter };

// How the sender would like to send its contribution.
enum class Wish : uint8_t { dense = 0, masked, mapped };

struct CollHead {
  static constexpr size_t kWireBytes = 64;

  Function function = Function::all_reduce;
  Wish wish = Wish::dense;
  uint8_t contract = 0;  // collective::Contract of the mask
  uint8_t inlined = 0;   // the whole contribution follows
  uint8_t strict = 0;    // PRUNEX_ON_MISMATCH=error
  uint32_t map_bytes = 0;
  uint32_t inline_bytes = 0;
  uint64_t piece = 0;  // which part of a long call
  uint64_t bytes_per_rank = 0, window_offset = 0, window_bytes = 0;
  uint64_t offender = 0, nonzero = 0;  // after a violation: element of the call's buffer, how many
};

struct CollMessage {  // as received; spans point into the message
  collective::CallHeader header;
  CollHead head;
  std::span<const std::byte> map, data;
};

void encode(const CollHead& head, std::span<std::byte, CollHead::kWireBytes> out);
// `payload`: what follows the call header.
[[nodiscard]] Result<CollMessage> decode(const collective::CallHeader& header,
                                         std::span<const std::byte> payload);

}  // namespace prunex::nccl::coll

// SPDX-License-Identifier: Apache-2.0
// What ranks say to each other about a call before any size is trusted (design rule 4). The header
// is compared in shared memory inside a node and crosses between leaders as a fixed-size message;
// in small calls the payload follows it in the same message.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "plugin/base/dtype.h"
#include "plugin/base/result.h"

namespace prunex::collective {

enum class Scope : uint8_t { world = 0, node, leaders };

enum class Collective : uint8_t { all_reduce = 0, broadcast, all_gather, reduce_scatter, barrier };
inline constexpr int kNumCollectives = 5;
[[nodiscard]] constexpr const char* name_of(Collective c) {
  constexpr const char* kNames[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter",
                                    "barrier"};
  return kNames[static_cast<size_t>(c)];
}

enum class MessageKind : uint8_t { call = 1, commit = 2, abort = 3 };

// Is everything that this side dropped zero?
enum class Audit : uint8_t { pending = 0, clean = 1, violated = 2 };

// Little-endian on the wire; every field has a fixed width, no padding.
struct CallHeader {
  static constexpr uint32_t kMagic = 0x50525843;  // "PRXC"
  static constexpr uint16_t kVersion = 1;
  static constexpr size_t kWireBytes = 80;

  MessageKind kind = MessageKind::call;
  uint64_t sequence = 0;      // of exchanges between nodes
  uint64_t count = 0;         // elements of the user's buffer
  uint64_t shape_digest = 0;  // segments
  uint64_t mask_digest = 0;   // masks in force, with their contracts
  uint64_t extra_digest = 0;  // further arguments: of mask agreement; which collective and its root
  uint8_t op = 0, dtype = 0, scope = 0;
  uint8_t audited = 0;         // dropped elements of this call are checked
  uint8_t local_mismatch = 0;  // ranks of the sender's node already disagree
  Audit audit = Audit::pending;
  uint32_t payload = 0;    // bytes that follow in the same message
  uint8_t late = 0;        // abort: the culprit did not come in time; otherwise it is lost
  int32_t culprit = -1;    // abort: the rank to blame
  uint64_t wire_kept = 0;  // elements that cross

  // Do two ranks mean the same call? Fields that may differ (kind, audit, payload, …) are left out.
  [[nodiscard]] bool same_call(const CallHeader& other) const {
    return sequence == other.sequence && count == other.count && op == other.op &&
           dtype == other.dtype && scope == other.scope && audited == other.audited &&
           shape_digest == other.shape_digest && mask_digest == other.mask_digest &&
           extra_digest == other.extra_digest && wire_kept == other.wire_kept;
  }
};

void encode(const CallHeader& header, std::span<std::byte, CallHeader::kWireBytes> out);
// `bytes` is a whole received message; header.payload is checked against what follows the header.
[[nodiscard]] Result<CallHeader> decode_call(std::span<const std::byte> bytes);

}  // namespace prunex::collective

// SPDX-License-Identifier: Apache-2.0
// Everything of the verbs transport that crosses a machine: over TCP while the ends meet, and as
// small records written into the other end's memory. Little-endian.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/transport/handle.h"
#include "plugin/transport/transport.h"
#include "plugin/transport/verbs/devices.h"

namespace prunex::transport::verbs {

// A handle is the meeting listener's own, behind a prefix that names this transport.
[[nodiscard]] std::string wrap_handle(std::string_view meeting);
[[nodiscard]] Result<std::string> unwrap_handle(std::string_view handle);

inline constexpr size_t kMaxRails = 4;        // ports that one connection uses
inline constexpr size_t kMaxQueuePairs = 16;  // of one connection, over all its ports

// One port of an end.
struct RailEnd {
  std::string device;  // "mlx5_0:1"
  uint16_t lid = 0;
  Link link = Link::other;
  uint8_t gid_type = 0;  // of GidType
  uint16_t gid_index = 0;
  GidBytes gid{};
  uint8_t network_bits = 0;  // of the GID's address; 0: not known
  uint32_t mtu = 0;          // bytes
  uint32_t speed = 0;        // Gb/s; 0: not known
  uint64_t max_message = 0;  // bytes of one work request
  uint32_t board_key = 0;
  uint8_t partner = 0;  // which port of the connecting end it is paired with; its answer counts
  uint32_t packet = 0;  // number of the first packet, of every queue pair
  std::vector<uint32_t> queue_pairs;  // their numbers
};

// What each end tells the other about itself.
struct Endpoint {
  std::string failure;  // not empty: why there will be no connection; nothing else counts then
  uint32_t first_sequence = 0;  // of both directions; the connecting end's counts
  bool takes_eager = true;      // messages may come before their receives
  uint64_t board = 0;           // address of the memory that the other end writes its records to
  std::vector<RailEnd> rails;
};
inline constexpr size_t kEndpointBytes = 2048;
[[nodiscard]] std::array<std::byte, kEndpointBytes> encode(const Endpoint& endpoint);
[[nodiscard]] Result<Endpoint> decode_endpoint(std::span<const std::byte, kEndpointBytes> bytes);

// Where a receive's data go. Written by the receiving side, one place per sequence modulo 64.
struct Credit {
  enum Kind : uint8_t { posted = 0, granted = 1 };  // granted: the answer to an ask
  uint32_t sequence = 0;
  uint32_t consumed = 0;  // all messages before this one are out of the receiver's eager places
  uint64_t address = 0;   // 0: nowhere directly; in pieces, or through an eager place
  uint64_t capacity = 0;
  std::array<uint32_t, kMaxRails> keys{};  // by the connection's rails
  Kind kind = posted;
};
inline constexpr size_t kRecordBytes = 48;
using RecordBytes = std::array<std::byte, kRecordBytes>;
[[nodiscard]] RecordBytes encode(const Credit& credit);
[[nodiscard]] bool decode(std::span<const std::byte, kRecordBytes> bytes, Credit* out);

// About a message, where its announcement does not fit into an immediate.
struct Notice {
  // arrived: it is where the credit said. ask: where to? too_long: it will not come.
  enum Kind : uint8_t { arrived = 1, ask = 2, too_long = 3 };
  uint32_t sequence = 0;
  uint64_t bytes = 0;
  Mark mark = 0;
  Kind kind = arrived;
  uint16_t stripes = 0;  // arrived: so many queue pairs announce a part of it besides
};
[[nodiscard]] RecordBytes encode(const Notice& notice);
[[nodiscard]] bool decode(std::span<const std::byte, kRecordBytes> bytes, Notice* out);

// The 32 bits that come with a write.
struct Immediate {
  // control: about no message of its own. direct, eager: a message is complete. piece: a part of
  // one that goes through the receiver's ring; its value is pack_piece()'s.
  enum Kind : uint8_t { control = 0, direct = 1, eager = 2, piece = 3 };
  Kind kind = control;
  uint8_t mark = 0;    // control: a Control
  uint32_t value = 0;  // place, count or bytes
};
// credit, notice: the place of the record that was written. taken: so many pieces are out of the
// ring (modulo 2^22). stripe: a queue pair's part of the message at that place is complete.
enum class Control : uint8_t { credit = 0, notice = 1, taken = 2, stripe = 3 };

// credit: so many from that place on, one after the other.
inline constexpr size_t kMostCredits = 4;
[[nodiscard]] constexpr uint32_t pack_credits(uint32_t place, uint32_t count) {
  return place | (count - 1) << 8;
}
[[nodiscard]] constexpr uint32_t place_of_credits(uint32_t value) { return value & 0xFF; }
[[nodiscard]] constexpr uint32_t count_of_credits(uint32_t value) {
  return static_cast<uint32_t>(std::min<size_t>((value >> 8) + size_t{1}, kMostCredits + 1));
}

inline constexpr uint32_t kMaxImmediateBytes = (1U << 22) - 1;
[[nodiscard]] constexpr uint32_t pack(const Immediate& i) {
  return static_cast<uint32_t>(i.kind) << 30 | static_cast<uint32_t>(i.mark) << 22 |
         (i.value & kMaxImmediateBytes);
}
[[nodiscard]] constexpr Immediate unpack(uint32_t v) {
  return {static_cast<Immediate::Kind>(v >> 30), static_cast<uint8_t>(v >> 22 & 0xFF),
          v & kMaxImmediateBytes};
}
inline constexpr uint32_t kLastPiece = 1U << 21;  // in a piece's value, beside its bytes

// The memory of a connection that the other end writes to ("board"), and behind it this end's own.
inline constexpr size_t kEagerBytes = 4096;  // longest message that needs no credit
inline constexpr size_t kShortBytes = 256;   // longest receive that no credit is sent for
inline constexpr size_t kPlaces = static_cast<size_t>(kMaxInFlight);
inline constexpr size_t kPlaceBytes = 64;  // of a record
inline constexpr uint32_t kSendDepth = 256;
// Memory that is not registered goes through rings of pieces on both sides.
inline constexpr size_t kPieceBytes = size_t{32} << 10;
inline constexpr uint32_t kPieces = 16;
inline constexpr size_t kCreditsAt = 0;
inline constexpr size_t kNoticesAt = kCreditsAt + kPlaces * kPlaceBytes;
inline constexpr size_t kEagerAt = kNoticesAt + kPlaces * kPlaceBytes;
inline constexpr size_t kRingAt = kEagerAt + kPlaces * kEagerBytes;
inline constexpr size_t kOutboxAt = kRingAt + kPieces * kPieceBytes;  // records on their way out
inline constexpr size_t kBounceAt = kOutboxAt + kSendDepth * kPlaceBytes;
inline constexpr size_t kOutRingAt = kBounceAt + kPlaces * kEagerBytes;
inline constexpr size_t kBoardBytes = kOutRingAt + kPieces * kPieceBytes;

}  // namespace prunex::transport::verbs

// SPDX-License-Identifier: Apache-2.0
// What crosses the star's connections. A frame is a header {magic, version, kind, sequence, length}
// of fixed size, all little-endian, and a body. Whatever comes in is untrusted: decoders take a
// bounded span, check every length against it and against a limit, and accept no byte too many.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/result.h"
#include "plugin/base/sockets.h"
#include "plugin/bootstrap/control.h"

namespace prunex::wire {

inline constexpr uint32_t kMagic = 0x31'58'52'50;  // "PRX1" in memory order
inline constexpr uint16_t kVersion = 1;
inline constexpr size_t kHeaderBytes = 24;
inline constexpr size_t kMaxName = 255;          // bytes of a communicator's name
inline constexpr size_t kMaxText = 4096;         // bytes of an error text
inline constexpr size_t kMaxRecord = 64u << 20;  // bytes one rank contributes to an all-gather

enum class Kind : uint16_t {
  hello = 1,  // member -> rank 0: who I am; body Hello
  welcome,   // rank 0 -> member: hello accepted, answer with ack. A caller that has gone never acks
  ack,       // member -> rank 0: from here on, losing me is a death
  refuse,    // rank 0 -> member: go away; body Refusal
  ready,     // rank 0 -> member: all ranks are here
  gather,    // member -> rank 0: contribution to all-gather `sequence`
  gathered,  // rank 0 -> member: all contributions; body as encode_records
  give_up,   // member -> rank 0: my deadline for `sequence` (0: opening) passed; who is missing?
  report,    // member -> rank 0: a finding; body Verdict
  verdict,   // rank 0 -> member: the verdict; body Verdict
  goodbye,   // orderly close
};
inline constexpr uint16_t kLastKind = static_cast<uint16_t>(Kind::goodbye);

struct Header {
  Kind kind = Kind::goodbye;
  uint64_t sequence = 0;
  uint64_t length = 0;  // bytes of the body
};

// The longest body a frame of this kind may have among `size` ranks.
[[nodiscard]] uint64_t max_length(Kind kind, int size);
// Code::mismatch: a PruneX of another version. Code::invalid_argument: no PruneX, or a length
// beyond the kind's limit.
[[nodiscard]] Result<Header> decode_header(std::span<const std::byte> bytes, int size);
// Header and body in one piece, as it is sent.
[[nodiscard]] std::string encode_frame(Kind kind, uint64_t sequence, std::string_view body);

struct Hello {
  uint32_t rank = 0, size = 0;
  Cookie cookie{};   // zero where no store carried one
  std::string name;  // of the communicator
};
[[nodiscard]] std::string encode(const Hello& hello);
[[nodiscard]] Result<Hello> decode_hello(std::span<const std::byte> body);

enum class Reason : uint16_t {
  another_communicator = 1,  // try again: that one will have met before long
  world_size,
  rank_range,
  duplicate,
};
struct Refusal {
  Reason reason = Reason::another_communicator;
  std::string text;
};
[[nodiscard]] std::string encode(const Refusal& refusal);
[[nodiscard]] Result<Refusal> decode_refusal(std::span<const std::byte> body);

[[nodiscard]] std::string encode(const Verdict& verdict);  // cuts the text at kMaxText
[[nodiscard]] Result<Verdict> decode_verdict(std::span<const std::byte> body, int size);

[[nodiscard]] std::string encode_records(std::span<const std::string_view> records);
[[nodiscard]] Result<std::vector<std::string>> decode_records(std::span<const std::byte> body,
                                                              int size);

// What rank 0 leaves in a store: the cookie and where it listens.
struct RootCard {
  Cookie cookie{};
  std::vector<SocketAddress> addresses;  // best first
};
inline constexpr size_t kMaxCardAddresses = 16;
[[nodiscard]] std::string encode(const RootCard& card);  // printable text
[[nodiscard]] Result<RootCard> decode_card(std::string_view text);

[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace prunex::wire

// SPDX-License-Identifier: Apache-2.0
// Everything of the socket transport that crosses a machine. All fields are little-endian; magic,
// version and cookie stay where they are in every version, so that versions can tell each other
// apart.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plugin/base/result.h"
#include "plugin/base/sockets.h"
#include "plugin/transport/handle.h"

namespace prunex::transport {

inline constexpr int kMaxStreams = 64;

// Where a listener is, and how it knows who was told.
struct Handle {
  SocketAddress address;
  Cookie cookie{};
};
inline constexpr size_t kHandleBytes = kHandlePrefixBytes + 20;
static_assert(kHandleBytes <= kMaxHandle);
[[nodiscard]] std::string encode(const Handle& handle);
// Bytes behind the handle are ignored: callers carry it in fields of fixed size.
[[nodiscard]] Result<Handle> decode_handle(std::string_view bytes);

// The first bytes on every stream, connecting side to accepting side; `text_bytes` of hello follow.
struct Hello {
  uint16_t version = kWireVersion;
  uint16_t text_bytes = 0;
  Cookie cookie{};
  uint64_t connection = 0;  // the same on all streams of a connection
  uint16_t stream = 0, streams = 0;
  uint32_t first_sequence = 0;  // of both directions
};
inline constexpr size_t kHelloBytes = 40;
[[nodiscard]] std::array<std::byte, kHelloBytes> encode(const Hello& hello);
// false: not one of ours. A wrong version is decoded as far as the cookie and left to the caller.
[[nodiscard]] bool decode_hello(std::span<const std::byte, kHelloBytes> bytes, Hello* out);
// Whether the bytes seen so far can still become a hello: a stray is dropped at its first byte.
[[nodiscard]] bool may_be_hello(std::span<const std::byte> bytes);

// The answer on every stream, once all streams are there.
enum class ReplyCode : uint16_t { accepted = 0, wrong_version = 1 };
struct Reply {
  uint16_t version = kWireVersion;
  ReplyCode code = ReplyCode::accepted;
};
inline constexpr size_t kReplyBytes = 8;
[[nodiscard]] std::array<std::byte, kReplyBytes> encode(const Reply& reply);
[[nodiscard]] bool decode_reply(std::span<const std::byte, kReplyBytes> bytes, Reply* out);

// Before every piece of a message on a stream. A message that is not striped is one fragment.
struct FragmentHeader {
  uint8_t kind = 0;  // 0: raw; the others are reserved for payloads that are not the message itself
  uint8_t flags = 0;  // the message's Mark, the same on all its fragments
  uint32_t sequence = 0;
  uint64_t message = 0;  // bytes of the whole message
  uint64_t offset = 0, length = 0;
};
inline constexpr size_t kFragmentBytes = 32;
[[nodiscard]] std::array<std::byte, kFragmentBytes> encode(const FragmentHeader& header);
// false: the stream is out of step. What it gives is in bounds: offset + length <= message.
[[nodiscard]] bool decode_fragment(std::span<const std::byte, kFragmentBytes> bytes,
                                   FragmentHeader* out);

}  // namespace prunex::transport

// SPDX-License-Identifier: Apache-2.0
// What crosses between two processes while they introduce themselves. Same machine, but not
// necessarily the same build: fields are fixed and versioned as on a network.
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

namespace prunex::transport::shm {

inline constexpr size_t kNameBytes = 48;  // of random_name()
inline constexpr size_t kMinRing = size_t{4} << 10, kMaxRing = size_t{1} << 30;

struct Handle {
  std::string path;  // of the listener's socket
  Cookie cookie{};
};
[[nodiscard]] std::string encode(const Handle& handle);
[[nodiscard]] Result<Handle> decode_handle(std::string_view bytes);

// One record from the connecting side.
struct Hello {
  uint16_t version = kWireVersion;
  Cookie cookie{};
  uint64_t ring_bytes = 0;
  uint32_t first_sequence = 0;
  std::string segment;  // name of the shared memory
  std::string text;
};
inline constexpr size_t kMaxHelloRecord = 40 + kNameBytes + kMaxHello;
[[nodiscard]] std::string encode(const Hello& hello);
// false: not one of ours. A wrong version is decoded as far as the cookie and left to the caller.
[[nodiscard]] bool decode_hello(std::span<const std::byte> record, Hello* out);

// One record back.
enum class ReplyCode : uint16_t { accepted = 0, wrong_version = 1, no_memory = 2 };
struct Reply {
  uint16_t version = kWireVersion;
  ReplyCode code = ReplyCode::accepted;
};
inline constexpr size_t kReplyBytes = 8;
[[nodiscard]] std::array<std::byte, kReplyBytes> encode(const Reply& reply);
[[nodiscard]] bool decode_reply(std::span<const std::byte> record, Reply* out);

}  // namespace prunex::transport::shm

// SPDX-License-Identifier: Apache-2.0
// The 128 bytes that NCCL carries from the listening to the connecting side, and what that side
// then says of itself.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plugin/base/config.h"
#include "plugin/base/result.h"
#include "plugin/nccl/internal_table.h"

namespace prunex::nccl {

// Of the plugin; the transport's handle behind it has a version and a cookie of its own.
inline constexpr uint16_t kNetVersion = 1;

// Whose listener a handle leads to; the first four bytes.
enum class HandleFor : uint32_t { net = 0x4E58'5250, coll = 0x4C4F'4350 };  // "PRXN", "PCOL"

// Magic, version u16, transport handle's length u8, 0 u8, the handle, zeros.
[[nodiscard]] Result<> write_handle(std::string_view transport_handle,
                                    std::span<std::byte, kHandleBytes> out,
                                    HandleFor use = HandleFor::net);
// What the transport's connect() wants. Never trusts the bytes.
[[nodiscard]] Result<std::string> read_handle(std::span<const std::byte> handle,
                                              HandleFor use = HandleFor::net);

// Said by the connecting side and looked at by the accepting one.
struct NetHello {
  uint16_t version = kNetVersion;
  uint8_t transport = 1;  // as transport::HandleKind
  uint8_t rails = 1;
  Tuner tuner = Tuner::off;  // ranks that let NCCL prefer different things would hang
};
[[nodiscard]] std::string encode(const NetHello& hello);
// `tuner`: of the accepting side; another one is an error that names both.
[[nodiscard]] Result<NetHello> decode_net_hello(std::string_view bytes, Tuner tuner);

}  // namespace prunex::nccl

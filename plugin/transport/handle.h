// SPDX-License-Identifier: Apache-2.0
// How every listener's handle begins, so that a handle of another version or transport is told from
// a damaged one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "plugin/base/result.h"
#include "plugin/base/sockets.h"
#include "plugin/transport/bytes.h"

namespace prunex::transport {

inline constexpr uint16_t kWireVersion = 1;
inline constexpr size_t kMaxHandle = 128;
inline constexpr size_t kMaxHello = 256;

enum class HandleKind : uint8_t { socket = 1, shm = 2, verbs = 3 };
inline constexpr size_t kHandlePrefixBytes = 24;

void put_handle_prefix(Writer& out, HandleKind kind, const Cookie& cookie);
// `all`: bytes of the whole handle, for the message.
[[nodiscard]] Result<Cookie> get_handle_prefix(Reader& in, size_t all, HandleKind kind);

// A handle that begins well and goes on badly.
[[nodiscard]] tl::unexpected<Error> damaged_handle(size_t all);
[[nodiscard]] std::string version_error(std::string_view peer, unsigned theirs);
[[nodiscard]] Result<> check_hello_size(std::string_view hello);

}  // namespace prunex::transport

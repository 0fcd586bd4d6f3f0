// SPDX-License-Identifier: Apache-2.0
// How two ends find each other: listening, the 128 bytes that NCCL carries to the other side, and
// connections in the making. NCCL calls connect() and accept() again and again until there is a
// comm, from its service thread.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "plugin/nccl/net/comm.h"
#include "plugin/transport/transport.h"

namespace prunex::nccl {

// Of the plugin; the transport's handle behind it has a version and a cookie of its own.
inline constexpr uint16_t kNetVersion = 1;

// magic u32, version u16, transport handle's length u8, 0 u8, the handle, zeros.
[[nodiscard]] Result<> write_handle(std::string_view transport_handle,
                                    std::span<std::byte, kHandleBytes> out);
// What the transport's connect() wants. Never trusts the bytes.
[[nodiscard]] Result<std::string> read_handle(std::span<const std::byte, kHandleBytes> handle);

// Said by the connecting side and looked at by the accepting one.
struct NetHello {
  uint16_t version = kNetVersion;
  uint8_t transport = 1;  // as transport::HandleKind
  uint8_t rails = 1;
};
[[nodiscard]] std::string encode(const NetHello& hello);
[[nodiscard]] Result<NetHello> decode_net_hello(std::string_view bytes);

struct ListenComm : Object {
  static constexpr Tag kTag = Tag::listen;
  ListenComm() : Object(kTag) {}
  std::shared_ptr<Context> context;
  std::shared_ptr<transport::Transport> transport;
  std::unique_ptr<transport::Listener> listener;
};

[[nodiscard]] Result<std::unique_ptr<ListenComm>> listen(std::shared_ptr<Context> context,
                                                         int device,
                                                         std::span<std::byte, kHandleBytes> handle);

// nullptr: not yet.
[[nodiscard]] Result<std::unique_ptr<RecvComm>> accept(ListenComm& listen);
// `handle` is the caller's buffer, the same one in every call until there is an answer.
[[nodiscard]] Result<std::unique_ptr<SendComm>> connect(const std::shared_ptr<Context>& context,
                                                        int device, const void* handle);
// Gives up what a context has in the making.
void forget_connecting(const Context* context);

}  // namespace prunex::nccl

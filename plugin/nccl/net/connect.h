// SPDX-License-Identifier: Apache-2.0
// How two ends find each other: listening, and connections in the making. NCCL calls connect() and
// accept() again and again until there is a comm, from its service thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "plugin/nccl/net/comm.h"
#include "plugin/nccl/net/handle.h"
#include "plugin/transport/transport.h"

namespace prunex::nccl {

// The transport of one of the devices.
[[nodiscard]] Result<std::shared_ptr<transport::Transport>> open_device(const Context& context,
                                                                        int device);

struct ListenComm : Object {
  static constexpr Tag kTag = Tag::listen;
  ListenComm() : Object(kTag) {}
  std::shared_ptr<Context> context;
  std::shared_ptr<transport::Transport> transport;
  std::unique_ptr<transport::Listener> listener;
};

[[nodiscard]] Result<std::unique_ptr<ListenComm>> listen(std::shared_ptr<Context> context,
                                                         int device,
                                                         std::span<std::byte, kHandleBytes> handle,
                                                         HandleFor use = HandleFor::net);

// nullptr: not yet.
[[nodiscard]] Result<std::unique_ptr<RecvComm>> accept(ListenComm& listen);
// `handle` is the caller's buffer, the same one in every call until there is an answer.
[[nodiscard]] Result<std::unique_ptr<SendComm>> connect(const std::shared_ptr<Context>& context,
                                                        int device, const void* handle);
// Gives up what a context has in the making.
void forget_connecting(const Context* context);

}  // namespace prunex::nccl

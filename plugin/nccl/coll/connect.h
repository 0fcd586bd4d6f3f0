// SPDX-License-Identifier: Apache-2.0
// How a group comes together: everybody listens, NCCL carries the handles round, everybody
// connects.
#pragma once
#include <memory>
#include <span>

#include "plugin/base/result.h"
#include "plugin/nccl/coll/comm.h"
#include "plugin/nccl/net/host.h"
#include "plugin/transport/transport.h"

namespace prunex::nccl::coll {

struct CollListener {
  std::shared_ptr<Context> context;
  std::shared_ptr<transport::Transport> transport;
  std::unique_ptr<transport::Listener> listener;
};

// handle: kHandleBytes, filled up with zeros.
[[nodiscard]] Result<std::unique_ptr<CollListener>> listen(std::shared_ptr<Context> context,
                                                           int device, std::span<std::byte> handle);

// Blocks until all nodes are connected; gives up after PRUNEX_TIMEOUT, and after 30 s in any case,
// naming who is missing. handles: kHandleBytes each, by node.
[[nodiscard]] Result<std::unique_ptr<CollComm>> connect(std::span<const void* const> handles,
                                                        size_t self, CollListener& listener);

// What a handle carries; the error says what is wrong with it.
struct CollHandle {
  std::string transport;  // the listener's own handle
  std::string address;    // for messages
};
[[nodiscard]] Result<CollHandle> decode_handle(std::span<const std::byte> bytes);

}  // namespace prunex::nccl::coll

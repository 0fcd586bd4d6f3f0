// SPDX-License-Identifier: Apache-2.0
// How a group comes together: everybody listens, NCCL carries the handles round, everybody
// connects.
#pragma once
#include <memory>
#include <span>

#include "plugin/base/result.h"
#include "plugin/nccl/coll/comm.h"
#include "plugin/nccl/net/connect.h"

namespace prunex::nccl::coll {

// `listener`: made for HandleFor::coll. Blocks until all nodes are connected; gives up after
// PRUNEX_TIMEOUT, and after 30 s in any case, naming who is missing. handles: kHandleBytes each, by
// node.
[[nodiscard]] Result<std::unique_ptr<CollComm>> connect(std::span<const void* const> handles,
                                                        size_t self, ListenComm& listener);

// What a handle carries; the error says what is wrong with it.
struct CollHandle {
  std::string transport;  // the listener's own handle
  std::string address;    // for messages
};
[[nodiscard]] Result<CollHandle> decode_handle(std::span<const std::byte> bytes);

}  // namespace prunex::nccl::coll

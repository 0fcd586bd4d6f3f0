// SPDX-License-Identifier: Apache-2.0
// Buffers that NCCL registers with a connection.
#pragma once
#include "plugin/nccl/net/comm.h"

namespace prunex::nccl {

// Of host memory with the network; of device memory (kPtrCuda) with that, too, where it reaches it,
// else with the memory that messages are copied through. What failed is said.
[[nodiscard]] int register_memory(NetComm& comm, Memory& memory);

}  // namespace prunex::nccl

// SPDX-License-Identifier: Apache-2.0
// The library's collectives between nodes as the NCCL plugin sees them.
#pragma once
#include "plugin/nccl/internal_table.h"

namespace prunex::nccl {

const CollCalls& coll_calls();

}  // namespace prunex::nccl

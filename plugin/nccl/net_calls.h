// SPDX-License-Identifier: Apache-2.0
// The library's network as the NCCL plugin sees it.
#pragma once
#include "plugin/nccl/internal_table.h"

namespace prunex::nccl {

const NetCalls& net_calls();

}  // namespace prunex::nccl

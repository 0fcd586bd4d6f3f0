// SPDX-License-Identifier: Apache-2.0
// The CollNet half of the table that the plugin module asks for.
#pragma once
#include <cstdint>

#include "plugin/nccl/internal_table.h"

namespace prunex::nccl {

namespace coll {
struct CollStats;
}

[[nodiscard]] const CollCalls& coll_calls();

// Of a communicator that connect() made; for statistics and tests. false: there is no such one.
[[nodiscard]] bool coll_stats(void* coll_comm, coll::CollStats* out);

}  // namespace prunex::nccl

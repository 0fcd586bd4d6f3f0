// SPDX-License-Identifier: Apache-2.0
// What the tuner decides: a pure function of mode, collective and size, since ranks that choose
// differently hang. Only what was possible is made likelier; nothing becomes possible.
#pragma once
#include "plugin/nccl/abi/types.h"

namespace prunex::nccl::module_side {

enum class TunerMode : int { off = 0, simple = 1, collnet = 2 };  // as TunerCalls::mode has it

// Below these LL's latency and the chain's set-up cost more than compaction saves.
inline constexpr size_t kSimpleFrom = size_t{256} << 10;
inline constexpr size_t kCollnetFrom = size_t{1} << 20;

struct CostTable {  // microseconds; negative: not possible
  float* costs;
  int algos, protos;
  [[nodiscard]] float& at(int algo, int proto) const { return costs[algo * protos + proto]; }
};

void tune(TunerMode mode, abi::Func func, size_t bytes, CostTable table);

// v2 asks for one answer, and NCCL takes it without a look at its costs; what is not set stays
// NCCL's choice. Ring with Simple is possible for every collective.
void choose(TunerMode mode, abi::Func func, size_t bytes, bool coll_net, int* algo, int* proto);

}  // namespace prunex::nccl::module_side

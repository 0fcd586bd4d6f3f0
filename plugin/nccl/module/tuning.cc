// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/module/tuning.h"

#include <algorithm>

namespace prunex::nccl::module_side {
namespace {

// The flags in LL and LL128 lines leave no zero blocks: only Simple can be compacted.
void prefer_simple(CostTable table) {
  float dearest_simple = -1;
  for (int algo = 0; algo < table.algos; ++algo) {
    dearest_simple = std::max(dearest_simple, table.at(algo, abi::kSimple));
  }
  if (dearest_simple < 0) {
    return;
  }
  for (int algo = 0; algo < table.algos; ++algo) {
    for (const int proto : {abi::kLl, abi::kLl128}) {
      if (float& cost = table.at(algo, proto); cost >= 0) {
        cost += dearest_simple + 1;
      }
    }
  }
}

}  // namespace

void tune(TunerMode mode, abi::Func func, size_t bytes, CostTable table) {
  if (table.protos <= abi::kSimple || table.algos <= abi::kCollnetChain) {
    return;
  }
  if (mode == TunerMode::simple && bytes >= kSimpleFrom) {
    prefer_simple(table);
  }
  if (mode == TunerMode::collnet && func == abi::kAllReduce && bytes >= kCollnetFrom) {
    if (float& cost = table.at(abi::kCollnetChain, abi::kSimple); cost >= 0) {
      cost = 0;
    }
  }
}

void choose(TunerMode mode, abi::Func func, size_t bytes, bool coll_net, int* algo, int* proto) {
  if (mode == TunerMode::simple && bytes >= kSimpleFrom) {
    *algo = abi::kRing;
    *proto = abi::kSimple;
  }
  if (mode == TunerMode::collnet && func == abi::kAllReduce && bytes >= kCollnetFrom && coll_net) {
    *algo = abi::kCollnetChain;
    *proto = abi::kSimple;
  }
}

}  // namespace prunex::nccl::module_side

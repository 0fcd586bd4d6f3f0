// SPDX-License-Identifier: Apache-2.0
// The door for prunex.torch (python/prunex/torch/hsadmm_native.py): no part of the public
// interface.
#pragma once
#include <cstdint>

#include "kernels/admm.h"

namespace prunex {

inline constexpr uint32_t kAdmmVersion = 1;

struct AdmmCalls {
  uint32_t bytes;    // sizeof
  uint32_t version;  // kAdmmVersion
  decltype(&admm::pull) pull;
  decltype(&admm::gather) gather;
  decltype(&admm::consensus) consensus;
  decltype(&admm::duals) duals;
  decltype(&admm::globals) globals;
  decltype(&admm::squares) squares;
  decltype(&admm::kept_runs) kept_runs;
};

}  // namespace prunex

// Compare bytes and version before using anything else.
extern "C" __attribute__((visibility("default"))) const prunex::AdmmCalls* prunex_internal_admm();

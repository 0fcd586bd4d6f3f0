// SPDX-License-Identifier: Apache-2.0
#include "plugin/api/admm.h"

const prunex::AdmmCalls* prunex_internal_admm() {
  static constexpr prunex::AdmmCalls kCalls = {
      sizeof(prunex::AdmmCalls), prunex::kAdmmVersion,    prunex::admm::pull,
      prunex::admm::gather,      prunex::admm::consensus, prunex::admm::duals,
      prunex::admm::globals,     prunex::admm::squares,   prunex::admm::kept_runs,
  };
  return &kCalls;
}

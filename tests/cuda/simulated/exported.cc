// SPDX-License-Identifier: Apache-2.0
// The simulated library as a GPU's tests look for it.
#include "tests/cuda/simulated/table.h"

const prunex::cuda::Table* prunex_cuda_table(uint32_t bytes, uint32_t version) {
  return prunex_simulated_table(bytes, version);
}

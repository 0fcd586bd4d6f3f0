// SPDX-License-Identifier: Apache-2.0
// libprunex-cuda's table over the simulated CUDA; not under its own name, since a stand-in for the
// library itself has that.
#pragma once
#include "kernels/cuda/table.h"

extern "C" const prunex::cuda::Table* prunex_simulated_table(uint32_t bytes, uint32_t version);

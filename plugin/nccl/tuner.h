// SPDX-License-Identifier: Apache-2.0
// What the configuration says about the tuner; what it does is the module's (module/tuning.h).
#pragma once
#include "plugin/nccl/internal_table.h"

namespace prunex::nccl {

const TunerCalls& tuner_calls();

}  // namespace prunex::nccl

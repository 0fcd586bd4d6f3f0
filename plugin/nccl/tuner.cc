// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/tuner.h"

#include "plugin/base/config.h"
#include "plugin/nccl/status.h"

namespace prunex::nccl {
namespace {

int mode(int* out) {
  return guard("tuner", [&]() -> int {
    if (out == nullptr) {
      return kInvalidArgument;
    }
    const Result<LoadedConfig> loaded = load_config(process_environment());
    if (!loaded) {
      return report(loaded.error());
    }
    *out = static_cast<int>(loaded->config.tuner);
    return kSuccess;
  });
}

}  // namespace

const TunerCalls& tuner_calls() {
  static constexpr TunerCalls kCalls{mode};
  return kCalls;
}

}  // namespace prunex::nccl

// SPDX-License-Identifier: Apache-2.0
#include "plugin/nccl/tuner.h"

#include <new>

#include "plugin/base/config.h"
#include "plugin/base/log.h"

namespace prunex::nccl {
namespace {

int mode(int* out) {
  if (out == nullptr) {
    return kInvalidArgument;
  }
  try {
    const Result<LoadedConfig> loaded = load_config(process_environment());
    if (!loaded) {
      PRUNEX_LOG(warn, "tuner: %s", loaded.error().text.c_str());
      return kInvalidUsage;
    }
    *out = static_cast<int>(loaded->config.tuner);
    return kSuccess;
  } catch (const std::bad_alloc&) {
    return kSystemError;
  } catch (...) {
    return kInternalError;
  }
}

}  // namespace

const TunerCalls& tuner_calls() {
  static constexpr TunerCalls kCalls{mode};
  return kCalls;
}

}  // namespace prunex::nccl

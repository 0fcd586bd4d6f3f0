// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "plugin/base/result.h"

namespace prunex {

// "1 node", "2 nodes".
[[nodiscard]] inline std::string counted(uint64_t n, const char* noun) {
  return strf("%llu %s%s", static_cast<unsigned long long>(n), noun, n == 1 ? "" : "s");
}

}  // namespace prunex

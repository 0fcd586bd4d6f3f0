// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/release.h"

namespace prunex::device {

const char* release() { return PRUNEX_VERSION; }

}  // namespace prunex::device

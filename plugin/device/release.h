// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace prunex::device {

// Of this build, "0.1.0": the kernel library of the same build says the same.
[[nodiscard]] const char* release();

}  // namespace prunex::device

// SPDX-License-Identifier: Apache-2.0
// Which GPUs a build of the kernels can run on.
#pragma once
#include <string>
#include <string_view>

#include "kernels/cuda/table.h"
#include "plugin/base/result.h"

namespace prunex::device {

enum class Coverage { none, binary, intermediate };

// `archs`: Table::archs, "80 90 100": machine code for each, which also runs on later minor
// versions of the same major one, and intermediate code (PTX) of the last, which the driver of any
// later GPU compiles. "90a" is for that architecture alone, "100f" for its major version. Empty:
// not known, taken for binary.
[[nodiscard]] Coverage coverage_of(std::string_view archs, int arch);

// "sm_80 sm_90 (and newer)"; "unknown"
[[nodiscard]] std::string covered_text(const cuda::Table& table);

// Can the kernels run on this device? UNSUPPORTED names the GPU, its architecture, what the build
// covers, and the remedy. Makes no context.
[[nodiscard]] Result<> check_architecture(const cuda::Table& table, int device);

}  // namespace prunex::device

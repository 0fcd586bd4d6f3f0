// SPDX-License-Identifier: Apache-2.0
// Counts what the program asks of operator new. Single-threaded tests only.
#pragma once
#include <cstddef>

namespace prunex::test {

// Bytes since the last call.
[[nodiscard]] size_t take_allocated();

}  // namespace prunex::test

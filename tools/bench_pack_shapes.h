// SPDX-License-Identifier: Apache-2.0
// What `bench pack` packs: buffers of layers with the masks that pruned training leaves behind.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/layout.h"
#include "plugin/base/dtype.h"
#include "plugin/base/result.h"

namespace prunex {

struct PackShape {
  Layout layout;
  uint64_t kept_lines = 0;  // 64-byte lines of a line-aligned buffer that hold a kept element
  uint64_t runs = 0;        // maximal runs of kept elements
};

// A buffer of about `bytes` bytes of layers pruned by `pattern`, a name of bench_pack_patterns().
[[nodiscard]] Result<PackShape> make_pack_shape(const std::string& pattern, DType type,
                                                uint64_t bytes, double keep, uint64_t seed);

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
#include "plugin/base/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace prunex {

uint64_t digest_bytes(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace prunex

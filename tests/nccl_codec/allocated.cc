// SPDX-License-Identifier: Apache-2.0
// A file of its own: where the compiler sees both, it calls malloc behind operator new a mismatch.
// Sanitizers bring their own operator new; with them nothing is counted.
#include "tests/nccl_codec/allocated.h"

#include <cstdlib>
#include <new>
#include <utility>

namespace {
constinit size_t g_allocated = 0;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(size_t bytes) {
  g_allocated += bytes;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) {
    return p;
  }
  std::abort();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

namespace prunex::test {

size_t take_allocated() { return std::exchange(g_allocated, size_t{0}); }

}  // namespace prunex::test

// SPDX-License-Identifier: Apache-2.0
// A file of its own: where the compiler sees both, it calls malloc behind operator new a mismatch.
#include <cstdlib>
#include <new>

#include "tests/allocated/allocated.h"

#ifndef PRUNEX_SANITIZED
void* operator new(size_t bytes) {
  prunex::test::count_allocation(bytes);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) {
    return p;
  }
  std::abort();
}
void* operator new(size_t bytes, std::align_val_t align) {
  prunex::test::count_allocation(bytes);
  const auto to = static_cast<size_t>(align);
  if (void* p = std::aligned_alloc(to, (bytes + to - 1) / to * to)) {
    return p;
  }
  std::abort();
}
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

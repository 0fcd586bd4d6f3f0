// SPDX-License-Identifier: Apache-2.0
// A file of its own: where the compiler sees both, it calls malloc behind operator new a mismatch.
#include "tests/device/allocated.h"

#include <cstdlib>
#include <new>

namespace {
constinit thread_local size_t t_allocations = 0;
constinit thread_local int t_uncounted = 0;
}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(size_t bytes) {
  t_allocations += t_uncounted == 0 ? 1 : 0;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) {
    return p;
  }
  std::abort();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

namespace prunex::test {

size_t allocations() { return t_allocations; }

bool counts_allocations() {
  const size_t before = t_allocations;
  ::operator delete(::operator new(1));
  return t_allocations != before;
}

Uncounted::Uncounted() { ++t_uncounted; }
Uncounted::~Uncounted() { --t_uncounted; }

}  // namespace prunex::test

// SPDX-License-Identifier: Apache-2.0
#include "tests/allocated/allocated.h"

#include <new>
#include <utility>

namespace prunex::test {
namespace {

constinit thread_local size_t t_allocations = 0, t_bytes = 0;
constinit thread_local int t_uncounted = 0;

}  // namespace

void count_allocation(size_t bytes) {
  if (t_uncounted == 0) {
    ++t_allocations;
    t_bytes += bytes;
  }
}

size_t allocations() { return t_allocations; }
size_t take_allocated() { return std::exchange(t_bytes, size_t{0}); }

bool counts_allocations() {
  const size_t before = t_allocations;
  ::operator delete(::operator new(1));
  return t_allocations != before;
}

Uncounted::Uncounted() { ++t_uncounted; }
Uncounted::~Uncounted() { --t_uncounted; }

}  // namespace prunex::test

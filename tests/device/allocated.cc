// SPDX-License-Identifier: Apache-2.0
#include "tests/device/allocated.h"

#include <new>

namespace prunex::test {
namespace {

constinit thread_local size_t t_allocations = 0;
constinit thread_local int t_uncounted = 0;

}  // namespace

void count_one_allocation() { t_allocations += t_uncounted == 0 ? 1 : 0; }

size_t allocations() { return t_allocations; }

bool counts_allocations() {
  const size_t before = t_allocations;
  ::operator delete(::operator new(1));
  return t_allocations != before;
}

Uncounted::Uncounted() { ++t_uncounted; }
Uncounted::~Uncounted() { --t_uncounted; }

}  // namespace prunex::test

// SPDX-License-Identifier: Apache-2.0
// Counts what each thread asks of operator new, but for what is done within Uncounted. Counts
// nothing where the sanitizers bring their own.
#pragma once
#include <cstddef>

namespace prunex::test {

// Of the calling thread, so far.
[[nodiscard]] size_t allocations();
[[nodiscard]] bool counts_allocations();
void count_one_allocation();

class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
};

}  // namespace prunex::test

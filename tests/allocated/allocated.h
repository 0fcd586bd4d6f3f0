// SPDX-License-Identifier: Apache-2.0
// Counts what each thread asks of operator new, but for what is done within Uncounted. Counts
// nothing where the sanitizers bring their own.
#pragma once
#include <cstddef>

namespace prunex::test {

// Of the calling thread, so far.
[[nodiscard]] size_t allocations();
[[nodiscard]] bool counts_allocations();
// Bytes of the calling thread, since its last call.
[[nodiscard]] size_t take_allocated();
void count_allocation(size_t bytes);

class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
};

}  // namespace prunex::test

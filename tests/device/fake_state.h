// SPDX-License-Identifier: Apache-2.0
// Internal to the stand-in: what its runtime (fake_cuda.cc) and its kernels (fake_kernels.cc)
// share.
#pragma once
#include "tests/allocated/allocated.h"
#include "tests/device/fake_cuda.h"

namespace prunex::test {

inline constexpr int kInvalidValue = 1, kOutOfMemory = 2, kInvalidHandle = 400,
                     kIllegalAddress = 700, kNotSupported = 801, kNotPermittedInCapture = 900;

[[nodiscard]] int fault_of(FakeCall call);
void wait_while_held(const void* to);
void count_allocation(int by);
// What a call of the stand-in allocates is nobody's business.
template <auto kCall>
constexpr auto uncounted = [](auto... args) {  // NOLINT: stands for a function
  const Uncounted uncounted_here;
  return kCall(args...);
};
// Device memory, or pinned.
[[nodiscard]] bool reaches(const void* p);
void add_fake_kernels(cuda::Table& table);

}  // namespace prunex::test

// SPDX-License-Identifier: Apache-2.0
// A rank without memory: an error everywhere, no exception, no wait for ever.
#include <gtest/gtest.h>

// Sanitizers bring their own operator new; replacing it here would be a fault of its own.
#ifndef PRUNEX_SANITIZED

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <new>

#include "tests/collective/cluster.h"
#include "tests/collective/float_call.h"

namespace {

thread_local size_t refused_from = SIZE_MAX;  // bytes

}  // namespace

// Inlined into each other, the two look to GCC like a mismatched pair.
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

void* operator new(size_t bytes) {
  void* p = bytes >= refused_from ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (p == nullptr) {
    throw std::bad_alloc();
  }
  return p;
}
void* operator new(size_t bytes, std::align_val_t align) {
  const auto unit = static_cast<size_t>(align);
  void* p =
      bytes >= refused_from ? nullptr : std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (p == nullptr) {
    throw std::bad_alloc();
  }
  return p;
}
extern "C" void* mmap(void* at, size_t bytes, int protection, int flags, int fd,
                      off_t offset) noexcept {
  if (bytes >= refused_from) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace prunex::test {
namespace {

using collective::Comm;

TEST(Memory, EverySurvivorTellsTheSameStory) {
  std::vector<std::string> texts(3);
  ClusterOptions options;
  options.timeout_s = 20;
  run_ranks(
      {0, 0, 1},
      [&](Comm& comm, int rank) {
        std::vector<float> data(1'000'000, 1);
        // A leader's room for what other leaders send.
        refused_from = rank == 2 ? 256 << 10 : SIZE_MAX;
        const auto begin = now_ns();
        const auto first = comm.all_reduce(float_call(data, data));
        const auto next = comm.all_reduce(float_call(data, data));
        refused_from = SIZE_MAX;
        ASSERT_FALSE(first);
        ASSERT_FALSE(next);
        EXPECT_LT(now_ns() - begin, 15'000'000'000) << "waited for the deadline";
        EXPECT_EQ(first.error().rank, 2) << first.error().text;
        EXPECT_EQ(first.error().code, Code::memory) << first.error().text;
        EXPECT_NE(first.error().text.find("rank 2"), std::string::npos) << first.error().text;
        EXPECT_EQ(next.error().text, first.error().text);
        texts[static_cast<size_t>(rank)] = first.error().text;
      },
      options);
  EXPECT_EQ(texts[0], texts[2]);
  EXPECT_EQ(texts[1], texts[2]);
}

}  // namespace
}  // namespace prunex::test

#endif

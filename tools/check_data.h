// SPDX-License-Identifier: Apache-2.0
// Integer-valued data whose reduction is exact in every type, and what the reduction must give. A
// value is a cheap function of rank and element; nothing here uses the code under test but the
// 16-bit conversions.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "plugin/base/dtype.h"

namespace prunex::tools {

class CheckData {
 public:
  // contributors: the ranks whose data enter the result, ascending.
  CheckData(DType type, Op op, std::span<const int> contributors, int my_rank);

  // `data` is where element `first` of the buffer lies.
  void fill(void* data, uint64_t first, size_t count) const;
  // Non-zero everywhere: what must not reach a result.
  void fill_garbage(void* data, size_t count) const;

  // Elements of [first, first + count) that differ in any bit; *bad gets the first of them.
  [[nodiscard]] uint64_t wrong_results(const void* data, uint64_t first, size_t count,
                                       uint64_t* bad) const;
  [[nodiscard]] uint64_t wrong_inputs(const void* data, uint64_t first, size_t count) const;
  // For messages.
  [[nodiscard]] double expected(uint64_t element) const;
  [[nodiscard]] double value_at(const void* data, size_t index) const;

 private:
  static constexpr size_t kClasses = 64;
  static size_t class_of(uint64_t element) {
    return static_cast<size_t>((element * 0x9E3779B97F4A7C15u) >> 58);
  }
  template <class F>
  decltype(auto) with_word(F f) const;

  DType type_;
  std::array<uint64_t, kClasses> mine_{};  // bit patterns of the elements
  std::array<uint64_t, kClasses> results_{};
};

// Elements that are not +0 in every bit.
[[nodiscard]] uint64_t wrong_zeros(const void* data, size_t element_bytes, uint64_t first,
                                   size_t count, uint64_t* bad);

}  // namespace prunex::tools

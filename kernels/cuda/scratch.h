// SPDX-License-Identifier: Apache-2.0
// Internal to libprunex-cuda: one piece of scratch memory cut into arrays, each on a 256-byte
// boundary; with a null base only the size is counted.
#pragma once
#include <cstddef>
#include <cstdint>

namespace prunex::cuda {

class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}

  template <class T>
  [[nodiscard]] T* take(size_t n) {
    const size_t at = used_;
    used_ = (used_ + n * sizeof(T) + 255) / 256 * 256;
    return base_ != nullptr ? reinterpret_cast<T*>(base_ + at) : nullptr;
  }
  [[nodiscard]] size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace prunex::cuda

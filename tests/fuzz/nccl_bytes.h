// SPDX-License-Identifier: Apache-2.0
// For the codecs of the NCCL plugin: what is read and written lies in blocks of memory of exactly
// its size, and every instruction set that the CPU has gets its turn.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "kernels/host/table.h"
#include "plugin/nccl/codec/step.h"
#include "tests/fuzz/decode.h"

namespace prunex::fuzz {

// A copy that ends where the sanitizer's fence begins.
class Exact {
 public:
  explicit Exact(size_t bytes, uint8_t value = 0xa5) : bytes_(bytes), data_(new std::byte[bytes]) {
    if (bytes > 0) {
      std::memset(data_.get(), value, bytes);
    }
  }
  explicit Exact(std::span<const std::byte> from) : Exact(from.size()) {
    if (bytes_ > 0) {
      std::memcpy(data_.get(), from.data(), bytes_);
    }
  }
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] size_t size() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() const { return {data_.get(), bytes_}; }
  [[nodiscard]] bool operator==(const Exact& other) const {
    return bytes_ == other.bytes_ &&
           (bytes_ == 0 || std::memcmp(data(), other.data(), bytes_) == 0);
  }
  [[nodiscard]] bool untouched(uint8_t value = 0xa5) const { return *this == Exact(bytes_, value); }

 private:
  size_t bytes_;
  std::unique_ptr<std::byte[]> data_;
};

inline void choose_version(uint8_t byte) {
  host::use_version(static_cast<host::Version>(byte % host::kNumVersions));
}

// Steps until there is an answer.
template <class Coder>
[[nodiscard]] auto finish(Coder& coder, size_t budget) {
  auto state = coder.step(budget);
  while (state == decltype(state)::more) {
    state = coder.step(budget);
  }
  PRUNEX_FUZZ_CHECK(coder.step(budget) == state);
  return state;
}

}  // namespace prunex::fuzz

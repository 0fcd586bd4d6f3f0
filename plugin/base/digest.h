// SPDX-License-Identifier: Apache-2.0
// 64-bit digests (XXH3) of things that all ranks must agree on. Not a defence against an adversary.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace prunex {

[[nodiscard]] uint64_t digest_bytes(const void* data, size_t bytes, uint64_t seed = 0);

// Folds plain values into one digest, in order; the caller's order is part of the meaning.
class Digest {
 public:
  explicit Digest(uint64_t seed = 0) : value_(seed) {}
  template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T> Digest& add(T v) {
    const uint64_t wide = static_cast<uint64_t>(v);
    value_ = digest_bytes(&wide, sizeof wide, value_);
    return *this;
  }
  Digest& add(std::string_view s) {
    add(s.size());
    value_ = digest_bytes(s.data(), s.size(), value_);
    return *this;
  }
  Digest& add_bytes(const void* data, size_t bytes) {
    value_ = digest_bytes(data, bytes, value_);
    return *this;
  }
  [[nodiscard]] uint64_t value() const { return value_; }

 private:
  uint64_t value_;
};

}  // namespace prunex

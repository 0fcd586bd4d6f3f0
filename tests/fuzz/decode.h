// SPDX-License-Identifier: Apache-2.0
// Values taken from a fuzzer's bytes, and a check that stops it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace prunex::fuzz {

#define PRUNEX_FUZZ_CHECK(condition)                                       \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                        \
    }                                                                      \
  } while (0)

// Past the end everything is zero.
class Decoder {
 public:
  Decoder(const uint8_t* data, size_t size) : rest_(data, size) {}

  template <class T>
  requires std::is_integral_v<T>
  [[nodiscard]] T take() {
    T value{};
    const size_t n = rest_.size() < sizeof value ? rest_.size() : sizeof value;
    if (n > 0) {
      std::memcpy(&value, rest_.data(), n);
    }
    rest_ = rest_.subspan(n);
    return value;
  }

  // Mostly small numbers, sometimes any.
  [[nodiscard]] int64_t number() {
    const auto byte = take<uint8_t>();
    return byte < 250 ? byte % 40 : take<int64_t>();
  }

  // n bytes of which each is the next of the input's, repeated from the start when there are too
  // few.
  [[nodiscard]] std::vector<uint8_t> bytes(size_t n) {
    std::vector<uint8_t> out(n);
    for (size_t i = 0; i < n && !rest_.empty(); ++i) {
      out[i] = static_cast<uint8_t>(rest_[i % rest_.size()] & 1);
    }
    rest_ = rest_.subspan(n < rest_.size() ? n : rest_.size());
    return out;
  }

  [[nodiscard]] bool empty() const { return rest_.empty(); }

 private:
  std::span<const uint8_t> rest_;
};

}  // namespace prunex::fuzz

// SPDX-License-Identifier: Apache-2.0
// Little-endian fields in and out of bounded spans. Reading past the end is recorded, never done.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace prunex::transport {

class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : out_(out) {}
  template <class T>
  requires std::is_unsigned_v<T> Writer& put(T v) {
    for (size_t i = 0; i < sizeof(T) && at_ < out_.size(); ++i) {
      out_[at_++] = static_cast<std::byte>(v >> (8 * i) & 0xFF);
    }
    return *this;
  }
  Writer& put(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) {
      put(static_cast<uint8_t>(b));
    }
    return *this;
  }
  [[nodiscard]] size_t size() const { return at_; }

 private:
  std::span<std::byte> out_;
  size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}
  template <class T>
  requires std::is_unsigned_v<T>
  [[nodiscard]] T get() {
    if (in_.size() - at_ < sizeof(T)) {
      ok_ = false;
      return 0;
    }
    uint64_t v = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      v |= static_cast<uint64_t>(in_[at_++]) << (8 * i);
    }
    return static_cast<T>(v);
  }
  void get(std::span<std::byte> out) {
    if (in_.size() - at_ < out.size()) {
      ok_ = false;
      return;
    }
    if (!out.empty()) {
      std::memcpy(out.data(), in_.data() + at_, out.size());
      at_ += out.size();
    }
  }
  [[nodiscard]] bool ok() const { return ok_; }

 private:
  std::span<const std::byte> in_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace prunex::transport

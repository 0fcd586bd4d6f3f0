// SPDX-License-Identifier: Apache-2.0
// Little-endian fields to and from bounded spans. A reader that runs past the end gives zeros and
// says so in ok(); a writer past the end writes nothing and says so too. Nobody casts received
// bytes.
#pragma once
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace prunex {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

class WireWriter {
 public:
  explicit WireWriter(std::span<std::byte> out) : out_(out) {}
  template <std::unsigned_integral T>
  void put(T v) {
    if (room(sizeof v)) {
      std::memcpy(out_.data() + at_, &v, sizeof v);
      at_ += sizeof v;
    }
  }
  void zero(size_t bytes) {
    if (room(bytes)) {
      std::memset(out_.data() + at_, 0, bytes);
      at_ += bytes;
    }
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] size_t written() const { return at_; }

 private:
  bool room(size_t bytes) {
    ok_ = ok_ && out_.size() - at_ >= bytes;
    return ok_;
  }
  std::span<std::byte> out_;
  size_t at_ = 0;
  bool ok_ = true;
};

// Appends to a growing string; for records whose size is not fixed.
class WireAppender {
 public:
  template <std::unsigned_integral T>
  void put(T v) {
    out_.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  void put_string(std::string_view s) {
    put(static_cast<uint32_t>(s.size()));
    out_.append(s);
  }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> in) : in_(in) {}
  explicit WireReader(std::string_view in) : in_(std::as_bytes(std::span(in.data(), in.size()))) {}
  template <std::unsigned_integral T>
  [[nodiscard]] T get() {
    T v{};
    if (room(sizeof v)) {
      std::memcpy(&v, in_.data() + at_, sizeof v);
      at_ += sizeof v;
    }
    return v;
  }
  [[nodiscard]] std::string get_string(size_t limit) {
    const auto n = get<uint32_t>();
    if (n > limit) {
      ok_ = false;
    }
    if (!room(n)) {
      return {};
    }
    std::string s(reinterpret_cast<const char*>(in_.data() + at_), n);
    at_ += n;
    return s;
  }
  void skip(size_t bytes) {
    if (room(bytes)) {
      at_ += bytes;
    }
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] size_t left() const { return in_.size() - at_; }

 private:
  bool room(size_t bytes) {
    ok_ = ok_ && in_.size() - at_ >= bytes;
    return ok_;
  }
  std::span<const std::byte> in_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace prunex

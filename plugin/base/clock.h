// SPDX-License-Identifier: Apache-2.0
// Monotonic time and deadlines. Every wait in this library has one.
#pragma once
#include <cstdint>
#include <ctime>

namespace prunex {

[[nodiscard]] inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

class Deadline {
 public:
  Deadline() = default;
  [[nodiscard]] static Deadline after(double seconds) {
    // Clamped: "1e9 seconds" must not wrap to the past.
    const double ns = seconds < 0 ? 0 : seconds * 1e9;
    return Deadline(now_ns() + (ns > 4e18 ? int64_t{4'000'000'000'000'000'000} : int64_t(ns)));
  }
  [[nodiscard]] bool passed() const { return now_ns() >= at_ns_; }
  [[nodiscard]] int64_t left_ns() const {
    const int64_t left = at_ns_ - now_ns();
    return left > 0 ? left : 0;
  }
  [[nodiscard]] int64_t at_ns() const { return at_ns_; }

 private:
  explicit Deadline(int64_t at_ns) : at_ns_(at_ns) {}
  int64_t at_ns_ = 0;
};

}  // namespace prunex

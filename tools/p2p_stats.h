// SPDX-License-Identifier: Apache-2.0
// Statistics of a run of any length in memory of a fixed size: the same by count or by time.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "plugin/base/wire.h"

namespace prunex::tools {

// Times in nanoseconds. Least, greatest, mean and deviation are exact; percentiles are the upper
// end of a class less than 0.8 % wide.
class Histogram {
 public:
  void add(int64_t ns);
  void add(const Histogram& other);
  [[nodiscard]] uint64_t count() const { return count_; }
  [[nodiscard]] double min_us() const { return count_ == 0 ? 0 : us(min_); }
  [[nodiscard]] double max_us() const { return us(max_); }
  [[nodiscard]] double mean_us() const;
  [[nodiscard]] double deviation_us() const;
  [[nodiscard]] double percentile_us(double p) const;  // nearest rank; p in (0, 100]

  void encode(WireAppender& out) const;
  [[nodiscard]] bool decode(WireReader& in);

 private:
  static constexpr unsigned kSubBits = 7;  // classes per power of two: 128
  static constexpr unsigned kPowers = 36;  // up to 2^43 ns, over two hours
  static constexpr size_t kClasses = size_t{kPowers + 1} << kSubBits;
  static size_t class_of(uint64_t ns);
  static uint64_t upper_end(size_t index);
  static double us(uint64_t ns) { return static_cast<double>(ns) * 1e-3; }

  std::array<uint32_t, kClasses> counts_{};
  uint64_t count_ = 0, min_ = ~uint64_t{0}, max_ = 0;
  double sum_ = 0, squares_ = 0;  // of nanoseconds
};

// The best rate of a run. As perftest's "BW peak": of all windows of successive messages, from the
// start of the first to the end of the last, the one with most messages per time. The run as a
// whole is a window, and so are 1, 2, 4, ... 1024 messages, wherever they begin, but for those that
// are fewer than `least`.
class PeakRate {
 public:
  explicit PeakRate(uint64_t least = 1) : least_(least) {}
  void add(int64_t start_ns, int64_t end_ns);  // of each message, in their order
  [[nodiscard]] double per_second() const;     // messages; 0: there were none

 private:
  static constexpr size_t kLengths = 11;
  static constexpr size_t kRing = size_t{1} << (kLengths - 1);
  std::array<int64_t, kRing> starts_{};
  std::array<int64_t, kLengths> shortest_{};  // ns that a window of 2^i messages took
  uint64_t least_, count_ = 0;
  int64_t first_ns_ = 0, last_ns_ = 0;
};

}  // namespace prunex::tools

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

}  // namespace prunex::tools

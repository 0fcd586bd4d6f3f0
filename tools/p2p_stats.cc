// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p_stats.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace prunex::tools {

size_t Histogram::class_of(uint64_t ns) {
  if (ns < (uint64_t{1} << kSubBits)) {
    return static_cast<size_t>(ns);
  }
  const auto shift = static_cast<unsigned>(std::bit_width(ns)) - kSubBits - 1;
  const size_t index = (size_t{shift + 1} << kSubBits) +
                       static_cast<size_t>((ns >> shift) - (uint64_t{1} << kSubBits));
  return std::min(index, kClasses - 1);
}

uint64_t Histogram::upper_end(size_t index) {
  const size_t power = index >> kSubBits;
  if (power == 0) {
    return index;
  }
  const uint64_t sub = (index & ((size_t{1} << kSubBits) - 1)) + (uint64_t{1} << kSubBits);
  return ((sub + 1) << (power - 1)) - 1;
}

void Histogram::add(int64_t ns) {
  const auto value = static_cast<uint64_t>(std::max<int64_t>(ns, 0));
  uint32_t& class_count = counts_[class_of(value)];
  class_count += class_count != ~uint32_t{0} ? 1 : 0;
  ++count_;
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
  const auto real = static_cast<double>(value);
  sum_ += real;
  squares_ += real * real;
}

void Histogram::add(const Histogram& other) {
  for (size_t i = 0; i < kClasses; ++i) {
    const uint64_t sum = uint64_t{counts_[i]} + other.counts_[i];
    counts_[i] = static_cast<uint32_t>(std::min<uint64_t>(sum, ~uint32_t{0}));
  }
  count_ += other.count_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
  squares_ += other.squares_;
}

double Histogram::mean_us() const {
  return count_ == 0 ? 0 : sum_ / static_cast<double>(count_) * 1e-3;
}

double Histogram::deviation_us() const {
  if (count_ == 0) {
    return 0;
  }
  const double mean = sum_ / static_cast<double>(count_);
  return std::sqrt(std::max(0.0, squares_ / static_cast<double>(count_) - mean * mean)) * 1e-3;
}

double Histogram::percentile_us(double p) const {
  if (count_ == 0) {
    return 0;
  }
  const auto rank = std::max<uint64_t>(
      1, static_cast<uint64_t>(std::ceil(p / 100 * static_cast<double>(count_))));
  uint64_t seen = 0;
  for (size_t i = 0; i < kClasses; ++i) {
    seen += counts_[i];
    if (seen >= rank) {
      return us(std::clamp(upper_end(i), min_, max_));
    }
  }
  return us(max_);
}

void Histogram::encode(WireAppender& out) const {
  out.put(count_);
  out.put(min_);
  out.put(max_);
  out.put(std::bit_cast<uint64_t>(sum_));
  out.put(std::bit_cast<uint64_t>(squares_));
  for (const uint32_t count : counts_) {
    out.put(count);
  }
}

bool Histogram::decode(WireReader& in) {
  count_ = in.get<uint64_t>();
  min_ = in.get<uint64_t>();
  max_ = in.get<uint64_t>();
  sum_ = std::bit_cast<double>(in.get<uint64_t>());
  squares_ = std::bit_cast<double>(in.get<uint64_t>());
  for (uint32_t& count : counts_) {
    count = in.get<uint32_t>();
  }
  return in.ok();
}

void PeakRate::add(int64_t start_ns, int64_t end_ns) {
  if (count_ == 0) {
    first_ns_ = start_ns;
  }
  last_ns_ = end_ns;
  starts_[count_ % kRing] = start_ns;
  ++count_;
  for (size_t i = 0; i < kLengths && (uint64_t{1} << i) <= count_; ++i) {
    const int64_t span = end_ns - starts_[(count_ - (uint64_t{1} << i)) % kRing];
    if (shortest_[i] == 0 || span < shortest_[i]) {
      shortest_[i] = std::max<int64_t>(span, 1);
    }
  }
}

double PeakRate::per_second() const {
  if (count_ == 0) {
    return 0;
  }
  double best =
      static_cast<double>(count_) / static_cast<double>(std::max<int64_t>(last_ns_ - first_ns_, 1));
  for (size_t i = 0; i < kLengths; ++i) {
    if (shortest_[i] != 0 && (uint64_t{1} << i) >= least_) {
      best =
          std::max(best, static_cast<double>(uint64_t{1} << i) / static_cast<double>(shortest_[i]));
    }
  }
  return best * 1e9;
}

}  // namespace prunex::tools

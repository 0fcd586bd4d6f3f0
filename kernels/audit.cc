// SPDX-License-Identifier: Apache-2.0
// The report behind the one warning: slow and plain, run only when a violation was found.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/half.h"
#include "kernels/host/walk.h"
#include "kernels/pack.h"

namespace prunex {
namespace {

using host::Rows;

double value_at(DType type, const std::byte* buffer, uint64_t element) {
  const auto load = [&](auto v) {
    std::memcpy(&v, buffer + element * sizeof v, sizeof v);
    return v;
  };
  switch (type) {
    case DType::f32:
      return static_cast<double>(load(float{}));
    case DType::f64:
      return load(double{});
    case DType::f16:
      return static_cast<double>(half_to_float(load(uint16_t{})));
    case DType::bf16:
      return static_cast<double>(bfloat_to_float(load(uint16_t{})));
    case DType::f8e4m3:
      return static_cast<double>(e4m3_to_float(load(uint8_t{})));
    case DType::f8e5m2:
      return static_cast<double>(e5m2_to_float(load(uint8_t{})));
    case DType::i8:
      return static_cast<double>(load(int8_t{}));
    case DType::u8:
      return static_cast<double>(load(uint8_t{}));
    case DType::i32:
      return static_cast<double>(load(int32_t{}));
    case DType::i64:
      return static_cast<double>(load(int64_t{}));
    case DType::u32:
      return static_cast<double>(load(uint32_t{}));
    case DType::u64:
      return static_cast<double>(load(uint64_t{}));
  }
  return 0;
}

struct Reporter {
  DType type;
  const std::byte* buffer;
  AuditReport report;

  void gap(uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      dropped(i);
    }
  }
  void run(uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) {
      kept(i);
    }
  }
  void rows(const Rows& r) {
    for (uint64_t row = 0; row < r.rows; ++row) {
      const uint64_t first = r.first + row * r.stride;
      for (uint64_t c = r.begin; c < r.end; ++c) {
        const bool keep = r.pattern == nullptr || ((r.pattern->bits[c / 64] >> (c % 64)) & 1) != 0;
        keep ? kept(first + c - r.begin) : dropped(first + c - r.begin);
      }
      if (row + 1 < r.rows) {
        gap(first + (r.end - r.begin), first + r.stride);
      }
    }
  }

  void kept(uint64_t i) {
    const double v = value_at(type, buffer, i);
    if (std::isfinite(v)) {
      report.kept_energy += v * v;
    }
  }
  void dropped(uint64_t i) {
    const double v = value_at(type, buffer, i);
    if (v == 0) {
      return;
    }
    if (report.nonzero++ == 0) {
      report.first_element = i;
    }
    if (std::isfinite(v)) {
      report.dropped_energy += v * v;
    } else {
      ++report.nonfinite;
    }
  }
};

}  // namespace

AuditReport audit_segment(const Layout& layout, size_t segment, DType type, const void* buffer) {
  const Segment& s = layout.segments[segment];
  Reporter reporter{type, static_cast<const std::byte*>(buffer), {}};
  host::Walk<Reporter>(layout, reporter).elements(s.offset, s.offset + s.count);
  return reporter.report;
}

}  // namespace prunex

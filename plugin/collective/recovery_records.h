// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other when something about a call is wrong, and how it compares.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/base/result.h"

namespace prunex::collective {

struct SegmentRecord {
  uint64_t offset = 0, count = 0, mask = 0;
  uint8_t contract = 0;
  std::string name;
};

struct CallRecord {
  uint64_t end = 0, sequence = 0, count = 0, extra = 0;
  uint32_t root = 0;
  uint8_t collective = 0, op = 0, dtype = 0, scope = 0, on_mismatch = 0, audited = 0;
  uint8_t on_device = 0;  // the buffers are device memory: their data does not pass through here
  std::vector<SegmentRecord> segments;
};

// The first thing in which two ranks' calls differ; empty: they are the same.
struct Difference {
  std::string text;
  bool masks_only = true;
};

// One segment that broke its promise on one rank.
struct Offence {
  uint32_t segment = 0;
  uint64_t element = 0, nonzero = 0, nonfinite = 0;
  static constexpr double kUnknown = -1;
  double ratio = 0;  // energy of the finite offenders over that of all finite elements
};

[[nodiscard]] std::string write(const CallRecord& record);
[[nodiscard]] Result<CallRecord> read_call(std::string_view bytes);
[[nodiscard]] std::string write(const std::vector<Offence>& offences);
[[nodiscard]] Result<std::vector<Offence>> read_offences(std::string_view bytes);

[[nodiscard]] Difference compare(int a, const CallRecord& x, int b, const CallRecord& y);
[[nodiscard]] std::string describe(const Offence& offence);  // "2 non-zero dropped elements, ..."
[[nodiscard]] std::string name_of_segment(const std::string& name, size_t index);

}  // namespace prunex::collective

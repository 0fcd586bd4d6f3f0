// SPDX-License-Identifier: Apache-2.0
// What cuda_pack_bench says of its measurements: bytes that must move, goals, table, JSON. Pure.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/layout.h"

namespace prunex::bench {

inline constexpr uint64_t kSector = 32;  // bytes: the least that device memory reads

// Bytes of the sectors that hold kept elements of a buffer that begins at a sector.
[[nodiscard]] uint64_t touched_bytes(const Layout& layout, size_t element);

// Distinct buffers to go through in turn, so that what one round touches is `caches` times the
// last-level cache and nothing of it is found there again; at least two, and no more than
// `memory` holds.
[[nodiscard]] size_t sets_for(uint64_t touched, uint64_t cache, uint64_t footprint,
                              uint64_t memory);
inline constexpr uint64_t kCaches = 4;

enum class Step { pack, audit, unpack, compile };
[[nodiscard]] const char* name_of(Step step);

struct Row {
  std::string subject, type;
  Step step = Step::pack;
  bool model = false;       // a bucket of ResNet-50
  uint64_t run = 0;         // bytes of the shortest run of kept elements; 0: not known
  size_t sets = 1;          // buffers in turn
  double bytes = 0;         // sectors that must be read plus bytes that must be written
  double seconds = 0;       // median
  double copy_seconds = 0;  // median of a device copy that reads and writes as many; 0: none
  double pack_seconds = 0;  // audit: of the same pack without it
  double pack_bytes = 0;
};

// Throughput against the device copy's.
[[nodiscard]] double share(const Row& row);
// Of an audit: time for each byte that must move, against pack's without it, minus 1.
[[nodiscard]] double added(const Row& row);

struct Goal {
  bool set = false;  // else there is none for this row
  bool reached = false;
  std::string text;  // "copy >= 0.85"
};
[[nodiscard]] Goal goal_of(const Row& row);

// The share of a device copy's throughput that pack and unpack have to reach.
inline constexpr double kModelShare = 0.85, kLongRunShare = 0.90;
inline constexpr uint64_t kLongRun = 128;  // bytes
inline constexpr double kAuditAdds = 0.10;
inline constexpr double kCompileSeconds = 200e-6;  // all masks of ResNet-50

struct Device {
  std::string name;
  int arch = 0, sms = 0;
  uint64_t cache = 0;  // bytes of L2
  bool quick = false;
};
[[nodiscard]] std::string heading(const Device& device);
[[nodiscard]] std::string line_of(const Row& row);
// "12 goals, 11 reached, 1 missed"
[[nodiscard]] std::string summary(const std::vector<Row>& rows);
[[nodiscard]] int missed(const std::vector<Row>& rows);
[[nodiscard]] std::string json_of(const Device& device, const std::vector<Row>& rows);

}  // namespace prunex::bench

// SPDX-License-Identifier: Apache-2.0
// Measures pack, audit, unpack and reduce against memcpy of the bytes they touch, alternating in
// one run on one thread. The command line is made elsewhere.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plugin/base/config.h"
#include "plugin/base/dtype.h"
#include "plugin/base/result.h"

namespace prunex {

struct BenchPackOptions {
  std::vector<Isa> isas;              // empty: every one this CPU has
  std::vector<DType> dtypes;          // empty: f32, bf16
  std::vector<std::string> patterns;  // empty: all of bench_pack_patterns()
  std::vector<size_t> bytes;  // logical buffer sizes; empty: one beyond the caches, one in L2
  double keep = 0.4;          // share of kept filters, channels or blocks (N:M has its own)
  int iterations = 7;         // timed; the median counts
  int warmup = 1;
  uint64_t seed = 1;
  // Called with one line before each group of measurements; empty: silent.
  std::function<void(const std::string&)> progress;
};

// filters3x3, channels3x3, filters_channels3x3, channels1x1, blocks32, nm24, dense
[[nodiscard]] const std::vector<std::string>& bench_pack_patterns();

// Appends one object per (bytes, pattern, dtype, isa, op) to out["results"]:
//   isa, dtype, pattern, bytes (logical), density, run_bytes (mean length of a kept run),
//   op ("pack", "pack_audit", "unpack", "reduce", "reduce_pack"), touched_bytes (source cache lines
//   read + bytes written), time_us {min, p50, max}, GBps (touched_bytes / p50), memcpy_us,
//   memcpy_GBps (a copy that touches as many bytes), ratio (memcpy_us / p50 of paired runs; 1: as
//   fast as memcpy).
// Also sets out["schema"], out["isa_best"], out["l2_bytes"]. The process's instruction set is
// restored.
[[nodiscard]] Result<> run_bench_pack(const BenchPackOptions& options, nlohmann::json& out);

}  // namespace prunex

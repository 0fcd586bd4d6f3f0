// SPDX-License-Identifier: Apache-2.0
// `prunex bench allreduce` from parsed arguments to report.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugin/base/dtype.h"
#include "plugin/base/result.h"
#include "prunex/prunex.h"
#include "tools/link_text.h"
#include "tools/options.h"

namespace prunex::tools {

inline constexpr double kWarmupCapSeconds = 5;

struct BenchSpec {
  std::string model;            // empty: sizes
  std::vector<uint64_t> sizes;  // bytes
  std::vector<double> keeps;    // empty: dense only
  DType type = DType::f32;
  Op op = Op::sum;
  prunex_scope_t scope = PRUNEX_SCOPE_WORLD;
  prunex_contract_t contract = PRUNEX_LOSSLESS;
  bool in_place = true;
  bool check = false;
  bool baseline_tcp = false;
  bool progress = false;
  int iters = 20;
  int warmup = 5;
  uint64_t seed = 1;
  uint64_t bucket_bytes = 0;  // 0: one buffer
  std::string json, csv;      // empty: none; "-": stdout
};

[[nodiscard]] std::string format_bytes(double bytes);  // "102.2 MB", decimal
[[nodiscard]] const char* name_of(prunex_scope_t scope);
[[nodiscard]] const char* name_of(prunex_contract_t contract);

struct Times {  // microseconds per iteration, mean over ranks
  double min = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
  double total = 0;  // of all iterations
};
[[nodiscard]] Times summarize(std::vector<double> iterations_us);

struct BenchRow {
  uint64_t bytes = 0, elements = 0;
  bool compact = false;
  std::optional<double> keep;  // as asked; none: dense
  double density = 1;          // kept / all elements
  double bytes_wire = 0;       // sent between nodes by all ranks, per iteration
  Times time;
  double algbw_GBps = 0, busbw_GBps = 0;                         // by the median time
  double pack_us = 0, agree_us = 0, inter_us = 0, intra_us = 0;  // busiest rank, per iteration
  std::optional<uint64_t> errors;  // wrong elements on all ranks; none: not checked
  std::optional<double> bound_us;  // ring bound at the baseline's bandwidth
  std::optional<double> speedup;   // of the median time, against the dense row
  std::string dense_because;       // a compact row that masks could not shorten; empty: they did
  uint64_t calls_compact = 0, calls_dense = 0;
  int iters = 0, warmup_done = 0, buffers = 0;
};

struct BenchReport {
  int world = 0, nodes = 0;
  std::vector<int> ranks_per_node;
  std::string transport;
  double measured_us = 0;  // wall time of all measured loops
  std::optional<double> baseline_tcp_GBps;
  LinkFacts link;
  std::vector<BenchRow> rows;
};

// Why none of the row's calls crossed the network shortened; empty: they did.
[[nodiscard]] std::string why_dense(const BenchSpec& spec, int nodes, const BenchRow& row);
[[nodiscard]] std::string report_json(const BenchSpec& spec, const BenchReport& report);
[[nodiscard]] std::string report_csv(const BenchReport& report);
[[nodiscard]] std::string report_table(const BenchSpec& spec, const BenchReport& report);

// This process as one rank of the world that its environment names. node_id empty: as the
// environment or the machine says. Returns the exit code.
[[nodiscard]] int run_bench_rank(const BenchSpec& spec, const std::string& node_id);

}  // namespace prunex::tools

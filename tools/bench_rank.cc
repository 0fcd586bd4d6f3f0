// SPDX-License-Identifier: Apache-2.0
// One rank of `prunex bench allreduce`. Rank 0 alone writes.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "plugin/base/config.h"
#include "tools/baseline_tcp.h"
#include "tools/bench.h"
#include "tools/bench_measure.h"
#include "tools/commands.h"
#include "tools/output.h"

namespace prunex::tools {
namespace {

int complain(int rank, const Error& error) {
  std::fprintf(stderr, "prunex bench: rank %d: %s\n", rank, error.text.c_str());
  return kExitFailed;
}

Result<Workload> make_workload(const BenchSpec& spec, uint64_t bytes) {
  if (spec.model.empty()) {
    return size_workload(bytes, spec.type);
  }
  const Result<Model> model = make_model(spec.model);
  if (!model) {
    return tl::unexpected(model.error());
  }
  return model_workload(*model, spec.type, spec.bucket_bytes);
}

Result<BenchReport> measure_all(const World& world, const BenchSpec& spec,
                                const LoadedConfig& loaded) {
  Progress progress(world.rank() == 0, spec.progress);
  BenchReport report;
  report.world = world.size();
  report.nodes = world.nodes();
  report.transport = world.transport();
  const Environment environment = process_environment();
  report.link.netlab = environment.lookup("NETLAB_MODE").value_or("");
  report.link.netlab_rate = environment.lookup("NETLAB_RATE").value_or("");
  for (const ConfigValue& value : loaded.values) {
    if (value.name == "PRUNEX_PACING_RATE") {
      report.link.pacing_rate = value.value;
    }
  }
  for (int node = 0; node < world.nodes(); ++node) {
    report.ranks_per_node.push_back(static_cast<int>(world.ranks_of(node).size()));
  }
  if (spec.baseline_tcp && world.nodes() == 1 && world.rank() == 0) {
    std::fprintf(stderr,
                 "prunex bench: --baseline tcp is left out: all ranks are on one node, so there is "
                 "no link to measure; --nodes 2 emulates two\n");
  }
  if (spec.baseline_tcp && world.nodes() > 1) {
    progress.say("TCP baseline between the first two nodes");
    const Result<double> baseline =
        measure_tcp_baseline(world, loaded.config.root, loaded.config.pacing_bit_s);
    if (!baseline) {
      return tl::unexpected(baseline.error());
    }
    report.baseline_tcp_GBps = *baseline;
  }
  const std::vector<uint64_t> sizes = spec.model.empty() ? spec.sizes : std::vector<uint64_t>{0};
  for (const uint64_t bytes : sizes) {
    const Result<Workload> workload = make_workload(spec, bytes);
    if (!workload) {
      return tl::unexpected(workload.error());
    }
    Measurement measurement(world, spec, *workload);
    Result<std::vector<BenchRow>> rows = measurement.run(progress);
    if (!rows) {
      return tl::unexpected(rows.error());
    }
    report.measured_us += measurement.measured_us();
    for (BenchRow& row : *rows) {
      row.dense_because = why_dense(spec, world.nodes(), row);
      if (!row.dense_because.empty()) {
        row.speedup.reset();
      }
      if (report.baseline_tcp_GBps && spec.scope != PRUNEX_SCOPE_NODE &&
          row.dense_because.empty()) {
        // A ring over K nodes carries 2(K-1)/K of the data over each link, in each direction.
        const double nodes = world.nodes();
        row.bound_us = 2 * (nodes - 1) / nodes * static_cast<double>(row.bytes) * row.density /
                       *report.baseline_tcp_GBps / 1e3;
      }
      report.rows.push_back(row);
    }
  }
  return report;
}

Result<> write_report(const BenchSpec& spec, const BenchReport& report) {
  Result<> written;
  if (!spec.json.empty()) {
    written = write_document(spec.json, report_json(spec, report));
  }
  if (written && !spec.csv.empty()) {
    written = write_document(spec.csv, report_csv(report));
  }
  // The table is for people, when stdout is not a document's.
  if (written && spec.json != "-" && spec.csv != "-") {
    written = write_document("-", report_table(spec, report));
  }
  return written;
}

}  // namespace

Times summarize(std::vector<double> iterations_us) {
  Times times;
  if (iterations_us.empty()) {
    return times;
  }
  std::sort(iterations_us.begin(), iterations_us.end());
  const auto count = static_cast<double>(iterations_us.size());
  const auto percentile = [&](double p) {  // nearest rank: a time that was measured
    const auto rank = static_cast<size_t>(std::ceil(p / 100 * count));
    return iterations_us[std::max<size_t>(rank, 1) - 1];
  };
  times.min = iterations_us.front();
  times.p50 = percentile(50);
  times.p90 = percentile(90);
  times.p99 = percentile(99);
  times.max = iterations_us.back();
  for (const double time : iterations_us) {
    times.total += time;
  }
  return times;
}

int run_bench_rank(const BenchSpec& spec, const std::string& node_id) {
  const Result<LoadedConfig> loaded = load_config(process_environment());
  if (!loaded) {
    return complain(-1, loaded.error());
  }
  for (const std::string& path : {spec.json, spec.csv}) {
    const bool mine = loaded->config.rank == 0 && !path.empty();
    if (const Result<> writable = mine ? check_writable(path) : Result<>(); !writable) {
      return complain(0, writable.error());
    }
  }
  Result<World> world = World::open(node_id);
  if (!world) {
    return complain(loaded->config.rank, world.error());
  }
  const Result<BenchReport> report = measure_all(*world, spec, *loaded);
  if (!report) {
    return complain(world->rank(), report.error());
  }
  if (world->rank() != 0) {
    return kExitOk;  // rank 0 reports everybody's errors
  }
  if (const Result<> written = write_report(spec, *report); !written) {
    return complain(0, written.error());
  }
  const bool wrong = std::any_of(report->rows.begin(), report->rows.end(),
                                 [](const BenchRow& row) { return row.errors.value_or(0) > 0; });
  return wrong ? kExitFailed : kExitOk;
}

}  // namespace prunex::tools

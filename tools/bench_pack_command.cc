// SPDX-License-Identifier: Apache-2.0
// `prunex bench pack`: arguments and table of the host kernels' benchmark.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/bench_pack.h"
#include "tools/cli.h"
#include "tools/launch.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace prunex::tools {
namespace {

constexpr const char* kWho = "prunex bench pack";

struct Arguments {
  std::vector<std::string> isas, types, patterns;
  std::string sizes, json;
  bool progress = false;
};

Result<BenchPackOptions> interpret(const Arguments& a, BenchPackOptions options) {
  for (const std::string& name : a.isas) {
    options.isas.push_back(name == "scalar" ? Isa::scalar
                           : name == "avx2" ? Isa::avx2
                                            : Isa::avx512);
  }
  for (const std::string& name : a.types) {
    const Result<DType> type = parse_dtype(name);
    if (!type) {
      return tl::unexpected(type.error());
    }
    options.dtypes.push_back(*type);
  }
  options.patterns = a.patterns;
  if (!a.sizes.empty()) {
    const Result<std::vector<uint64_t>> sizes = parse_sizes(a.sizes);
    if (!sizes) {
      return tl::unexpected(sizes.error());
    }
    options.bytes.assign(sizes->begin(), sizes->end());
    const uint64_t most = *std::max_element(sizes->begin(), sizes->end());
    constexpr uint64_t kBuffers = 5;  // three whole ones, and packed ones
    if (Result<> fits = check_memory(most, kBuffers, machine_memory()); !fits) {
      return fail(
          Code::invalid_argument,
          strf("size %llu: %llu buffers of that do not fit into this machine's memory",
               static_cast<unsigned long long>(most), static_cast<unsigned long long>(kBuffers)));
    }
  }
  return options;
}

std::string table(const nlohmann::json& document) {
  std::string text =
      strf("%-20s %-5s %-7s %-12s %12s %8s %10s %10s %9s %7s\n", "pattern", "type", "isa", "kernel",
           "bytes", "density", "run bytes", "p50 us", "GB/s", "memcpy");
  for (const nlohmann::json& row : document.at("results")) {
    text += strf("%-20s %-5s %-7s %-12s %12llu %8.4f %10.1f %10.1f %9.2f %6.2fx\n",
                 row.at("pattern").get<std::string>().c_str(),
                 row.at("dtype").get<std::string>().c_str(),
                 row.at("isa").get<std::string>().c_str(), row.at("op").get<std::string>().c_str(),
                 static_cast<unsigned long long>(row.at("bytes").get<uint64_t>()),
                 row.at("density").get<double>(), row.at("run_bytes").get<double>(),
                 row.at("time_us").at("p50").get<double>(), row.at("GBps").get<double>(),
                 row.at("ratio").get<double>());
  }
  return text;
}

}  // namespace

int bench_pack_command(int argc, char** argv) {
  Arguments a;
  BenchPackOptions options;
  CLI::App app{
      "Measures the host kernels that compact, check, expand and add, against memcpy of as many "
      "bytes\n"
      "in the same run (memcpy 1.00x: as fast).",
      kWho};
  app.add_option("--isa", a.isas, "scalar, avx2, avx512; all this CPU has")
      ->delimiter(',')
      ->check(CLI::IsMember({"scalar", "avx2", "avx512"}));
  app.add_option("--dtype", a.types, "element types (f32, bf16)")->delimiter(',');
  app.add_option("--pattern", a.patterns, "what is kept; all there are")
      ->delimiter(',')
      ->check(CLI::IsMember(bench_pack_patterns()));
  app.add_option("--size", a.sizes, "bytes, several by comma: one beyond the caches, one in L2");
  app.add_option("--keep", options.keep, "share of kept groups")
      ->check(fraction_number(0, 1))
      ->capture_default_str();
  app.add_option("--iters", options.iterations, "timed iterations; the median counts")
      ->check(whole_number(1, 1000000))
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "iterations before that")
      ->check(whole_number(0, 1000000))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "chooses the kept groups")
      ->check(whole_number(0, UINT64_MAX))
      ->capture_default_str();
  add_path_option(app, "--json", a.json, "write the document to this file, - is stdout");
  app.add_flag("--progress", a.progress, "say how far it is, even if stderr is no terminal");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  Result<BenchPackOptions> ready = interpret(a, options);
  if (!ready) {
    return report_error(kWho, ready.error());
  }
  const std::string path = a.json.empty() ? "-" : a.json;
  if (const Result<> writable = check_writable(path); !writable) {
    return report_error(kWho, writable.error());
  }
  Progress progress(true, a.progress);
  ready->progress = [&progress](const std::string& line) { progress.say(line); };
  nlohmann::json document;
  if (const Result<> measured = run_bench_pack(*ready, document); !measured) {
    progress.clear();
    return report_error(kWho, measured.error());
  }
  progress.clear();
  document["version"] = 1;
  const Result<> written =
      write_document(path, a.json.empty() ? table(document) : document.dump(2) + "\n");
  return written ? kExitOk : report_error(kWho, written.error());
}

}  // namespace prunex::tools

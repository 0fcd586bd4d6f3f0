// SPDX-License-Identifier: Apache-2.0
// The report as JSON, CSV and table. JSON keys and CSV columns are a contract: add, never rename.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "plugin/base/text.h"
#include "plugin/collective/table.h"
#include "tools/bench.h"
#include "tools/text.h"

namespace prunex::tools {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// Three decimals are a nanosecond, and JSON of 17 digits is no use to anybody.
double rounded(double value, double unit = 1e3) { return std::round(value * unit) / unit; }

Json row_json(const BenchSpec& spec, const BenchRow& row) {
  Json j;
  j["model"] = spec.model.empty() ? Json(nullptr) : Json(spec.model);
  j["mode"] = row.compact ? "compact" : "dense";
  j["keep"] = or_null(row.keep);
  j["bytes"] = row.bytes;
  j["elements"] = row.elements;
  j["buffers"] = row.buffers;
  j["density"] = rounded(row.density, 1e6);
  j["bytes_wire"] = static_cast<uint64_t>(std::llround(row.bytes_wire));
  j["iters"] = row.iters;
  j["warmup_done"] = row.warmup_done;
  j["time_us"] = {{"min", rounded(row.time.min)},
                  {"p50", rounded(row.time.p50)},
                  {"p90", rounded(row.time.p90)},
                  {"p99", rounded(row.time.p99)},
                  {"max", rounded(row.time.max)}};
  j["total_us"] = rounded(row.time.total);
  j["algbw_GBps"] = rounded(row.algbw_GBps, 1e6);
  j["busbw_GBps"] = rounded(row.busbw_GBps, 1e6);
  j["pack_us"] = rounded(row.pack_us);
  j["agree_us"] = rounded(row.agree_us);
  j["inter_us"] = rounded(row.inter_us);
  j["intra_us"] = rounded(row.intra_us);
  j["bound_us"] = row.bound_us ? Json(rounded(*row.bound_us)) : Json(nullptr);
  j["speedup"] = row.speedup ? Json(rounded(*row.speedup)) : Json(nullptr);
  j["dense_because"] = row.dense_because.empty() ? Json(nullptr) : Json(row.dense_because);
  j["calls_compact"] = row.calls_compact;
  j["calls_dense"] = row.calls_dense;
  j["errors"] = or_null(row.errors);
  return j;
}

std::string number(double value) { return strf("%.6g", value); }

template <class T>
std::string optional_number(const std::optional<T>& value) {
  return value ? strf("%.6g", static_cast<double>(*value)) : std::string();
}

std::string format_time(double us) {
  if (us < 1e3) {
    return strf("%.1f us", us);
  }
  return us < 1e6 ? strf("%.2f ms", us / 1e3) : strf("%.3f s", us / 1e6);
}

std::string nodes_text(const BenchReport& report) {
  std::vector<std::string> ranks;
  for (const int n : report.ranks_per_node) {
    ranks.push_back(std::to_string(n));
  }
  return join(ranks, ",");
}

std::string table_line(const BenchSpec& spec, const BenchReport& report, const BenchRow& row) {
  const std::string name = !spec.model.empty() ? spec.model : std::to_string(row.bytes);
  const bool between = report.nodes > 1;
  std::string line =
      strf("%12s  %-7s %7.4f  %13s  %11s  %11s  %11s  %8.3f  %8.3f  %8s  %6s  %6s", name.c_str(),
           row.compact ? "compact" : "dense", row.density,
           between ? format_bytes(row.bytes_wire).c_str() : "-",
           between ? format_time(row.inter_us).c_str() : "-", format_time(row.time.p50).c_str(),
           format_time(row.time.p99).c_str(), row.algbw_GBps, row.busbw_GBps,
           row.speedup ? strf("%.2fx", *row.speedup).c_str() : "-",
           row.compact && row.dense_because.empty() && row.density > 0
               ? strf("%.2fx", 1 / row.density).c_str()
               : "-",
           row.errors ? std::to_string(*row.errors).c_str() : "-");
  if (row.calls_compact > 0 && row.calls_dense > 0) {
    line += strf("  (%llu of %llu calls dense)", static_cast<unsigned long long>(row.calls_dense),
                 static_cast<unsigned long long>(row.calls_compact + row.calls_dense));
  }
  return line + "\n";
}

}  // namespace

std::string format_bytes(double bytes) {
  if (bytes < 1e4) {
    return strf("%.0f B", bytes);
  }
  const char* const units[] = {"kB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (bytes /= 1e3; bytes >= 1e3 && unit < 3; ++unit) {
    bytes /= 1e3;
  }
  return strf("%.1f %s", bytes, units[unit]);
}

const char* name_of(prunex_scope_t scope) {
  switch (scope) {
    case PRUNEX_SCOPE_NODE:
      return "node";
    case PRUNEX_SCOPE_LEADERS:
      return "leaders";
    case PRUNEX_SCOPE_WORLD:
      break;
  }
  return "world";
}

const char* name_of(prunex_contract_t contract) {
  switch (contract) {
    case PRUNEX_PROJECT:
      return "project";
    case PRUNEX_SAMPLED:
      return "sampled";
    case PRUNEX_LOSSLESS:
      break;
  }
  return "lossless";
}

std::string why_dense(const BenchSpec& spec, int nodes, const BenchRow& row) {
  if (!row.compact) {
    return {};
  }
  if (nodes < 2) {
    return "all ranks are on one node: nothing crosses a network";
  }
  if (spec.scope == PRUNEX_SCOPE_NODE) {
    return "scope node: nothing crosses between nodes";
  }
  if (row.calls_compact > 0 || row.calls_dense == 0) {
    return {};
  }
  const collective::Tuning table;
  if (spec.op != Op::sum && spec.op != Op::avg) {
    return strf("op %s travels dense: only sum and avg can be compacted", name_of(spec.op));
  }
  if (row.bytes <= table.dense_below_bytes) {
    return strf("calls of up to %zu bytes travel dense: there is nothing to gain",
                table.dense_below_bytes);
  }
  if (row.density > table.dense_above) {
    return strf("masks that keep more than %g travel dense: there is nothing to gain",
                table.dense_above);
  }
  return "the masks were refused; a warning says why";
}

std::string report_json(const BenchSpec& spec, const BenchReport& report) {
  Json j;
  j["schema"] = "prunex.bench.allreduce";
  j["version"] = 1;
  j["world"] = report.world;
  j["nodes"] = report.nodes;
  j["ranks_per_node"] = report.ranks_per_node;
  j["transport"] = report.transport;
  j["netlab"] = report.link.netlab.empty()
                    ? Json(nullptr)
                    : Json{{"mode", report.link.netlab}, {"rate", report.link.netlab_rate}};
  j["link"] = link_text(report.nodes, report.link);
  j["pacing_rate"] =
      report.link.pacing_rate.empty() ? Json(nullptr) : Json(report.link.pacing_rate);
  j["dtype"] = name_of(spec.type);
  j["op"] = name_of(spec.op);
  j["scope"] = name_of(spec.scope);
  j["contract"] = name_of(spec.contract);
  j["in_place"] = spec.in_place;
  j["seed"] = spec.seed;
  j["checked"] = spec.check;
  j["warmup_cap_s"] = kWarmupCapSeconds;
  j["baseline_tcp_GBps"] =
      report.baseline_tcp_GBps ? Json(rounded(*report.baseline_tcp_GBps, 1e6)) : Json(nullptr);
  j["measured_us"] = rounded(report.measured_us);
  j["results"] = Json::array();
  for (const BenchRow& row : report.rows) {
    j["results"].push_back(row_json(spec, row));
  }
  // Names from the environment need not be UTF-8.
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string report_csv(const BenchReport& report) {
  std::string csv =
      "mode,bytes,elements,keep,density,bytes_wire,iters,warmup_done,min_us,p50_us,p90_us,p99_us,"
      "max_us,total_us,algbw_GBps,busbw_GBps,pack_us,agree_us,inter_us,intra_us,bound_us,speedup,"
      "errors\n";
  for (const BenchRow& row : report.rows) {
    std::vector<std::string> fields = {row.compact ? "compact" : "dense",
                                       std::to_string(row.bytes),
                                       std::to_string(row.elements),
                                       optional_number(row.keep),
                                       number(row.density),
                                       strf("%.0f", row.bytes_wire),
                                       std::to_string(row.iters),
                                       std::to_string(row.warmup_done)};
    for (const double value :
         {row.time.min, row.time.p50, row.time.p90, row.time.p99, row.time.max, row.time.total,
          row.algbw_GBps, row.busbw_GBps, row.pack_us, row.agree_us, row.inter_us, row.intra_us}) {
      fields.push_back(number(value));
    }
    fields.push_back(optional_number(row.bound_us));
    fields.push_back(optional_number(row.speedup));
    fields.push_back(row.errors ? std::to_string(*row.errors) : std::string());
    csv.append(join(fields, ",")).append("\n");
  }
  return csv;
}

std::string report_table(const BenchSpec& spec, const BenchReport& report) {
  std::string text =
      strf("# prunex bench allreduce: %s %s, %s, %s on %s [%s], transport %s\n", name_of(spec.type),
           name_of(spec.op), spec.in_place ? "in place" : "out of place",
           counted(static_cast<uint64_t>(report.world), "rank").c_str(),
           counted(static_cast<uint64_t>(report.nodes), "node").c_str(), nodes_text(report).c_str(),
           report.transport.c_str());
  text += strf("# contract %s, scope %s, %s; times are means over ranks, GB = 10^9 bytes\n",
               name_of(spec.contract), name_of(spec.scope),
               spec.check ? "every element checked" : "not checked");
  text += link_line(report.nodes, report.link, "node");
  if (report.baseline_tcp_GBps) {
    text += strf("# a bare TCP stream with both directions busy: %.4f GB/s\n",
                 *report.baseline_tcp_GBps);
  }
  text +=
      strf("%12s  %-7s %7s  %13s  %11s  %11s  %11s  %8s  %8s  %8s  %6s  %6s\n",
           spec.model.empty() ? "bytes" : "model", "mode", "density", "between nodes", "inter-node",
           "total p50", "total p99", "algbw", "busbw", "speed-up", "bound", "errors");
  for (const BenchRow& row : report.rows) {
    text += table_line(spec, report, row);
  }
  std::vector<std::string> said;
  for (const BenchRow& row : report.rows) {
    if (!row.dense_because.empty() &&
        std::find(said.begin(), said.end(), row.dense_because) == said.end()) {
      said.push_back(row.dense_because);
      text += "# no speed-up and bound: " + row.dense_because + "\n";
    }
  }
  return text;
}

}  // namespace prunex::tools

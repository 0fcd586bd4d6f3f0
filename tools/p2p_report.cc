// SPDX-License-Identifier: Apache-2.0
// The report as JSON, CSV and perftest's tables. Keys and columns are a contract: add, never
// rename.
#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/p2p.h"
#include "tools/p2p_peer.h"
#include "tools/text.h"

namespace prunex::tools {
namespace {

using Json = nlohmann::ordered_json;

double rounded(double value) { return std::round(value * 1e3) / 1e3; }

Json time_json(const Histogram& time) {
  return {{"min", rounded(time.min_us())},
          {"p50", rounded(time.percentile_us(50))},
          {"avg", rounded(time.mean_us())},
          {"stdev", rounded(time.deviation_us())},
          {"p90", rounded(time.percentile_us(90))},
          {"p99", rounded(time.percentile_us(99))},
          {"p999", rounded(time.percentile_us(99.9))},
          {"max", rounded(time.max_us())}};
}

uint64_t wire_of(const P2pPart& part) {
  uint64_t wire = 0;
  for (size_t i = 0; part.kinds && i < 3; ++i) {
    wire += part.kinds->wire[i];
  }
  return wire;
}

double wire_mb_per_s(const P2pPart& part) {
  return part.seconds > 0 ? static_cast<double>(wire_of(part)) / part.seconds * 1e-6 : 0;
}

double rate_million_per_s(const P2pPart& part) {
  return part.seconds > 0 ? static_cast<double>(part.iterations) / part.seconds * 1e-6 : 0;
}

Json part_json(const P2pPart& part) {
  Json j;
  j["iterations"] = part.iterations;
  j["warmup_done"] = part.warmup_done;
  j["bytes_logical"] = part.bytes;
  j["bytes_wire"] = part.kinds ? Json(wire_of(part)) : Json(nullptr);
  j["density"] = std::round(part.density * 1e6) / 1e6;
  j["seconds"] = std::round(part.seconds * 1e9) / 1e9;
  j["bw_average_MBps"] = rounded(part.average_MBps);
  j["bw_peak_MBps"] = part.peak_MBps > 0 ? Json(rounded(part.peak_MBps)) : Json(nullptr);
  j["bw_wire_MBps"] = part.kinds ? Json(rounded(wire_mb_per_s(part))) : Json(nullptr);
  j["msg_rate_Mpps"] = std::round(rate_million_per_s(part) * 1e9) / 1e9;
  j["time_us"] = time_json(part.time);
  if (part.kinds) {
    Json kinds;
    const char* const names[] = {"raw", "zero_block", "masked"};
    for (size_t i = 0; i < 3; ++i) {
      kinds[names[i]] = {{"messages", part.kinds->messages[i]},
                         {"bytes_logical", part.kinds->logical[i]},
                         {"bytes_wire", part.kinds->wire[i]}};
    }
    j["kinds"] = kinds;
  } else {
    j["kinds"] = nullptr;
  }
  j["pack_us"] = rounded(static_cast<double>(part.pack_ns) * 1e-3);
  j["unpack_us"] = rounded(static_cast<double>(part.unpack_ns) * 1e-3);
  j["errors"] = part.errors ? Json(*part.errors) : Json(nullptr);
  return j;
}

const char* time_is(const P2pSpec& spec) {
  return spec.latency ? "half of a round trip" : "from posting a message to its completion, sender";
}

const char* bandwidth_is(const P2pSpec& spec, const P2pReport& report) {
  if (spec.latency) {
    return "of both directions' messages, while each waits for the other";
  }
  return report.sender_clock ? "sender: from the first posting to the last completion"
                             : "receiver: from its start to the last arrival";
}

std::string peak_is(const P2pReport& report) {
  return strf(
      "best window of successive messages, from %s: 1, 2, 4, ... 1024 messages%s, or the run",
      report.sender_clock ? "posting the first to completion of the last, sender"
                          : "the receiver's last look without result before it posts the first's "
                            "receive to the arrival of the last",
      report.transport == "verbs" ? "" : " of together more than 64 MiB");
}

std::string joined_sizes(const P2pSpec& spec) {
  std::vector<std::string> sizes;
  for (const uint64_t size : spec.sizes) {
    sizes.push_back(std::to_string(size));
  }
  return join(sizes, ",");
}

// perftest's: MB is 2^20 bytes there, Gb 10^9 bits.
double in_unit(const P2pSpec& spec, double mb_per_s) {
  return spec.gbits ? mb_per_s * 8e-3 : mb_per_s * 1e6 / (1 << 20);
}

// Columns that perftest does not have stand behind its own.
bool has_zeros(const P2pSpec& spec) { return spec.pattern != P2pPattern::dense; }

std::string errors_column(const P2pPart& part) {
  return part.errors ? strf(" %8llu", static_cast<unsigned long long>(*part.errors)) : "";
}

std::string trimmed(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string bandwidth_line(const P2pSpec& spec, const P2pRow& row) {
  const P2pPart& p = row.sum;
  std::string line =
      strf(" %-10llu %-14llu %-18.2f %-20.2f %-14.6f", static_cast<unsigned long long>(row.bytes),
           static_cast<unsigned long long>(p.iterations), in_unit(spec, p.peak_MBps),
           in_unit(spec, p.average_MBps), rate_million_per_s(p));
  if (has_zeros(spec)) {
    const double share =
        p.bytes > 0 ? static_cast<double>(wire_of(p)) / static_cast<double>(p.bytes) : 0;
    line += strf(" %-8.4f", p.density) +
            (p.kinds ? strf(" %-15.2f %-8.4f", in_unit(spec, wire_mb_per_s(p)), share)
                     : strf(" %-15s %-8s", "-", "-"));
  }
  return trimmed(line + errors_column(p));
}

std::string latency_line(const P2pRow& row) {
  const Histogram& t = row.sum.time;
  return trimmed(strf(" %-6llu %-14llu %-14.2f %-12.2f %-18.2f %-14.2f %-15.2f %-22.2f %-23.2f",
                      static_cast<unsigned long long>(row.bytes),
                      static_cast<unsigned long long>(row.sum.iterations), t.min_us(), t.max_us(),
                      t.percentile_us(50), t.mean_us(), t.deviation_us(), t.percentile_us(99),
                      t.percentile_us(99.9)) +
                 errors_column(row.sum));
}

std::string port_text(const P2pPort& port) {
  return port.device +
         (port.gid.empty() ? std::string(" (by LID, ") : strf(" (GID %s, ", port.gid.c_str())) +
         strf("MTU %d)", port.mtu);
}

Json port_json(const P2pPort& port) {
  const bool rdma = port.transport == "verbs";
  return {{"device", port.device},
          {"address", port.address.empty() ? Json(nullptr) : Json(port.address)},
          {"gid", port.gid.empty() ? Json(nullptr) : Json(port.gid)},
          {"mtu", rdma ? Json(port.mtu) : Json(nullptr)}};
}

std::string heading(const P2pSpec& spec, const P2pReport& report) {
  std::string text =
      strf("# prunex bench p2p: network %s (v%d) of %s, device %s%s\n", report.network.c_str(),
           report.api, report.plugin.c_str(), report.device.c_str(),
           report.transport.empty() ? "" : (", transport " + report.transport).c_str());
  const bool rdma = report.transport == "verbs";
  const int lanes = rdma ? report.queue_pairs : report.streams;
  text += strf("# release %s, the other end %s; mode %s, %s %s, %s, %d in flight, %s%s\n",
               report.release.c_str(), report.peer_release.c_str(),
               report.mode.empty() ? "-" : report.mode.c_str(), rdma ? "queue pairs" : "streams",
               lanes == 0 ? "auto" : std::to_string(lanes).c_str(), name_of(spec.op),
               spec.latency ? 1 : spec.inflight, spec.bidirectional ? "both directions, " : "",
               spec.check ? "every byte checked" : "not checked");
  if (report.transport == "socket" && spec.queue_pairs > 0 && spec.streams == 0) {
    text += strf("# --qps %d changes nothing: that is RDMA's, and this went over TCP\n",
                 spec.queue_pairs);
  }
  if (rdma && spec.streams > 0 && spec.queue_pairs == 0) {
    text += strf("# --streams %d changes nothing: that is TCP's, and this went over RDMA\n",
                 spec.streams);
  }
  if (rdma) {
    text +=
        strf("# RDMA by %s to %s, packets of at most %d bytes\n", port_text(report.port).c_str(),
             port_text(report.peer_port).c_str(), std::min(report.port.mtu, report.peer_port.mtu));
  }
  text += link_line(2, report.link, "connection");
  return text + strf("# connected in %.0f us (the other end: %.0f us)\n", report.connect_us,
                     report.peer_connect_us);
}

std::string latency_heading(const P2pSpec& spec) {
  return strf(
      "# times are halves of round trips\n"
      " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
      "t_stdev[usec]   99%% percentile[usec]   99.9%% percentile[usec]%s\n",
      spec.check ? "   errors" : "");
}

std::string bandwidth_heading(const P2pSpec& spec, const P2pReport& report) {
  const char* unit = spec.gbits ? "Gb/sec" : "MB/sec";
  return strf("# %s; BW is of %s, by the %s\n",
              spec.gbits ? "Gb = 10^9 bits" : "MB = 2^20 bytes, as perftest's",
              has_zeros(spec) ? "the messages' bytes (effective), wire of what stood for them"
                              : "the messages' bytes",
              report.sender_clock ? "sender's completions" : "receiver's arrivals") +
         strf(" #bytes     #iterations    BW peak[%s]    BW average[%s]   MsgRate[Mpps]", unit,
              unit) +
         (has_zeros(spec) ? strf("   density  BW wire[%s] wire/BW ", unit) : "") +
         (spec.check ? "   errors\n" : "\n");
}

}  // namespace

const char* name_of(P2pOp op) { return op == P2pOp::write ? "write" : "send"; }

const char* name_of(P2pPattern pattern) {
  switch (pattern) {
    case P2pPattern::blocks:
      return "blocks";
    case P2pPattern::mask:
      return "mask";
    case P2pPattern::dense:
      break;
  }
  return "dense";
}

std::string common_text(const P2pSpec& spec) {
  return strf(
      "%s%s (%s) of %s bytes, %llu iterations, %g s, %llu warm-up, %d in flight, %s %g in runs "
      "of %llu, seed %llu%s",
      spec.bidirectional ? "bidirectional " : "", spec.latency ? "latency" : "bandwidth",
      name_of(spec.op), joined_sizes(spec).c_str(), static_cast<unsigned long long>(spec.iters),
      spec.duration_s, static_cast<unsigned long long>(spec.warmup), spec.inflight,
      name_of(spec.pattern), spec.density, static_cast<unsigned long long>(spec.run),
      static_cast<unsigned long long>(spec.seed), spec.check ? ", checked" : "");
}

std::string p2p_json(const P2pSpec& spec, const P2pReport& report) {
  Json j;
  j["schema"] = "prunex.bench.p2p";
  j["version"] = 1;
  j["release"] = report.release;
  j["peer_release"] = report.peer_release;
  j["protocol"] = kP2pProtocol;
  j["plugin"] = report.plugin;
  j["network"] = report.network;
  j["api"] = report.api;
  j["transport"] = report.transport.empty() ? Json(nullptr) : Json(report.transport);
  j["qps"] = report.transport == "verbs" ? Json(report.queue_pairs) : Json(nullptr);
  j["device"] = report.device;
  j["ports"] = {{"local", port_json(report.port)}, {"remote", port_json(report.peer_port)}};
  j["netlab"] = report.link.netlab.empty()
                    ? Json(nullptr)
                    : Json{{"mode", report.link.netlab}, {"rate", report.link.netlab_rate}};
  j["link"] = link_text(2, report.link);
  j["pacing_rate"] =
      report.link.pacing_rate.empty() ? Json(nullptr) : Json(report.link.pacing_rate);
  j["test"] = spec.latency ? "latency" : "bandwidth";
  j["bidirectional"] = spec.bidirectional;
  j["op"] = name_of(spec.op);
  j["mode"] = report.mode.empty() ? Json(nullptr) : Json(report.mode);
  j["streams"] = report.streams;
  j["inflight"] = spec.latency ? 1 : spec.inflight;
  j["receives"] = spec.receives();
  j["pattern"] = name_of(spec.pattern);
  j["run_bytes"] = spec.run;
  j["seed"] = spec.seed;
  j["checked"] = spec.check;
  j["warmup_cap_s"] = kP2pWarmupCapSeconds;
  j["time_is"] = time_is(spec);
  j["bw_is"] = bandwidth_is(spec, report);
  j["bw_peak_is"] = spec.latency ? Json(nullptr) : Json(peak_is(report));
  j["MB"] = 1000000;
  j["connect_us"] = {{"local", rounded(report.connect_us)},
                     {"remote", rounded(report.peer_connect_us)}};
  j["results"] = Json::array();
  for (const P2pRow& row : report.rows) {
    Json r;
    r["bytes"] = row.bytes;
    r["local"] = part_json(row.local);
    r["remote"] = row.remote ? part_json(*row.remote) : Json(nullptr);
    r["sum"] = part_json(row.sum);
    j["results"].push_back(std::move(r));
  }
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string p2p_csv(const P2pSpec& spec, const P2pReport& report) {
  std::string csv =
      "test,bytes,part,iterations,warmup_done,seconds,bw_average_MBps,bw_wire_MBps,"
      "msg_rate_Mpps,density,bytes_logical,bytes_wire,min_us,p50_us,avg_us,stdev_us,p90_us,p99_us,"
      "p999_us,max_us,errors,bw_peak_MBps,op\n";
  const auto line = [&](const P2pRow& row, const char* name, const P2pPart& p) {
    csv += strf("%s,%llu,%s,%llu,%llu,%.9g,%.6g,", spec.latency ? "latency" : "bandwidth",
                static_cast<unsigned long long>(row.bytes), name,
                static_cast<unsigned long long>(p.iterations),
                static_cast<unsigned long long>(p.warmup_done), p.seconds, p.average_MBps);
    csv += (p.kinds ? strf("%.6g", wire_mb_per_s(p)) : "") +
           strf(",%.6g,%.6g,%llu,", rate_million_per_s(p), p.density,
                static_cast<unsigned long long>(p.bytes)) +
           (p.kinds ? std::to_string(wire_of(p)) : "");
    for (const double t : {p.time.min_us(), p.time.percentile_us(50), p.time.mean_us(),
                           p.time.deviation_us(), p.time.percentile_us(90),
                           p.time.percentile_us(99), p.time.percentile_us(99.9), p.time.max_us()}) {
      csv += strf(",%.6g", t);
    }
    csv.append(",").append(p.errors ? std::to_string(*p.errors) : std::string());
    csv.append(p.peak_MBps > 0 ? strf(",%.6g,", p.peak_MBps) : ",,").append(name_of(spec.op));
    csv.append("\n");
  };
  for (const P2pRow& row : report.rows) {
    line(row, "local", row.local);
    if (row.remote) {
      line(row, "remote", *row.remote);
    }
    line(row, "sum", row.sum);
  }
  return csv;
}

std::string p2p_table(const P2pSpec& spec, const P2pReport& report) {
  std::string text = heading(spec, report);
  text += spec.latency ? latency_heading(spec) : bandwidth_heading(spec, report);
  for (const P2pRow& row : report.rows) {
    text += spec.latency ? latency_line(row) : bandwidth_line(spec, row);
  }
  return text;
}

}  // namespace prunex::tools

// SPDX-License-Identifier: Apache-2.0
// One end of `prunex bench p2p`, from plugin to report.
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "plugin/base/config.h"
#include "plugin/base/elf_file.h"
#include "prunex/prunex.h"
#include "tools/commands.h"
#include "tools/inventory.h"
#include "tools/library_probe.h"
#include "tools/output.h"
#include "tools/p2p_measure.h"
#include "tools/text.h"

namespace prunex::tools {
namespace {

constexpr const char* kPlugin = "libnccl-net-prunex.so";
constexpr double kMeetSeconds = 60;                   // at most; PRUNEX_TIMEOUT may be less
constexpr uint64_t kMostBuffers = uint64_t{8} << 30;  // bytes of messages of one kind

int g_rank = 0;
bool g_transport_option = false;
bool g_loud = false;  // a debug level was asked for

// The plugin speaks of its variable; who gave --transport has set none.
std::string in_options(std::string text) {
  const std::pair<std::string, std::string> words[] = {
      {"unset PRUNEX_TRANSPORT to use", "leave --transport out to use"},
      {"PRUNEX_TRANSPORT=verbs", "--transport verbs"},
  };
  for (const auto& [variable, option] : words) {
    if (const size_t at = text.find(variable); g_transport_option && at != std::string::npos) {
      text.replace(at, variable.size(), option);
    }
  }
  return text;
}

int complain(const Error& error) {
  std::fprintf(stderr, "prunex bench p2p: rank %d: %s\n", g_rank, in_options(error.text).c_str());
  return error.code == Code::invalid_argument || error.code == Code::config ? kExitUsage
                                                                            : kExitFailed;
}

// NCCL's logger. A plugin other than PruneX may be talkative without being asked.
__attribute__((format(printf, 5, 6))) void log_of_plugin(int level, unsigned long, const char*, int,
                                                         const char* format, ...) {
  constexpr int kWarn = 2;
  if (level > kWarn && !g_loud) {
    return;
  }
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "prunex bench p2p: rank %d: %s\n", g_rank, in_options(text).c_str());
}

Result<std::string> find_plugin(const P2pSpec& spec, const Environment& environment) {
  if (spec.plugin.empty() && !spec.network.empty()) {
    return std::string("libnccl.so.2");  // where the loader finds it, as programs with NCCL do
  }
  if (!spec.plugin.empty()) {
    if (auto complete = check_elf_complete(spec.plugin); !complete) {
      return fail(Code::system, spec.plugin + ": " + complete.error().text);
    }
    return spec.plugin.find('/') == std::string::npos ? "./" + spec.plugin : spec.plugin;
  }
  const LibraryState state = probe_nccl_plugin({}, environment);
  if (!state.usable() && !state.path.empty()) {
    return fail(Code::system, state.path + ": " + state.problem);
  }
  if (!state.usable()) {
    return fail(Code::system,
                strf("%s: %s; looked in %s. scripts/build.sh builds it, --plugin FILE says where "
                     "it is",
                     kPlugin, state.problem.c_str(), join(state.tried, ", ").c_str()));
  }
  return state.path;
}

Result<> same_command(const P2pSpec& spec, P2pPeer& peer) {
  const std::string mine = common_text(spec);
  const auto theirs = peer.exchange(mine);
  if (!theirs) {
    return tl::unexpected(theirs.error());
  }
  if (*theirs != mine) {
    return fail(Code::mismatch,
                "the two ends were started differently: here " + mine + "; there " + *theirs);
  }
  return {};
}

Result<> fits_device(const P2pSpec& spec, const NetDevice& device) {
  for (const uint64_t bytes : spec.sizes) {
    if (device.max_message != 0 && bytes > device.max_message) {
      return fail(
          Code::invalid_argument,
          strf("size %llu is more than device %s takes in one message, %zu bytes",
               static_cast<unsigned long long>(bytes), device.name.c_str(), device.max_message));
    }
    if (bytes > kMostBuffers / static_cast<uint64_t>(spec.slots())) {
      return fail(Code::invalid_argument,
                  strf("%d messages of %llu bytes in flight are more than 8 GiB; --inflight 1 "
                       "takes less",
                       spec.slots(), static_cast<unsigned long long>(bytes)));
    }
  }
  return {};
}

Result<> describe(const P2pSpec& spec, P2pReport& report, const OpenedNet& net, const P2pLink& link,
                  P2pPeer& peer, const Environment& environment) {
  report.release = own_p2p_hello().release;
  report.peer_release = peer.release();
  report.plugin = net.path;
  report.network = net.api->name();
  report.api = net.api->version();
  report.device = link.device().name;
  report.transport = link.transport();
  report.port = link.own();
  report.peer_port = link.peer();
  report.sender_clock = sender_clock(spec, link.transport());
  report.connect_us = link.connect_us();
  const auto theirs = peer.exchange(strf("%.3f", link.connect_us()));
  if (!theirs) {
    return tl::unexpected(theirs.error());
  }
  report.peer_connect_us = std::strtod(theirs->c_str(), nullptr);
  report.link.netlab = environment.lookup("NETLAB_MODE").value_or("");
  report.link.loopback = report.device == "lo";
  report.link.netlab_rate = environment.lookup("NETLAB_RATE").value_or("");
  if (const auto loaded = load_config(environment)) {
    report.streams = loaded->config.streams;
    report.queue_pairs = std::min(loaded->config.ib.queue_pairs, kP2pMaxQueuePairs);
    for (const ConfigValue& value : loaded->values) {
      if (value.name == "PRUNEX_NET_MODE") {
        report.mode = value.value;
      } else if (value.name == "PRUNEX_PACING_RATE" && report.network == kOwnNetwork) {
        report.link.pacing_rate = value.value;
      }
    }
  }
  return {};
}

Result<> write_reports(const P2pSpec& spec, const P2pReport& report) {
  Result<> written;
  if (!spec.json.empty()) {
    written = write_document(spec.json, p2p_json(spec, report));
  }
  if (written && !spec.csv.empty()) {
    written = write_document(spec.csv, p2p_csv(spec, report));
  }
  if (written && spec.json != "-" && spec.csv != "-") {
    written = write_document("-", p2p_table(spec, report));
  }
  return written;
}

Result<P2pReport> measure_all(const P2pSpec& spec, int rank, const Config& config,
                              const OpenedNet& net, P2pPeer& peer) {
  const Environment environment = process_environment();
  P2pReport report;
  Result<P2pLink> link = P2pLink::open(*net.api, spec.device, config, peer);
  if (!link) {
    return tl::unexpected(link.error());
  }
  if (auto fits = fits_device(spec, link->device()); !fits) {
    return tl::unexpected(fits.error());
  }
  if (auto described = describe(spec, report, net, *link, peer, environment); !described) {
    return tl::unexpected(described.error());
  }
  const PluginLibrary library(net.library);
  const P2pSession session{spec, rank, peer, *link, library};
  for (const uint64_t bytes : spec.sizes) {
    auto row = measure_p2p(session, bytes);
    if (!row) {
      return tl::unexpected(row.error());
    }
    report.rows.push_back(std::move(*row));
  }
  if (auto together = peer.barrier(); !together) {  // nobody closes while the other still receives
    return tl::unexpected(together.error());
  }
  return report;
}

Result<P2pReport> run_end(const P2pSpec& spec, int rank, const std::string& root,
                          const Config& config) {
  const Environment environment = process_environment();
  const auto path = find_plugin(spec, environment);
  if (!path) {
    return tl::unexpected(path.error());
  }
  auto net = open_net(*path, spec.api, spec.network);
  if (!net) {
    return tl::unexpected(net.error());
  }
  auto peer = P2pPeer::meet(rank, root, std::min(kMeetSeconds, config.timeout_s));
  if (!peer) {
    return tl::unexpected(peer.error());
  }
  if (auto same = same_command(spec, *peer); !same) {
    return tl::unexpected(same.error());
  }
  if (const int r = net->api->init(1, log_of_plugin); r != 0) {
    return tl::unexpected(net_error(*net->api, "init", r));
  }
  auto report = measure_all(spec, rank, config, *net, *peer);
  (void)net->api->finalize();
  return report;
}

}  // namespace

int run_p2p_end(const P2pSpec& spec, int rank, const std::string& root) {
  g_rank = rank;
  if (!spec.mode.empty()) {
    ::setenv("PRUNEX_NET_MODE", spec.mode.c_str(), 1);
  }
  if (spec.streams > 0) {
    ::setenv("PRUNEX_STREAMS", std::to_string(spec.streams).c_str(), 1);
    ::setenv("NCCL_NSOCKS_PERTHREAD", std::to_string(spec.streams).c_str(), 1);
  }
  if (!spec.transport.empty()) {
    g_transport_option = true;
    ::setenv("PRUNEX_TRANSPORT", spec.transport.c_str(), 1);
  }
  if (spec.queue_pairs > 0) {
    ::setenv("PRUNEX_IB_QPS", std::to_string(spec.queue_pairs).c_str(), 1);
    ::setenv("NCCL_IB_QPS_PER_CONNECTION", std::to_string(spec.queue_pairs).c_str(), 1);
  }
  const auto loaded = load_config(process_environment());
  if (!loaded) {
    return complain(loaded.error());
  }
  g_loud = loaded->config.debug >= LogLevel::info;
  for (const std::string& path : {spec.json, spec.csv}) {
    if (auto writable = rank == 0 && !path.empty() ? check_writable(path) : Result<>(); !writable) {
      return complain(writable.error());
    }
  }
  const auto report = run_end(spec, rank, root, loaded->config);
  if (!report) {
    return complain(report.error());
  }
  uint64_t errors = 0;
  for (const P2pRow& row : report->rows) {
    errors += row.sum.errors.value_or(0);
  }
  if (rank == 0) {
    if (auto written = write_reports(spec, *report); !written) {
      return complain(written.error());
    }
  }
  return errors == 0 ? kExitOk : kExitFailed;
}

}  // namespace prunex::tools

// SPDX-License-Identifier: Apache-2.0
// `prunex bench p2p`: arguments, and starting or joining its two ends.
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <optional>

#include "plugin/base/config.h"
#include "tools/cli.h"
#include "tools/launch.h"
#include "tools/net_api.h"
#include "tools/output.h"
#include "tools/p2p.h"

namespace prunex::tools {
namespace {

constexpr const char* kWho = "prunex bench p2p";

constexpr const char* kFooter =
    R"(--op send, as ib_send_bw: the receiving end has as many receives posted as the other end has
messages in flight, looks for each message and posts a receive for the next at once. So NCCL
drives a network. --op write, near to ib_write_bw: it posts 32 receives ahead, all into the
slots of --inflight, and looks for the last of 16 only (on another network than PruneX's for
each in turn), then posts 16 more. A network's table has no message without a receive, so that
one call per message stays; what was packed is still unpacked. With --latency, receives are
posted ahead too: 2 (send) or 32 (write).

The table has perftest's columns and units: MB is 2^20 bytes, Gb 10^9 bits; in JSON and CSV MB
is 10^6 bytes. BW average: all bytes, from the receiving end's start to its last arrival. With
--op write of dense data over PruneX's RDMA, where a completion says that the other end has
the bytes: from the sender's first posting to its last completion, as ib_write_bw's. BW peak:
the best window of successive messages, 1, 2, 4, ... 1024 of them or the whole run, from the
start of the first to the arrival of the last (its posting and its completion, where those
count). A window starts when the receiver last had nothing to take before it posted that
receive, so that what lay ready does not count. TCP and other networks hide what lies ready:
there a window has more than 64 MiB, or is the run. With --density, BW is effective, of the
messages' bytes, and BW wire of those sent. --bidirectional: sums of both directions, of their
peaks too.)";

struct Arguments {
  P2pSpec spec;
  std::optional<std::string> sizes, min_bytes, max_bytes, run, pattern, op;
  std::optional<double> density;
  std::optional<uint64_t> factor;
  std::optional<int> inflight;
  int lanes = 0;
  bool all = false, worker = false;
};

void add_message_options(CLI::App& app, Arguments& a) {
  app.add_option("-s,--size", a.sizes,
                 "bytes of a message, at least 1, several by comma: 4096, 1k = 1K = 1024, M, G");
  app.add_option("-b,--min-size", a.min_bytes, "first of a range of sizes, at least 1");
  app.add_option("-e,--max-size", a.max_bytes, "last of the range");
  app.add_option("-f,--factor", a.factor, "from one size of the range to the next (2)")
      ->check(whole_number(2, uint64_t{1} << 30));
  app.add_flag("-a,--all", a.all, "all powers of two from 2 to 8M");
  auto* iters = app.add_option("-n,--iters", a.spec.iters, "messages of each size")
                    ->check(whole_number(1, uint64_t{1} << 40))
                    ->capture_default_str();
  app.add_option("-D,--duration", a.spec.duration_s, "seconds for each size, instead of --iters")
      ->excludes(iters)
      ->check(fraction_number(0.01, 1e6));
  app.add_option("--warmup", a.spec.warmup,
                 strf("messages before that, 0 too; ended after %g s", kP2pWarmupCapSeconds))
      ->check(whole_number(0, uint64_t{1} << 40))
      ->capture_default_str();
  app.add_flag("--latency", a.spec.latency, "one message to and fro; times are halves of that");
  app.add_flag("--bidirectional", a.spec.bidirectional, "both ends send at the same time");
  app.add_option("--op", a.op,
                 "how the receiving end is driven, see below: send (default) or write")
      ->check(CLI::IsMember({"send", "write"}));
  app.add_option("-t,--inflight", a.inflight,
                 strf("messages that are posted at a time (%d)", a.spec.inflight))
      ->check(whole_number(1, kP2pMaxInflight));
  app.add_flag("--check", a.spec.check, "compare every byte that arrives; takes time");
  app.add_option("--density", a.density,
                 "share of the data that is not zero; one run of each message at least")
      ->check(fraction_number(0, 1));
  app.add_option("--pattern", a.pattern,
                 "what is known of the zeros. blocks: nothing (default); mask: a mask is "
                 "registered for the buffer")
      ->check(CLI::IsMember({"blocks", "mask"}));
  app.add_option("--run", a.run, "bytes that are zero, or not, together (4096)");
  app.add_option("--seed", a.spec.seed, "chooses data and zeros")
      ->check(whole_number(0, UINT64_MAX))
      ->capture_default_str();
}

void add_network_options(CLI::App& app, Arguments& a) {
  app.add_option("--mode", a.spec.mode, "PRUNEX_NET_MODE: auto, compact or passthrough")
      ->check(CLI::IsMember({"auto", "compact", "passthrough"}));
  app.add_option("--streams", a.spec.streams, "PRUNEX_STREAMS: TCP streams of a connection")
      ->check(whole_number(1, kP2pMaxStreams));
  app.add_option("--transport", a.spec.transport,
                 "PRUNEX_TRANSPORT: socket; verbs (RDMA); auto: verbs where it can be used")
      ->check(CLI::IsMember({"auto", "socket", "verbs"}));
  app.add_option("--qps", a.spec.queue_pairs, "PRUNEX_IB_QPS: RDMA queue pairs of a connection")
      ->check(whole_number(1, kP2pMaxQueuePairs));
  app.add_option("-q", a.lanes, "--streams or --qps, whichever the transport has")
      ->check(whole_number(1, kP2pMaxStreams));
  add_path_option(app, "--plugin", a.spec.plugin,
                  "network plugin of NCCL (libnccl-net-prunex.so, as prunex info finds it)");
  app.add_option("--network", a.spec.network,
                 "for comparison, a network of NCCL itself: --plugin is libnccl.so.2 then (as the "
                 "loader finds it)")
      ->check(CLI::IsMember({"IB", "Socket"}));
  app.add_option("--api", a.spec.api, "version of its table, 6 to 12; 0: the newest it has")
      ->check([](const std::string& text) {
        return text == "0" || parse_whole(text, kOldestNetApi, kNewestNetApi)
                   ? std::string()
                   : strf("'%s' is not 0 or %d to %d", text.c_str(), kOldestNetApi, kNewestNetApi);
      });
  app.add_option("-d,--device", a.spec.device, "name or number of the device; the first one")
      ->check([](const std::string& text) {
        return text.empty() ? std::string("the name is empty") : std::string();
      });
  app.add_flag("--report_gbits", a.spec.gbits, "the table in Gb/s instead of MB/s");
  add_path_option(app, "--json", a.spec.json, "write the document to this file, - is stdout");
  add_path_option(app, "--csv", a.spec.csv, "write rows to this file, - is stdout");
  app.add_flag("--worker", a.worker)->group("");
}

Result<std::vector<uint64_t>> sizes_of(const Arguments& a) {
  const bool range = a.min_bytes || a.max_bytes;
  if (int{a.sizes.has_value()} + int{range} + int{a.all} > 1) {
    return fail(Code::invalid_argument, "give one of --size, -b/-e and --all");
  }
  if (a.factor && !range) {
    return fail(Code::invalid_argument, "--factor is of a range: it needs -b and -e");
  }
  if (a.sizes) {
    return parse_sizes(*a.sizes);
  }
  if (a.all) {
    return size_range(2, uint64_t{8} << 20, 2, 1);
  }
  if (range) {
    const auto first = parse_size(a.min_bytes ? *a.min_bytes : *a.max_bytes);
    const auto last = parse_size(a.max_bytes ? *a.max_bytes : *a.min_bytes);
    if (!first || !last) {
      return tl::unexpected((first ? last : first).error());
    }
    return size_range(*first, *last, a.factor.value_or(2), 1);
  }
  return a.spec.latency ? std::vector<uint64_t>{8}
                        : std::vector<uint64_t>{64 << 10, 256 << 10, 1 << 20, 4 << 20};
}

Result<> interpret_pattern(Arguments& a) {
  if (!a.density && !a.pattern) {
    return a.run ? fail(Code::invalid_argument, "--run needs --density") : Result<>();
  }
  a.spec.density = a.density.value_or(1.0);
  a.spec.pattern = a.pattern && *a.pattern == "mask" ? P2pPattern::mask : P2pPattern::blocks;
  if (a.run) {
    const auto run = parse_size(*a.run);
    if (!run) {
      return tl::unexpected(run.error());
    }
    a.spec.run = *run;
  }
  if (a.spec.run == 0) {
    return fail(Code::invalid_argument, "--run 0: a run has at least one byte");
  }
  if (a.spec.pattern != P2pPattern::mask) {
    return {};
  }
  for (const uint64_t bytes : a.spec.sizes) {
    if (bytes % 4 != 0 || a.spec.run % 4 != 0) {
      return fail(Code::invalid_argument,
                  strf("--pattern mask: the tensor is f32, so that --size and --run are multiples "
                       "of 4; they are %llu and %llu",
                       static_cast<unsigned long long>(bytes),
                       static_cast<unsigned long long>(a.spec.run)));
    }
  }
  return {};
}

Result<> interpret_lanes(Arguments& a) {
  P2pSpec& spec = a.spec;
  if (a.lanes > 0 && (spec.streams > 0 || spec.queue_pairs > 0)) {
    return fail(Code::invalid_argument,
                "-q is --streams or --qps, as the transport has them: give one of the three");
  }
  if (spec.queue_pairs > 0 && spec.transport == "socket") {
    return fail(Code::invalid_argument,
                "--qps is of RDMA, --transport socket has --streams: give one of them");
  }
  if (spec.streams > 0 && spec.transport == "verbs") {
    return fail(Code::invalid_argument,
                "--streams is of TCP, --transport verbs has --qps: give one of them");
  }
  if (a.lanes > kP2pMaxQueuePairs && spec.transport != "socket") {
    return fail(Code::invalid_argument,
                strf("-q %d: at most %d queue pairs; --transport socket takes %d streams", a.lanes,
                     kP2pMaxQueuePairs, kP2pMaxStreams));
  }
  spec.streams = std::max(spec.streams, a.lanes);
  spec.queue_pairs = std::max(spec.queue_pairs, std::min(a.lanes, kP2pMaxQueuePairs));
  return {};
}

Result<> interpret_op(Arguments& a) {
  a.spec.op = a.op && *a.op == "write" ? P2pOp::write : P2pOp::send;
  if (a.spec.op == P2pOp::write && a.spec.check) {
    return fail(Code::invalid_argument,
                "--check does not go with --op write: later messages land on those that nobody has "
                "looked at yet; --op send checks");
  }
  return {};
}

Result<> interpret_latency(Arguments& a) {
  a.spec.inflight = a.inflight.value_or(a.spec.inflight);
  if (!a.spec.latency) {
    return {};
  }
  const char* const other = a.spec.bidirectional ? "--bidirectional"
                            : a.inflight         ? "--inflight"
                            : a.spec.gbits       ? "--report_gbits"
                                                 : nullptr;
  return other == nullptr
             ? Result<>()
             : fail(Code::invalid_argument,
                    strf("--latency is one message to and fro: it does not go with %s", other));
}

Result<> interpret(Arguments& a) {
  if (auto fine = interpret_lanes(a); !fine) {
    return fine;
  }
  if (auto fine = interpret_op(a); !fine) {
    return fine;
  }
  if (!a.spec.network.empty() && (!a.spec.transport.empty() || !a.spec.mode.empty())) {
    return fail(Code::invalid_argument,
                strf("--network %s is NCCL's, --transport and --mode are PruneX's: leave them out",
                     a.spec.network.c_str()));
  }
  if (auto fine = interpret_latency(a); !fine) {
    return fine;
  }
  if (!a.spec.json.empty() && a.spec.json == a.spec.csv) {
    return fail(Code::invalid_argument, strf("--json and --csv cannot both go to %s",
                                             a.spec.json == "-" ? "stdout" : a.spec.json.c_str()));
  }
  auto sizes = sizes_of(a);
  if (!sizes) {
    return tl::unexpected(sizes.error());
  }
  for (const uint64_t bytes : *sizes) {
    if (bytes == 0 || bytes > (uint64_t{1} << 30)) {
      return fail(Code::invalid_argument, strf("size %llu: a message has 1 byte to 1G here",
                                               static_cast<unsigned long long>(bytes)));
    }
  }
  a.spec.sizes = std::move(*sizes);
  return interpret_pattern(a);
}

// Both ends on this machine: over its loopback interface, unless the user has chosen one, or a
// device by its name.
void prefer_loopback(const std::string& device) {
  const bool named = device != "lo" && device.find_first_not_of("0123456789") != std::string::npos;
  if (!named && std::getenv("PRUNEX_SOCKET_IFNAME") == nullptr &&
      std::getenv("NCCL_SOCKET_IFNAME") == nullptr) {
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  }
}

Result<WorldRequest> world_of(const NodeContext& context) {
  WorldRequest request;
  if (context.node < 0 || context.nodes == 1) {
    request.ranks = 2;
    return request;
  }
  if (context.nodes != 2) {
    return fail(Code::invalid_argument,
                strf("the benchmark has two ends, one per node; NNODES says %d", context.nodes));
  }
  request.nodes = 2;
  request.ranks_per_node = 1;
  return request;
}

// Buffers to send, to receive, and with --check what should come.
Result<> fits_machine(const P2pSpec& spec, int ends_here) {
  const uint64_t largest = *std::max_element(spec.sizes.begin(), spec.sizes.end());
  const uint64_t buffers = static_cast<uint64_t>(spec.slots()) * (spec.check ? 3 : 2);
  auto fits = check_memory(largest * buffers, static_cast<uint64_t>(ends_here), machine_memory());
  if (!fits && spec.slots() > 1 && !spec.latency) {
    fits.error().text += ", or --inflight 1";
  }
  return fits;
}

int start_ends(const Arguments& a, int argc, char** argv) {
  const Result<NodeContext> context = node_context(process_environment());
  if (!context) {
    return report_error(kWho, context.error());
  }
  const Result<WorldRequest> request = world_of(*context);
  if (!request) {
    return report_error(kWho, request.error());
  }
  if (auto fits = fits_machine(a.spec, request->ranks == 2 ? 2 : 1); !fits) {
    return report_error(kWho, fits.error());
  }
  if (request->ranks == 2) {
    prefer_loopback(a.spec.device);
  }
  char self[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self);
  if (length <= 0 || length == sizeof self) {
    std::fprintf(stderr, "%s: cannot find this program by /proc/self/exe\n", kWho);
    return kExitFailed;
  }
  std::vector<std::string> command = {std::string(self, static_cast<size_t>(length)), "bench",
                                      "p2p", "--worker"};
  command.insert(command.end(), argv + 1, argv + argc);
  const Result<Job> job = make_job(*request, *context, kWho, std::move(command));
  if (!job) {
    return report_error(kWho, job.error());
  }
  // Rank 0 will say the same, but only after both have been started.
  for (const std::string& path : {a.spec.json, a.spec.csv}) {
    if (const Result<> writable = path.empty() ? Result<>() : check_writable(path); !writable) {
      return report_error(kWho, writable.error());
    }
  }
  return supervise(*job);
}

}  // namespace

int bench_p2p_command(int argc, char** argv) {
  Arguments a;
  CLI::App app{
      "Measures bandwidth or latency between two processes over an NCCL network plugin, driven as\n"
      "NCCL drives it. Starts both ends on this machine; under scripts/netlab.sh --nodes 2, "
      "mpirun,\n"
      "srun, torchrun or PRUNEX_RANK=0|1 PRUNEX_WORLD_SIZE=2 PRUNEX_ROOT=host:port each process "
      "is\n"
      "one end. Rank 0 sends and reports.",
      kWho};
  app.footer(kFooter);
  add_message_options(app, a);
  add_network_options(app, a);
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  if (const Result<> understood = interpret(a); !understood) {
    return report_error(kWho, understood.error());
  }
  const Result<LoadedConfig> loaded = load_config(process_environment());
  if (!loaded) {
    return report_error(kWho, loaded.error());
  }
  const Config& config = loaded->config;
  if (config.rank < 0 || config.size <= 0) {
    return start_ends(a, argc, argv);
  }
  if (config.size != 2 || config.rank > 1) {
    std::fprintf(stderr,
                 "%s: the benchmark has two ends, the environment says rank %d of %d; unset the "
                 "launcher's variables to start both on this machine\n",
                 kWho, config.rank, config.size);
    return kExitUsage;
  }
  return run_p2p_end(a.spec, config.rank, config.root);
}

}  // namespace prunex::tools

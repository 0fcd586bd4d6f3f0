// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>

#include "plugin/base/address.h"
#include "plugin/base/config_parse.h"
#include "plugin/base/interfaces.h"

extern char** environ;

namespace prunex {
namespace {

const char* parse_timeout(std::string_view text, Config& out) {
  // strtod would follow the locale's decimal comma.
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || !(value >= 0.1 && value <= 1e6)) {
    return kNotInRange;
  }
  out.timeout_s = value;
  return kOk;
}

using LevelChoice = std::pair<std::string_view, LogLevel>;
constexpr std::array<LevelChoice, 4> kLevels{{{"NONE", LogLevel::none},
                                              {"WARN", LogLevel::warn},
                                              {"INFO", LogLevel::info},
                                              {"TRACE", LogLevel::trace}}};

const char* parse_debug(std::string_view text, Config& out) {
  return parse_choice(text, kLevels, &out.debug);
}

const char* parse_nccl_debug(std::string_view text, Config& out) {
  // VERSION and ABORT are NCCL's own and ask nothing of us; NCCL takes any other word for "say
  // nothing" and goes on, so that such a word must not stop a job here either.
  if (parse_choice(text, kLevels, &out.debug) != kOk) {
    out.debug = LogLevel::warn;
  }
  return kOk;
}

const char* parse_root(std::string_view text, Config& out) {
  if (!parse_host_port(text)) {
    return kNotInRange;
  }
  out.root = text;
  return kOk;
}

constexpr int kMaxWorld = 65536;
const char* parse_rank(std::string_view text, Config& out) {
  return parse_int(text, 0, kMaxWorld - 1, &out.rank) ? kOk : kNotInRange;
}
const char* parse_size(std::string_view text, Config& out) {
  return parse_int(text, 1, kMaxWorld, &out.size) ? kOk : kNotInRange;
}

const char* parse_node_id(std::string_view text, Config& out) {
  if (text.size() > 255 || text.find('\0') != std::string_view::npos) {
    return kNotInRange;
  }
  out.node_id = text;
  return kOk;
}

const char* parse_ifname(std::string_view text, Config& out) {
  if (!parse_interface_filter(text)) {
    return kNotInRange;
  }
  out.socket_ifname = text;
  return kOk;
}

const char* parse_ports(std::string_view text, Config& out) {
  if (!parse_port_range(text)) {
    return kNotInRange;
  }
  out.port_range = text;
  return kOk;
}

const char* parse_on_mismatch(std::string_view text, Config& out) {
  constexpr std::array<std::pair<std::string_view, OnMismatch>, 2> kChoices{
      {{"dense", OnMismatch::dense}, {"error", OnMismatch::error}}};
  return parse_choice(text, kChoices, &out.on_mismatch);
}

const char* parse_isa(std::string_view text, Config& out) {
  constexpr std::array<std::pair<std::string_view, Isa>, 4> kChoices{{{"auto", Isa::automatic},
                                                                      {"scalar", Isa::scalar},
                                                                      {"avx2", Isa::avx2},
                                                                      {"avx512", Isa::avx512}}};
  return parse_choice(text, kChoices, &out.isa);
}

const char* parse_rails(std::string_view text, Config& out) {
  return parse_int(text, 0, 64, &out.rails) ? kOk : kNotInRange;
}
const char* parse_streams(std::string_view text, Config& out) {
  return parse_int(text, 0, 64, &out.streams) ? kOk : kNotInRange;
}

const char* parse_chunk(std::string_view text, Config& out) {
  int shift = 0;
  if (!text.empty()) {
    const char last = static_cast<char>(text.back() & ~0x20);
    shift = last == 'K' ? 10 : last == 'M' ? 20 : 0;
    text.remove_suffix(shift == 0 ? 0 : 1);
  }
  constexpr int64_t kLeast = 4096, kMost = int64_t{1} << 20;
  int64_t value = 0;
  if (!parse_int<int64_t>(text, 0, kMost, &value) || value > kMost >> shift) {
    return kNotInRange;
  }
  value <<= shift;
  if (value != 0 && value < kLeast) {
    return kNotInRange;
  }
  out.chunk_bytes = value;
  return kOk;
}

// NCCL multiplies this by its helper threads, of which we have none, and lowers what is too much to
// its limit, 64: a job that runs with its own network must not fail here.
const char* parse_nccl_streams(std::string_view text, Config& out) {
  int value = 0;
  if (!parse_int(text, -2, std::numeric_limits<int>::max(), &value)) {
    return kNotInRange;
  }
  out.streams = std::clamp(value, 0, 64);
  return kOk;
}

const char* parse_family(std::string_view text, Config& out) {
  constexpr std::array<std::pair<std::string_view, Family>, 3> kChoices{
      {{"any", Family::any}, {"AF_INET", Family::v4}, {"AF_INET6", Family::v6}}};
  return parse_choice(text, kChoices, &out.family);
}

const char* parse_net_mode(std::string_view text, Config& out) {
  constexpr std::array<std::pair<std::string_view, NetMode>, 3> kChoices{
      {{"auto", NetMode::automatic},
       {"compact", NetMode::compact},
       {"passthrough", NetMode::passthrough}}};
  return parse_choice(text, kChoices, &out.net_mode);
}

const char* parse_metrics_file(std::string_view text, Config& out) {
  if (text.size() > 4000 || text.find('\0') != std::string_view::npos) {
    return kNotInRange;
  }
  out.metrics_file = text;
  return kOk;
}

const char* parse_staged_gpu(std::string_view text, Config& out) {
  constexpr std::array<std::pair<std::string_view, bool>, 2> kChoices{{{"0", false}, {"1", true}}};
  return parse_choice(text, kChoices, &out.staged_gpu);
}

// For those that load the library, before there is a configuration; named here so that it is known.
const char* parse_library(std::string_view, Config&) { return kOk; }

const char* parse_algorithm(std::string_view text, Config& out) {
  constexpr std::array<std::pair<std::string_view, const char*>, 3> kChoices{
      {{"auto", "auto"}, {"exchange", "exchange"}, {"scatter", "scatter"}}};
  const char* name = nullptr;
  const char* wrong = parse_choice(text, kChoices, &name);
  if (wrong == kOk) {
    out.algorithm = name;
  }
  return wrong;
}

const char* parse_tuner(std::string_view text, Config& out) {
  constexpr std::array<std::pair<std::string_view, Tuner>, 3> kChoices{
      {{"off", Tuner::off}, {"simple", Tuner::simple}, {"collnet", Tuner::collnet}}};
  return parse_choice(text, kChoices, &out.tuner);
}

const char* parse_pacing(std::string_view text, Config& out) {
  double value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, ec] = std::from_chars(text.data(), last, value);
  constexpr std::array<std::pair<std::string_view, double>, 3> kUnits{
      {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}}};
  double unit = 0;
  const std::string_view rest(end, static_cast<size_t>(last - end));
  if (ec != std::errc() || parse_choice(rest, kUnits, &unit) != kOk) {
    return kNotInRange;
  }
  constexpr double kLeast = 8e3, kMost = 1e12;  // a byte per millisecond; beyond any link
  if (!(value * unit >= kLeast && value * unit <= kMost)) {
    return kNotInRange;
  }
  out.pacing_bit_s = static_cast<uint64_t>(value * unit);
  return kOk;
}

// The order is that of the documentation.
constexpr ParsedRow kTable[] = {
    {{"PRUNEX_ROOT", "where rank 0 listens and the other ranks find it", "host:port or [IPv6]:port",
      "", nullptr},
     parse_root},
    {{"PRUNEX_RANK",
      "this process's rank; else RANK (torchrun), OMPI_COMM_WORLD_RANK, PMI_RANK, "
      "MV2_COMM_WORLD_RANK, SLURM_PROCID",
      "0 to 65535", "", nullptr},
     parse_rank},
    {{"PRUNEX_WORLD_SIZE", "number of ranks; from the same source as the rank", "1 to 65536", "",
      nullptr},
     parse_size},
    {{"PRUNEX_NODE_ID", "name of this node: ranks with equal names share memory",
      "text of up to 255 bytes", "", "NCCL_HOSTID"},
     parse_node_id},
    {{"PRUNEX_TIMEOUT", "deadline of every call and of start-up, in seconds", "0.1 to 1e6", "1800",
      nullptr},
     parse_timeout},
    {{"PRUNEX_DEBUG", "how much to say on stderr", "NONE|WARN|INFO|TRACE", "WARN", "NCCL_DEBUG"},
     parse_debug,
     parse_nccl_debug},
    {{"PRUNEX_SOCKET_IFNAME", "network interfaces to use",
      "list of prefixes a,b; ^a,b all others; =a,b whole names", "", "NCCL_SOCKET_IFNAME"},
     parse_ifname},
    {{"PRUNEX_TRANSPORT",
      "network between nodes; auto: verbs (RDMA) where it can be used, else socket; verbs: an "
      "error where it cannot",
      "auto|socket|verbs", "auto", nullptr},
     parse_transport},
    {{"PRUNEX_IB_DISABLE", "1: no RDMA", "0 or 1", "0", "NCCL_IB_DISABLE"},
     parse_ib_disable,
     parse_nccl_ib_disable},
    {{"PRUNEX_IB_HCA", "RDMA devices and ports to use",
      "list of prefixes mlx5_0,mlx5_1:1; ^a,b all others; =a,b whole names", "", "NCCL_IB_HCA"},
     parse_ib_hca},
    {{"PRUNEX_IB_GID_INDEX",
      "entry of the port's GID table; -1: RoCE v2 first, routable first, IPv4 first", "-1 to 65535",
      "-1", "NCCL_IB_GID_INDEX"},
     parse_ib_gid_index},
    {{"PRUNEX_IB_ADDR_FAMILY",
      "RoCE without a GID index: GIDs of this address family before the others",
      "any|AF_INET|AF_INET6", "any", "NCCL_IB_ADDR_FAMILY"},
     parse_ib_gid_family},
    {{"PRUNEX_IB_ADDR_RANGE",
      "RoCE without a GID index: only GIDs of this network; a port that has none is not used",
      "address/bits: 10.0.0.0/8, fd00::/64", "", "NCCL_IB_ADDR_RANGE"},
     parse_ib_gid_range},
    {{"PRUNEX_IB_ROCE_VERSION", "RoCE without a GID index: GIDs of this version before the others",
      "1 or 2", "2", "NCCL_IB_ROCE_VERSION_NUM"},
     parse_ib_roce_version},
    {{"PRUNEX_IB_TC", "traffic class; -1: the communicator's in NCCL, else 0", "-1 to 255", "-1",
      "NCCL_IB_TC"},
     parse_ib_traffic_class},
    {{"PRUNEX_IB_SL", "service level; -1: the communicator's traffic class in NCCL, else 0",
      "-1 to 15", "-1", "NCCL_IB_SL"},
     parse_ib_service_level},
    {{"PRUNEX_IB_TIMEOUT",
      "a packet is sent again after 4.096 us * 2^n without an answer; 0: never", "0 to 31", "20",
      "NCCL_IB_TIMEOUT"},
     parse_ib_timeout},
    {{"PRUNEX_IB_RETRY_CNT", "how often a packet is sent again", "0 to 7", "7",
      "NCCL_IB_RETRY_CNT"},
     parse_ib_retry_count},
    {{"PRUNEX_IB_PKEY",
      "partition: index into the port's table, or a key of it; -1: the first valid one; RoCE has "
      "only index 0",
      "-1 to 65535 or 0xffff", "-1", "NCCL_IB_PKEY"},
     parse_ib_pkey,
     parse_nccl_ib_pkey},
    {{"PRUNEX_IB_QPS", "queue pairs per connection, at most 16 of them; the connecting end's count",
      "1 to 128", "1", "NCCL_IB_QPS_PER_CONNECTION"},
     parse_ib_qps},
    {{"PRUNEX_IB_RELAXED_ORDERING",
      "PCI relaxed ordering of message data; 2: where the device has it", "0, 1 or 2", "2",
      "NCCL_IB_PCI_RELAXED_ORDERING"},
     parse_ib_relaxed_ordering},
    {{"PRUNEX_PORT_RANGE", "TCP ports that may be bound", "lo-hi, 1 <= lo <= hi <= 65535", "",
      nullptr},
     parse_ports},
    {{"PRUNEX_ON_MISMATCH", "what to do when ranks hold different masks", "dense|error", "dense",
      nullptr},
     parse_on_mismatch},
    {{"PRUNEX_ISA", "instruction set of the host kernels", "auto|scalar|avx2|avx512", "auto",
      nullptr},
     parse_isa},
    {{"PRUNEX_RAILS", "at most this many leaders per node; 0: one per NIC", "0 to 64", "0",
      nullptr},
     parse_rails},
    {{"PRUNEX_STREAMS", "TCP streams per connection; 0: by the table", "0 to 64", "0",
      "NCCL_NSOCKS_PERTHREAD"},
     parse_streams,
     parse_nccl_streams},
    {{"PRUNEX_SOCKET_FAMILY", "address family of the interfaces", "any|AF_INET|AF_INET6", "any",
      "NCCL_SOCKET_FAMILY"},
     parse_family},
    {{"PRUNEX_CHUNK_BYTES", "pipeline chunk; 0: by the table", "0, or 4096 to 1M; K, M allowed",
      "0", nullptr},
     parse_chunk},
    {{"PRUNEX_ALGORITHM", "exchange between nodes; auto: by the table", "auto|exchange|scatter",
      "auto", nullptr},
     parse_algorithm},
    {{"PRUNEX_NET_MODE", "NCCL plugin: compact what pays; compact without back-off; send as it is",
      "auto|compact|passthrough", "auto", nullptr},
     parse_net_mode},
    {{"PRUNEX_METRICS_FILE",
      "NCCL plugin: Prometheus text, rewritten every ten seconds and at the end; "
      "%p: process id",
      "path", "", nullptr},
     parse_metrics_file},
    {{"PRUNEX_TUNER", "what NCCL shall prefer for large messages; equal on all ranks",
      "off|simple|collnet", "off", nullptr},
     parse_tuner},
    {{"PRUNEX_STAGED_GPU",
      "NCCL plugin: takes device memory, by GPUDirect or through pinned memory of its own; needs "
      "NCCL_PROTO=Simple",
      "0 or 1", "0", nullptr},
     parse_staged_gpu},
    {{"PRUNEX_PACING_RATE",
      "rate limit of what a leader sends to other nodes, as if its link were that slow: its "
      "connections share it (in the NCCL plugin it is each connection's); unset: as fast as the "
      "network goes",
      "8kbit to 1000gbit, such as 200mbit or 2.5gbit", "", nullptr},
     parse_pacing},
    {{"PRUNEX_LIBRARY", "Python: the libprunex.so to load, or its folder", "path", "", nullptr},
     parse_library},
};
constexpr size_t kRows = std::size(kTable);

constexpr auto kDocs = [] {
  std::array<ConfigRow, kRows> out{};
  for (size_t i = 0; i < kRows; ++i) {
    out[i] = kTable[i].doc;
  }
  return out;
}();

}  // namespace

std::span<const ConfigRow> config_table() { return kDocs; }
std::span<const ParsedRow> config_rows() { return kTable; }

Environment process_environment() {
  Environment out;
  out.lookup = [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  for (char** one = environ; one != nullptr && *one != nullptr; ++one) {
    const std::string_view entry = *one;
    out.names.emplace_back(entry.substr(0, entry.find('=')));
  }
  return out;
}

}  // namespace prunex

// SPDX-License-Identifier: Apache-2.0
// `prunex bench p2p` from parsed arguments to report.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugin/base/result.h"
#include "tools/link_text.h"
#include "tools/p2p_stats.h"

namespace prunex::tools {

inline constexpr double kP2pWarmupCapSeconds = 2;
inline constexpr int kP2pMaxInflight = 32;  // NCCL's own limit per connection
inline constexpr int kP2pWriteBatch = 16;   // receives that write posts at a time
// Shorter windows say little of a link whose ends hold megabytes for whoever reads late, as TCP's.
inline constexpr uint64_t kP2pPeakBytes = uint64_t{64} << 20;
inline constexpr int kP2pMaxStreams = 64;             // of PRUNEX_STREAMS
inline constexpr int kP2pMaxQueuePairs = 16;          // that a connection makes
inline constexpr const char* kOwnNetwork = "PRUNEX";  // PruneX's name in its tables

// How the receiving end is driven.
enum class P2pOp : uint8_t {
  send = 0,  // looks for every message, and posts a receive for another one at once
  write,     // kP2pMaxInflight receives posted ahead, looked after kP2pWriteBatch at a time
};
[[nodiscard]] const char* name_of(P2pOp op);

enum class P2pPattern : uint8_t { dense = 0, blocks, mask };
[[nodiscard]] const char* name_of(P2pPattern pattern);

struct P2pSpec {
  std::vector<uint64_t> sizes;  // bytes
  uint64_t iters = 1000;
  double duration_s = 0;  // above 0: this long instead of `iters`
  uint64_t warmup = 100;
  bool latency = false, bidirectional = false, check = false;
  P2pOp op = P2pOp::send;
  int inflight = 8;
  P2pPattern pattern = P2pPattern::dense;
  double density = 1;
  uint64_t run = 4096;  // bytes that are kept or zero together
  uint64_t seed = 1;
  int api = 0;            // 0: the newest
  std::string plugin;     // empty: libnccl-net-prunex.so, found as a job would
  std::string network;    // one of NCCL's own, inside libnccl; empty: the plugin's
  std::string device;     // empty: the first
  std::string mode;       // PRUNEX_NET_MODE; empty: as the environment says
  int streams = 0;        // PRUNEX_STREAMS; 0: as the environment says
  std::string transport;  // PRUNEX_TRANSPORT; empty: as the environment says
  int queue_pairs = 0;    // PRUNEX_IB_QPS; 0: as the environment says
  bool gbits = false;     // the table in Gbit/s
  std::string json, csv;  // empty: none; "-": stdout

  [[nodiscard]] int slots() const { return latency ? 2 : inflight; }  // messages side by side
  [[nodiscard]] int receives() const {                                // posted at a time
    return op == P2pOp::write ? kP2pMaxInflight : slots();
  }
  [[nodiscard]] int batch() const { return op == P2pOp::write ? kP2pWriteBatch : 1; }
};
// What both ends must have in common.
[[nodiscard]] std::string common_text(const P2pSpec& spec);

// As the plugin counts; prunex_net_stats.
struct P2pKinds {
  uint64_t messages[3] = {}, logical[3] = {}, wire[3] = {};  // raw, zero_block, masked
};

struct P2pPart {  // what one end sends, or all of it
  uint64_t iterations = 0, warmup_done = 0;
  uint64_t bytes = 0;  // of all iterations
  double seconds = 0;
  double average_MBps = 0;        // of logical bytes; MB = 10^6
  double peak_MBps = 0;           // of the best window; 0: a ping-pong, which has none
  Histogram time;                 // see the report's "time_is"
  std::optional<P2pKinds> kinds;  // none: the plugin is not PruneX's
  uint64_t pack_ns = 0, unpack_ns = 0;
  std::optional<uint64_t> errors;  // wrong bytes; none: not checked
  double density = 1;              // of the data
};

struct P2pRow {
  uint64_t bytes = 0;
  P2pPart local;  // rank 0 sends; in a ping-pong: both directions
  std::optional<P2pPart> remote;
  P2pPart sum;
};

// What an end connects by.
struct P2pPort {
  std::string transport;  // "socket", "verbs"; empty: the network is not PruneX's
  std::string address;    // where connections begin; empty: not known
  std::string device;
  std::string gid;      // "1 ::ffff:10.0.0.1 RoCE v2"; empty: not RoCE
  int mtu = 0;          // bytes of a packet of RDMA
  int queue_pairs = 0;  // PRUNEX_IB_QPS; 0: no RDMA
};

struct P2pReport {
  std::string release, peer_release, plugin, network, device;
  int api = 0;
  double connect_us = 0, peer_connect_us = 0;
  std::string mode;       // in force; empty: not known
  int streams = 0;        // in force; 0: automatic
  std::string transport;  // "socket", "verbs"; empty: the network is not PruneX's
  int queue_pairs = 0;    // in force; of this end, the larger of both counts
  P2pPort port, peer_port;
  bool sender_clock = false;  // bandwidth is by the sender's times
  LinkFacts link;             // pacing is PruneX's: another plugin has none
  std::vector<P2pRow> rows;
};

[[nodiscard]] std::string p2p_json(const P2pSpec& spec, const P2pReport& report);
[[nodiscard]] std::string p2p_csv(const P2pSpec& spec, const P2pReport& report);
[[nodiscard]] std::string p2p_table(const P2pSpec& spec, const P2pReport& report);

// This process as one end. Rank 0 reports. Returns the exit code.
[[nodiscard]] int run_p2p_end(const P2pSpec& spec, int rank, const std::string& root);

}  // namespace prunex::tools

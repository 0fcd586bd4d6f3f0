// SPDX-License-Identifier: Apache-2.0
// Every PRUNEX_* variable is one row of one table; the parser, `prunex info` and the README's table
// are all made from it. Only config.cc reads the environment; everything below receives values.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugin/base/log.h"
#include "plugin/base/result.h"

namespace prunex {

enum class Isa : int { automatic = 0, scalar, avx2, avx512 };
enum class OnMismatch : int { dense = 0, error };
enum class Tuner : int { off = 0, simple, collnet };
enum class NetMode : int { automatic = 0, compact, passthrough };
enum class Family : int { any = 0, v4, v6 };
enum class Choice : int { automatic = 0, socket, verbs };

struct IbConfig {                   // PRUNEX_IB_…, each with NCCL's twin
  bool disable = false;             // PRUNEX_IB_DISABLE
  std::string hca;                  // PRUNEX_IB_HCA: NCCL's grammar
  int gid_index = -1;               // PRUNEX_IB_GID_INDEX; -1: chosen
  Family gid_family = Family::any;  // PRUNEX_IB_ADDR_FAMILY
  std::string gid_range;            // PRUNEX_IB_ADDR_RANGE: a network, 10.0.0.0/8
  int roce_version = 2;             // PRUNEX_IB_ROCE_VERSION
  int traffic_class = -1;           // PRUNEX_IB_TC; -1: NCCL's communicator's, else 0
  int service_level = -1;           // PRUNEX_IB_SL; -1: likewise
  int timeout = 20;                 // PRUNEX_IB_TIMEOUT: 4.096 us * 2^n
  int retry_count = 7;              // PRUNEX_IB_RETRY_CNT
  int pkey = -1;                    // PRUNEX_IB_PKEY: index or key; -1: the first valid one
  int queue_pairs = 1;              // PRUNEX_IB_QPS
  int relaxed_ordering = 2;         // PRUNEX_IB_RELAXED_ORDERING; 2: where the device has it
};

struct Config {
  double timeout_s = 1800;          // PRUNEX_TIMEOUT: per call and for bootstrap, seconds
  LogLevel debug = LogLevel::warn;  // PRUNEX_DEBUG, NCCL_DEBUG when unset
  std::string root;                 // PRUNEX_ROOT: host:port where rank 0 listens
  int rank = -1;              // PRUNEX_RANK, else torchrun's, MPI's or Slurm's variable; -1: none
  int size = -1;              // PRUNEX_WORLD_SIZE, likewise
  std::string node_id;        // PRUNEX_NODE_ID (NCCL_HOSTID): overrides the node identity
  std::string socket_ifname;  // PRUNEX_SOCKET_IFNAME (NCCL_SOCKET_IFNAME): NCCL's grammar
  std::string port_range;     // PRUNEX_PORT_RANGE: lo-hi; empty: any
  OnMismatch on_mismatch = OnMismatch::dense;  // PRUNEX_ON_MISMATCH=dense|error
  Isa isa = Isa::automatic;                    // PRUNEX_ISA=auto|scalar|avx2|avx512
  int rails = 0;                // PRUNEX_RAILS: at most this many leaders per node; 0: one per NIC
  int streams = 0;              // PRUNEX_STREAMS: TCP streams per connection; 0: by the table
  int64_t chunk_bytes = 0;      // PRUNEX_CHUNK_BYTES: pipeline chunk; 0: by the table
  Family family = Family::any;  // PRUNEX_SOCKET_FAMILY (NCCL_SOCKET_FAMILY)
  NetMode net_mode = NetMode::automatic;  // PRUNEX_NET_MODE=auto|compact|passthrough
  std::string metrics_file;               // PRUNEX_METRICS_FILE: Prometheus text; empty: none
  std::string algorithm;     // PRUNEX_ALGORITHM=auto|exchange|scatter; empty or auto: by the table
  Tuner tuner = Tuner::off;  // PRUNEX_TUNER=off|simple|collnet: what to make NCCL prefer
  bool staged_gpu = false;   // PRUNEX_STAGED_GPU: the NCCL plugin takes device memory
  Choice transport = Choice::automatic;  // PRUNEX_TRANSPORT=auto|socket|verbs
  IbConfig ib;
  uint64_t pacing_bit_s = 0;  // PRUNEX_PACING_RATE: of a node's link, each direction; 0: as it is
};

struct ConfigRow {   // one variable, for `prunex info` and the README
  const char* name;  // PRUNEX_TIMEOUT
  const char* meaning;
  const char* range;     // "0.1 to 1e6 s", "dense|error", …
  const char* fallback;  // the default as text
  const char* twin;      // NCCL_…, or nullptr
};

struct ConfigValue {  // what is in force, and where it came from
  std::string name, value,
      source;  // source: "default", "PRUNEX_RANK", "NCCL_HOSTID", "OMPI_COMM_WORLD_RANK"…
};

[[nodiscard]] std::span<const ConfigRow> config_table();

// The environment as data, so that tests need no setenv. `lookup` answers nullopt when unset;
// `names` lists what is set (for unknown PRUNEX_* names).
struct Environment {
  std::function<std::optional<std::string>(std::string_view)> lookup;
  std::vector<std::string> names;
};
[[nodiscard]] Environment process_environment();

struct LoadedConfig {
  Config config;
  std::vector<ConfigValue> values;    // one per table row, in table order
  std::vector<std::string> warnings;  // unknown PRUNEX_* names with the nearest match
  // False: the launcher says that another process of this node is the one to say them.
  bool speaks_for_node = true;
};
// Junk is an error naming the variable, its value and what is allowed; several faults are all
// named.
[[nodiscard]] Result<LoadedConfig> load_config(const Environment& environment);

}  // namespace prunex

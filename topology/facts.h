// SPDX-License-Identifier: Apache-2.0
// What a rank knows about itself and its machine, published once to all ranks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugin/base/result.h"

namespace prunex::topo {

// How far a device is from this rank's CPUs (or GPU), nearest first.
enum class Distance : uint8_t { same_switch = 0, same_root, same_numa, same_machine, unknown };

struct NicFacts {
  std::string name;      // interface or RDMA device, "eth0", "mlx5_0"
  std::string address;   // numeric IP without port, may be empty
  int speed_mbps = 0;    // 0: not known
  int numa = -1;         // -1: not known
  Distance distance = Distance::unknown;
  bool rdma = false;
};

struct GpuFacts {
  std::string bus_id;    // as the driver says; may be shared by several (MIG)
  std::string uuid;      // tells equal bus ids apart
  int numa = -1;
};

enum Transports : uint32_t { kTransportSocket = 1, kTransportShm = 2, kTransportVerbs = 4 };

struct RankFacts {
  int rank = -1;
  std::string node_id;   // full identity string; equal strings are one node
  std::string host;      // for people
  int numa = -1;
  std::vector<GpuFacts> gpus;  // the GPUs this rank uses; usually none or one
  std::vector<NicFacts> nics;  // usable ones only, in device order
  uint32_t transports = kTransportSocket;
  std::string note;      // why locality is flat, if it is
};

[[nodiscard]] std::string encode(const RankFacts& facts);
// Never trusts the bytes: lengths are checked against the span and sane limits.
[[nodiscard]] Result<RankFacts> decode_facts(std::span<const std::byte> bytes);

}  // namespace prunex::topo

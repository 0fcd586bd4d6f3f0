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
[[nodiscard]] const char* name_of(Distance distance);  // "same switch"
[[nodiscard]] std::string speed_text(int mbps);        // "2.5 Gb/s", "speed unknown"

struct NicFacts {
  std::string name;     // interface or RDMA device, "eth0", "mlx5_0"
  std::string address;  // numeric IP without port, may be empty
  int prefix = 0;       // bits of `address` that name its network; 0: not known
  int speed_mbps = 0;   // 0: not known
  int numa = -1;        // -1: not known
  Distance distance = Distance::unknown;
  bool rdma = false;  // an RDMA device, or an interface that has one

  bool operator==(const NicFacts&) const = default;
};

struct GpuFacts {
  std::string bus_id;  // as the driver says; may be shared by several (MIG)
  std::string uuid;    // tells equal bus ids apart
  int numa = -1;

  bool operator==(const GpuFacts&) const = default;
};

enum Transports : uint32_t { kTransportSocket = 1, kTransportShm = 2, kTransportVerbs = 4 };

struct RankFacts {
  int rank = -1;
  std::string node_id;  // full identity string; equal strings are one node
  std::string host;     // for people
  int numa = -1;
  std::vector<GpuFacts> gpus;  // the GPUs this rank uses; usually none or one
  std::vector<NicFacts> nics;  // usable ones only, in device order
  uint32_t transports = kTransportSocket;
  std::string note;  // why locality is flat, if it is

  bool operator==(const RankFacts&) const = default;
};

// What one record may hold; far above any machine, so that a hostile length cannot cost memory.
inline constexpr size_t kMaxFactsString = 1024;
inline constexpr size_t kMaxFactsGpus = 64;
inline constexpr size_t kMaxFactsNics = 128;
inline constexpr size_t kMaxFactsBytes = 1 << 20;

// Longer strings and lists are cut to the limits above; local_facts() never makes such a node_id.
[[nodiscard]] std::string encode(const RankFacts& facts);
// Never trusts the bytes: lengths are checked against the span and the limits.
[[nodiscard]] Result<RankFacts> decode_facts(std::span<const std::byte> bytes);

}  // namespace prunex::topo

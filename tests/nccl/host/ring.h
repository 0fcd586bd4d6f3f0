// SPDX-License-Identifier: Apache-2.0
// A communicator of the stand-in: a ring of ranks, and what NCCL's kernels do on it.
#pragma once
#include <memory>
#include <vector>

#include "tests/nccl/host/proxy.h"

namespace prunex::nccl::host {

// Elements that are the same on every rank that asks, with whole blocks of zeros in `zeros` of 5.
int32_t element(uint64_t seed, int rank, size_t index, unsigned zeros = 3);
std::vector<int32_t> elements(uint64_t seed, int rank, size_t count, unsigned zeros = 3);

class Ring {
 public:
  // Loads the plugin, initialises it and connects to both neighbours.
  Ring(Rank& rank, int version, uint64_t comm_id = 1, int channel = 0);
  ~Ring();

  // Sums over all ranks. `slice`: steps per message.
  std::vector<int32_t> all_reduce(const std::vector<int32_t>& mine, abi::Proto proto,
                                  size_t slice = 1);

  // Sends to the next rank and receives from the one before, one message for each.
  std::vector<std::vector<std::byte>> shift(const std::vector<std::vector<std::byte>>& messages);

  // Says whether the sum is right.
  void check_all_reduce(uint64_t seed, size_t count, abi::Proto proto, size_t slice = 1);

  void close();  // NCCL's order: progress ends, memory, connections, context
  [[nodiscard]] Proxy& proxy() { return *proxy_; }
  [[nodiscard]] HostNet& net() { return *net_; }
  [[nodiscard]] Lane& send_lane() { return send_; }
  [[nodiscard]] Lane& recv_lane() { return recv_; }

 private:
  Rank& rank_;
  std::unique_ptr<HostNet> net_;
  std::unique_ptr<Proxy> proxy_;
  Lane send_, recv_;
};

}  // namespace prunex::nccl::host

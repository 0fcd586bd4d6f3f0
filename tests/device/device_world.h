// SPDX-License-Identifier: Apache-2.0
// Ranks as threads, each with a stream of its own, on the stand-ins for CUDA and NCCL.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "plugin/device/backend.h"
#include "plugin/device/device_comm.h"
#include "tests/collective/cluster.h"
#include "tests/collective/float_call.h"
#include "tests/device/fake_cuda.h"
#include "tests/device/standin/nccl.h"

namespace prunex::test {

// Buffers of a rank's device.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : at_(device_memory(bytes)), bytes_(bytes) {
    std::memset(at_, 0x5a, bytes);
  }
  explicit DeviceBuffer(const std::vector<float>& values) : DeviceBuffer(values.size() * 4) {
    put(values);
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { free_device_memory(at_); }
  void put(const std::vector<float>& values) { std::memcpy(at_, values.data(), bytes_); }
  [[nodiscard]] std::vector<float> floats() const {
    std::vector<float> out(bytes_ / 4);
    std::memcpy(out.data(), at_, bytes_);
    return out;
  }
  [[nodiscard]] std::byte* data() { return at_; }

 private:
  std::byte* at_;
  size_t bytes_;
};

struct DeviceRank {
  collective::Comm& comm;
  device::DeviceComm& device;
  FakeStream& stream;
  int rank;

  [[nodiscard]] void* handle() const { return static_cast<StreamLike*>(&stream); }
  [[nodiscard]] Result<> call(const collective::CallSpec& spec) const {
    return device.all_reduce(spec, 0, handle());
  }
  // With all calls so far counted: their headers are compared in the background.
  [[nodiscard]] collective::CommStats stats() const {
    comm.wait_idle();
    return comm.stats();
  }
  // An in-place sum of floats; waits for the stream.
  [[nodiscard]] Result<> sum(DeviceBuffer& buffer, const MaskedPtr& masked, uint64_t count,
                             collective::Scope scope = collective::Scope::world) const {
    collective::CallSpec spec;
    spec.send = spec.recv = buffer.data();
    spec.count = count;
    spec.scope = scope;
    spec.masked = masked;
    auto result = call(spec);
    stream.synchronize();
    return result;
  }
};

struct DeviceWorld {
  int rails = 1;
  bool split = true, config = true;  // does NCCL have these functions?
  double timeout_s = 60;
};

[[nodiscard]] inline const device::NcclApi& standin_nccl() {
  static const Result<device::NcclApi> api = device::open_nccl(PRUNEX_STANDIN_NCCL);
  EXPECT_TRUE(api) << api.error().text;
  return *api;
}

// Leaders of rail r: the r-th rank of each node, or the last where it has fewer.
[[nodiscard]] inline topo::World with_rails(topo::World world, int rails) {
  world.rails = rails;
  for (topo::Node& node : world.nodes) {
    for (size_t r = 1; r < static_cast<size_t>(rails); ++r) {
      node.leaders.push_back({node.ranks[std::min(r, node.ranks.size() - 1)], -1, "for the test"});
    }
    if (rails > 1) {
      node.leaders[0].rank = node.ranks[0];
    }
  }
  return world;
}

inline void run_device_ranks(const std::vector<int>& node_of,
                             const std::function<void(const DeviceRank&)>& body,
                             const DeviceWorld& options = {}) {
  device::NcclApi api = standin_nccl();
  api.CommSplit = options.split ? api.CommSplit : nullptr;
  api.CommInitRankConfig = options.config ? api.CommInitRankConfig : nullptr;
  device::replace_backend(&fake_cuda(), &api);
  const int alive = fake_counts().allocations;
  ClusterOptions cluster;
  cluster.timeout_s = options.timeout_s;
  run_ranks(
      node_of,
      [&](collective::Comm& comm, int rank) {
        FakeStream stream;
        const topo::World world = with_rails(comm.world(), options.rails);
        device::DeviceComm device(comm, fake_cuda(), 0, &world);
        body({comm, device, stream, rank});
      },
      cluster);
  device::replace_backend(nullptr, nullptr);
  EXPECT_EQ(standin_live(), 0) << "communicators of NCCL were left behind";
  EXPECT_EQ(fake_counts().allocations, alive) << "memory, plans or events were left behind";
}

// The k-th value of a rank, small and never zero.
[[nodiscard]] inline std::vector<float> values_of(int rank, size_t count) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(static_cast<int>(i % 37) + 1 + rank);
  }
  return out;
}

// The same with zeros where the mask keeps nothing (float_call.h's stripes).
[[nodiscard]] inline std::vector<float> striped_values(int rank, size_t count, size_t kept,
                                                       size_t of) {
  std::vector<float> out = values_of(rank, count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = i % of < kept ? out[i] : 0;
  }
  return out;
}

[[nodiscard]] inline std::vector<float> sum_of(const std::vector<std::vector<float>>& all) {
  std::vector<float> out(all[0].size());
  for (const auto& one : all) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] += one[i];
    }
  }
  return out;
}

}  // namespace prunex::test

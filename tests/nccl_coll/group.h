// SPDX-License-Identifier: Apache-2.0
// n nodes as threads that speak the CollNet table only, as NCCL's progress thread does.
#pragma once
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/half.h"
#include "plugin/base/dtype.h"
#include "plugin/nccl/coll/comm.h"
#include "plugin/nccl/coll_calls.h"
#include "plugin/nccl/net/host.h"
#include "prunex/prunex.h"

namespace prunex::nccl::test {

using Handle = std::array<char, kHandleBytes>;
using coll::CollStats;

// ncclDataType_t and ncclRedOp_t.
enum NcclType {
  kInt8,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
  kFloat8e4m3,
  kFloat8e5m2
};
enum NcclOp { kSum, kProd, kMax, kMin, kAvg };
inline constexpr int kTypes = 12, kOps = 4;

[[nodiscard]] inline DType dtype_of(int type) {
  constexpr DType kAll[] = {DType::i8,  DType::u8,   DType::i32,    DType::u32,
                            DType::i64, DType::u64,  DType::f16,    DType::f32,
                            DType::f64, DType::bf16, DType::f8e4m3, DType::f8e5m2};
  return kAll[type];
}
[[nodiscard]] inline size_t size_of_type(int type) { return size_of(dtype_of(type)); }

// Tests run on one machine, whatever interfaces it has.
inline void use_loopback() { ::setenv("PRUNEX_SOCKET_IFNAME", "lo", 1); }

// A context as init() makes them, with a configuration of the test's own.
inline std::shared_ptr<Context> context_with(const Config& config) {
  auto settings = std::make_shared<Settings>();
  settings->config = config;
  auto devices = find_devices(config);
  EXPECT_TRUE(devices);
  settings->devices = std::move(devices->devices);
  auto context = std::make_shared<Context>(1);
  context->settings = std::move(settings);
  return context;
}

struct Node {
  const CollCalls& calls = coll_calls();
  int rank = 0, nodes = 1;
  void* comm = nullptr;

  // Polls until it is done; a hang fails the test. Returns the last result code.
  int wait(void* request, int* bytes = nullptr) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    int done = 0, polls = 0;
    while (done == 0) {
      if (const int rc = calls.test(request, &done, bytes); rc != kSuccess) {
        return rc;
      }
      if (done == 0 && std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "node " << rank << ": a request hangs";
        return kInternalError;
      }
      // NCCL never sleeps; on machines with fewer cores than nodes the others need the time.
      if (done == 0 && ++polls % 32 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
    return kSuccess;
  }
  int all_reduce(const void* send, void* recv, size_t count, int type, int op) const {
    void* request = nullptr;
    if (const int rc =
            calls.iallreduce(comm, send, recv, count, type, op, nullptr, nullptr, &request);
        rc != kSuccess) {
      return rc;
    }
    EXPECT_NE(request, nullptr);
    return request == nullptr ? static_cast<int>(kInternalError) : wait(request);
  }
  [[nodiscard]] CollStats stats() const {
    CollStats s;
    EXPECT_TRUE(coll_stats(comm, &s));
    return s;
  }
};

// Opens the group, runs the body on every node's own thread, closes everything.
inline void run_nodes(int nodes, const std::function<void(Node&)>& body) {
  use_loopback();
  const CollCalls& calls = coll_calls();
  std::vector<Handle> handles(static_cast<size_t>(nodes));
  std::vector<void*> listens(handles.size()), contexts(handles.size()), pointers;
  for (size_t n = 0; n < handles.size(); ++n) {
    handles[n].fill(0x55);
    ASSERT_EQ(calls.init(&contexts[n], 7, nullptr), kSuccess);
    ASSERT_EQ(calls.listen(contexts[n], 0, handles[n].data(), &listens[n]), kSuccess);
    pointers.push_back(handles[n].data());
  }
  std::vector<std::thread> threads;
  for (int n = 0; n < nodes; ++n) {
    threads.emplace_back([&, n] {
      const auto at = static_cast<size_t>(n);
      Node node;
      node.rank = n;
      node.nodes = nodes;
      ASSERT_EQ(calls.connect(pointers.data(), nodes, n, listens[at], &node.comm), kSuccess);
      ASSERT_NE(node.comm, nullptr);
      EXPECT_EQ(calls.close_listen(listens[at]), kSuccess);
      body(node);
      EXPECT_EQ(calls.close_coll(node.comm), kSuccess);
      EXPECT_EQ(calls.finalize(contexts[at]), kSuccess);
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
}

template <class T>
void put(std::vector<std::byte>& buffer, size_t i, T v) {
  std::memcpy(buffer.data() + i * sizeof v, &v, sizeof v);
}
template <class T>
[[nodiscard]] T get(const std::vector<std::byte>& buffer, size_t i) {
  T v;
  std::memcpy(&v, buffer.data() + i * sizeof v, sizeof v);
  return v;
}

// An integer value in any type; small enough to be exact, and for unsigned types not negative.
inline void store(int type, std::vector<std::byte>& b, size_t i, int64_t v) {
  switch (type) {
    case kInt8:
    case kUint8:
      return put(b, i, static_cast<uint8_t>(v));
    case kInt32:
    case kUint32:
      return put(b, i, static_cast<uint32_t>(v));
    case kInt64:
    case kUint64:
      return put(b, i, v);
    case kFloat16:
      return put(b, i, float_to_half(static_cast<float>(v)));
    case kFloat32:
      return put(b, i, static_cast<float>(v));
    case kFloat64:
      return put(b, i, static_cast<double>(v));
    case kFloat8e4m3:
      return put(b, i, float_to_e4m3(static_cast<float>(v)));
    case kFloat8e5m2:
      return put(b, i, float_to_e5m2(static_cast<float>(v)));
    default:
      return put(b, i, float_to_bfloat(static_cast<float>(v)));
  }
}
[[nodiscard]] inline int64_t load(int type, const std::vector<std::byte>& b, size_t i) {
  switch (type) {
    case kInt8:
      return get<int8_t>(b, i);
    case kUint8:
      return get<uint8_t>(b, i);
    case kInt32:
      return get<int32_t>(b, i);
    case kUint32:
      return get<uint32_t>(b, i);
    case kInt64:
    case kUint64:
      return get<int64_t>(b, i);
    case kFloat16:
      return static_cast<int64_t>(half_to_float(get<uint16_t>(b, i)));
    case kFloat32:
      return static_cast<int64_t>(get<float>(b, i));
    case kFloat64:
      return static_cast<int64_t>(get<double>(b, i));
    case kFloat8e4m3:
      return static_cast<int64_t>(e4m3_to_float(get<uint8_t>(b, i)));
    case kFloat8e5m2:
      return static_cast<int64_t>(e5m2_to_float(get<uint8_t>(b, i)));
    default:
      return static_cast<int64_t>(bfloat_to_float(get<uint16_t>(b, i)));
  }
}

[[nodiscard]] inline int64_t combine(int op, int64_t a, int64_t b) {
  switch (op) {
    case kProd:
      return a * b;
    case kMax:
      return a > b ? a : b;
    case kMin:
      return a < b ? a : b;
    default:
      return a + b;
  }
}

}  // namespace prunex::nccl::test

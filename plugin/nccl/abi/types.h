// SPDX-License-Identifier: Apache-2.0
// Types that NCCL's plugin tables speak in, for x86-64 and AArch64 alike (LP64). Our own
// declarations: sizes and offsets are NCCL's, names are ours. Result codes are
// prunex::nccl::Status.
#pragma once
#include <cstddef>
#include <cstdint>

#include "plugin/nccl/internal_table.h"

namespace prunex::nccl::abi {

static_assert(sizeof(void*) == 8 && sizeof(size_t) == 8 && sizeof(int) == 4);
static_assert(sizeof(Status) == 4);  // ncclResult_t, a C enum

// ncclDataType_t
enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8e4m3 = 10,  // since 2.24
  kFloat8e5m2 = 11,
};

// ncclRedOp_t; plugins see the first four.
enum RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

// ncclFunc_t, as far as tuners are asked.
enum Func : int {
  kBroadcast = 0,
  kReduce = 1,
  kAllGather = 2,
  kReduceScatter = 3,
  kAllReduce = 4,
};

enum Algo : int { kTree = 0, kRing = 1, kCollnetDirect = 2, kCollnetChain = 3 };
enum Proto : int { kLl = 0, kLl128 = 1, kSimple = 2 };

enum LogLevel : int { kLogWarn = 2, kLogInfo = 3, kLogTrace = 5 };
enum LogFlags : unsigned long { kLogInit = 0x1, kLogNet = 0x10, kLogTuning = 0x40 };

// ncclDebugLogger_t is prunex::nccl::Logger: its level is a C enum, which is passed as an int.

// ncclProfilerCallback_t (v10 on); PruneX never calls it.
using ProfilerCallback = Status(void** event, int type, void* parent, int64_t plugin, void* data);

inline constexpr int kNetDeviceHost = 0;
inline constexpr int kNetDeviceInvalidVersion = 0;
inline constexpr int kTrafficClassUnset = -1;
inline constexpr int kIdUnset = -1;

struct DeviceHandle {  // ncclNetDeviceHandle_v7 on; for networks that GPUs drive themselves
  int net_device_type;
  int net_device_version;
  void* handle;
  size_t size;
  int needs_proxy_progress;
};
static_assert(sizeof(DeviceHandle) == 32);

struct CommConfig {  // ncclNetCommConfig_v10 on
  int traffic_class;
};
static_assert(sizeof(CommConfig) == 4);

struct CommAttr {
  int32_t max_concurrent_peers, min_concurrent_peers, max_flows_per_peer, min_flows_per_peer;
};
struct NetAttr {  // ncclNetAttr_v11 on: about the transfers that follow on this thread
  CommAttr send, recv;
  uint32_t op, algo, proto;
};
static_assert(sizeof(NetAttr) == 44 && offsetof(NetAttr, op) == 32);

struct SgeV8 {
  void* mr;
  void* address;
  uint32_t size;
};
struct SgeV9 {  // and later
  void* mr;
  void* address;
  size_t size;
};
static_assert(sizeof(SgeV8) == 24 && offsetof(SgeV8, size) == 16);
static_assert(sizeof(SgeV9) == 24 && offsetof(SgeV9, size) == 16);

}  // namespace prunex::nccl::abi

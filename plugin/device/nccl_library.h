// SPDX-License-Identifier: Apache-2.0
// NCCL as data: filled at run time from libnccl.so.2, or by a stand-in in tests. The declarations
// are ours; the numbers are those of NCCL's binary interface.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "plugin/base/dtype.h"
#include "plugin/base/result.h"

namespace prunex::device {

namespace nccl {

struct UniqueId {
  char bytes[128];
};
using Comm = void*;
using Stream = void*;

inline constexpr int kSuccess = 0, kInProgress = 7;
// Of a call inside a group: it is taken.
[[nodiscard]] constexpr bool good(int result) {
  return result == kSuccess || result == kInProgress;
}
inline constexpr int kSum = 0, kProd = 1, kMax = 2, kMin = 3;
inline constexpr int kNoColor = -1;

// As of 2.14; later versions take it for what it is by its size and version.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};
static_assert(sizeof(Config) == 24);

[[nodiscard]] constexpr int type_of(DType t) {
  constexpr int kTypes[] = {7, 8, 6, 9, 0, 1, 2, 4, 3, 5};
  return static_cast<int>(t) < kNumDTypes ? kTypes[static_cast<size_t>(t)] : -1;
}
[[nodiscard]] constexpr int op_of(Op op) {  // AVG is a sum; we divide once, at the end
  switch (op) {
    case Op::max:
      return kMax;
    case Op::min:
      return kMin;
    case Op::prod:
      return kProd;
    default:
      return kSum;
  }
}

}  // namespace nccl

struct NcclApi {
  int (*GetVersion)(int* version) = nullptr;
  int (*GetUniqueId)(nccl::UniqueId* id) = nullptr;
  int (*CommInitRank)(nccl::Comm* comm, int size, nccl::UniqueId id, int rank) = nullptr;
  int (*AllReduce)(const void* send, void* recv, size_t count, int type, int op, nccl::Comm comm,
                   nccl::Stream stream) = nullptr;
  int (*Reduce)(const void* send, void* recv, size_t count, int type, int op, int root,
                nccl::Comm comm, nccl::Stream stream) = nullptr;
  int (*ReduceScatter)(const void* send, void* recv, size_t recv_count, int type, int op,
                       nccl::Comm comm, nccl::Stream stream) = nullptr;
  int (*AllGather)(const void* send, void* recv, size_t send_count, int type, nccl::Comm comm,
                   nccl::Stream stream) = nullptr;
  int (*Broadcast)(const void* send, void* recv, size_t count, int type, int root, nccl::Comm comm,
                   nccl::Stream stream) = nullptr;
  int (*GroupStart)() = nullptr;
  int (*GroupEnd)() = nullptr;
  int (*CommGetAsyncError)(nccl::Comm comm, int* error) = nullptr;
  int (*CommAbort)(nccl::Comm comm) = nullptr;
  int (*CommDestroy)(nccl::Comm comm) = nullptr;
  const char* (*GetErrorString)(int error) = nullptr;

  // Newer than the others: null where the library has none.
  int (*CommInitRankConfig)(nccl::Comm* comm, int size, nccl::UniqueId id, int rank,
                            nccl::Config* config) = nullptr;
  int (*CommSplit)(nccl::Comm comm, int color, int key, nccl::Comm* out,
                   nccl::Config* config) = nullptr;
  const char* (*GetLastError)(nccl::Comm comm) = nullptr;

  std::string file;
  int version = 0;
};

// "2.27.0" of 22700, and "2.8.3" of 2803.
[[nodiscard]] std::string nccl_version_text(int version);

// Whatever libnccl.so.2 this process has already loaded (PyTorch brings its own), else by name.
// Errors have the dynamic linker's own words.
[[nodiscard]] Result<NcclApi> open_nccl(const std::string& file = "libnccl.so.2");

}  // namespace prunex::device

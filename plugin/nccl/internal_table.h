// SPDX-License-Identifier: Apache-2.0
// What the plugin module (libnccl-net-prunex.so) asks of the library (libprunex.so): one table of
// functions in the shape of NCCL's newest ABI, behind one exported symbol. Both files are built
// from this header; size and version say when they were not.
//
// Results are NCCL's codes (ncclResult_t has had these values since 2.4). Nothing throws. Every
// pointer named `ctx`, `comm`, `request` is opaque to the module; NULL where one is needed is
// invalid_argument, with one line. Threads: as NCCL drives a plugin: one thread at a time per comm
// for isend, irecv, iflush, test and the collectives; registering may happen meanwhile on another.
#pragma once
#include <cstddef>
#include <cstdint>

namespace prunex::nccl {

enum Status : int {  // = ncclResult_t
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

inline constexpr size_t kHandleBytes = 128;  // NCCL_NET_HANDLE_MAXSIZE
inline constexpr int kMaxRequests = 32;      // NCCL_NET_MAX_REQUESTS per comm
inline constexpr int kPtrHost = 1, kPtrCuda = 2, kPtrDmabuf = 4;
inline constexpr uintptr_t kOptionalRecv = 0x1;  // hint in irecv's *request: only the data matter

// NCCL's logger: level (2 WARN, 3 INFO, 5 TRACE), subsystem bits, function or file, line, format.
using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);

struct NetProperties {
  const char* name;      // of the device; lives as long as the process
  const char* pci_path;  // sysfs directory of the PCI device, or NULL
  uint64_t guid;
  int ptr_support;
  int speed_mbps;
  int port;
  float latency_us;
  int max_comms;
  int max_recvs;
  int reg_is_global;
  int force_flush;
  size_t max_p2p_bytes, max_coll_bytes;
};

// What setNetAttr says about the transfers that follow on this thread: bit masks, -1 unknown.
struct TransferHint {
  uint32_t op, algo, proto;  // BIT(ncclFunc), BIT(NCCL_ALGO_*), BIT(NCCL_PROTO_*)
};

struct CollPart {  // of iallgather's receives and ireducescatter's sends
  void* mr;
  void* address;
  size_t bytes;
};

struct NetCalls {
  // Counted; every context is finalized once. traffic_class -1: unset.
  int (*init)(void** ctx, uint64_t comm_id, int traffic_class, Logger logger);
  int (*finalize)(void* ctx);  // NULL and contexts that are gone: nothing happens
  int (*devices)(int* count);
  int (*properties)(int device, NetProperties* out);
  int (*listen)(void* ctx, int device, void* handle, void** listen_comm);
  int (*connect)(void* ctx, int device, void* handle, void** send_comm);  // *send_comm NULL: again
  int (*accept)(void* listen_comm, void** recv_comm);                     // *recv_comm NULL: again
  int (*reg_mr)(void* comm, void* data, size_t bytes, int type, void** mr);
  int (*reg_mr_dmabuf)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                       void** mr);
  int (*dereg_mr)(void* comm, void* mr);
  int (*isend)(void* comm, void* data, size_t bytes, int tag, void* mr, void** request);
  int (*irecv)(void* comm, int n, void** data, const size_t* bytes, const int* tags, void** mrs,
               void** request);
  int (*iflush)(void* comm, int n, void** data, const int* bytes, void** mrs, void** request);
  int (*test)(void* request, int* done, int* bytes);  // bytes: NULL, or one entry per message
  int (*close_send)(void* comm);
  int (*close_recv)(void* comm);
  int (*close_listen)(void* comm);
  int (*set_hint)(void* ctx, const TransferHint* hint);
};

// Among one rank per node. types and ops: ncclDataType_t and ncclRedOp_t.
struct CollCalls {
  int (*init)(void** ctx, uint64_t comm_id, Logger logger);
  int (*finalize)(void* ctx);
  int (*listen)(void* ctx, int device, void* handle, void** listen_comm);
  // Blocks until all are connected or the deadline has passed.
  int (*connect)(void* const* handles, int ranks, int rank, void* listen_comm, void** coll_comm);
  int (*reduce_support)(int type, int op, int* supported);
  int (*reg_mr)(void* comm, void* data, size_t bytes, int type, void** mr);
  int (*reg_mr_dmabuf)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                       void** mr);
  int (*dereg_mr)(void* comm, void* mr);
  int (*iallreduce)(void* comm, const void* send, void* recv, size_t count, int type, int op,
                    void* send_mr, void* recv_mr, void** request);
  int (*iallgather)(void* comm, const void* send, int parts, const CollPart* recv,
                    size_t bytes_per_rank, size_t window_offset, size_t window_bytes, void* send_mr,
                    void** request);
  int (*ireducescatter)(void* comm, int parts, const CollPart* send, void* recv,
                        size_t bytes_per_rank, size_t window_offset, size_t window_bytes, int type,
                        int op, void* recv_mr, void** request);
  int (*iflush)(void* comm, void* data, int bytes, void* mr, void** request);
  int (*test)(void* request, int* done, int* bytes);
  int (*close_coll)(void* comm);
  int (*close_listen)(void* comm);
};

// Off by default; the same answer on every rank that was configured alike.
struct TunerCalls {
  // PRUNEX_TUNER: 0 off, 1 simple, 2 collnet; an error when it cannot be understood.
  int (*mode)(int* mode);
};

inline constexpr uint32_t kTableVersion = 1;

struct InternalTable {
  uint32_t bytes;       // sizeof
  uint32_t version;     // kTableVersion
  const char* release;  // "0.1.0"
  const char* file;     // the library's path, for the message when the two do not fit
  NetCalls net;
  CollCalls coll;
  TunerCalls tuner;
};

}  // namespace prunex::nccl

// NULL when the library has no such table; compare bytes and version before using anything else.
extern "C" __attribute__((visibility("default"))) const prunex::nccl::InternalTable*
prunex_internal_table(uint32_t bytes, uint32_t version);

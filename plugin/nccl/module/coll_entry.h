// SPDX-License-Identifier: Apache-2.0
// The functions behind ncclCollNet_v6 to ncclCollNet_v12.
#pragma once
#include "plugin/nccl/module/entry.h"

namespace prunex::nccl::module_side {

inline constexpr int kMaxParts = 8;  // NCCL has only ever passed one

// For tables without a context of their own.
inline constinit OwnContexts coll_contexts([](const InternalTable& t, void** ctx, int,
                                              Logger log) { return t.coll.init(ctx, 0, log); },
                                           [](const InternalTable& t, void* ctx) {
                                             return t.coll.finalize(ctx);
                                           });

template <int V>
struct CollEntry : DeviceEntry {
  // v6 to v10
  static Status init(Logger log) noexcept {
    remember_logger(log);
    return call([&](const InternalTable& t) {
      tell_chosen<V>("ncclCollNet", told);
      return coll_contexts.init(t, log);
    });
  }
  // v11, v12: once per communicator
  static Status init(void** ctx, uint64_t comm_id, Logger log) noexcept {
    remember_logger(log);
    return call([&](const InternalTable& t) -> int {
      if (ctx == nullptr) {
        return kInvalidArgument;
      }
      *ctx = nullptr;
      tell_chosen<V>("ncclCollNet", told);
      return t.coll.init(ctx, comm_id, log);
    });
  }
  static Status finalize(void* ctx) noexcept {
    if (ctx == nullptr) {
      return kSuccess;
    }
    return call([&](const InternalTable& t) { return t.coll.finalize(ctx); });
  }

  // What the network stages of device memory (PRUNEX_STAGED_GPU) is no collective's.
  template <class P>
  static Status properties(int device, P* out) noexcept {
    return properties_of(device, out, kPtrHost);
  }

  static Status listen(int device, void* handle, void** comm) noexcept {
    return call([&](const InternalTable& t) -> int {
      void* ctx = nullptr;
      const Status status = coll_contexts.get(t, abi::kTrafficClassUnset, &ctx);
      return status != kSuccess ? status : t.coll.listen(ctx, device, handle, comm);
    });
  }
  static Status listen(void* ctx, int device, void* handle, void** comm) noexcept {
    return call([&](const InternalTable& t) { return t.coll.listen(ctx, device, handle, comm); });
  }
  static Status connect(void** handles, int ranks, int rank, void* listen_comm,
                        void** comm) noexcept {
    return call([&](const InternalTable& t) {
      return t.coll.connect(handles, ranks, rank, listen_comm, comm);
    });
  }
  static Status reduce_support(abi::DataType type, abi::RedOp op, int* supported) noexcept {
    return call([&](const InternalTable& t) { return t.coll.reduce_support(type, op, supported); });
  }

  template <class Size>
  static Status reg_mr(void* comm, void* data, Size size, int type, void** mr) noexcept {
    return call([&](const InternalTable& t) -> int {
      return fits(size, "regMr") ? t.coll.reg_mr(comm, data, static_cast<size_t>(size), type, mr)
                                 : kInvalidArgument;
    });
  }
  static Status reg_mr_dmabuf(void* comm, void* data, size_t size, int type, uint64_t offset,
                              int fd, void** mr) noexcept {
    return call([&](const InternalTable& t) {
      return t.coll.reg_mr_dmabuf(comm, data, size, type, offset, fd, mr);
    });
  }
  static Status dereg_mr(void* comm, void* mr) noexcept {
    return call([&](const InternalTable& t) { return t.coll.dereg_mr(comm, mr); });
  }

  template <class Count>
  static Status iallreduce(void* comm, void* send, void* recv, Count count, abi::DataType type,
                           abi::RedOp op, void* send_mr, void* recv_mr, void** request) noexcept {
    return call([&](const InternalTable& t) -> int {
      if (request == nullptr || !fits(count, "iallreduce")) {
        return kInvalidArgument;
      }
      *request = nullptr;
      return t.coll.iallreduce(comm, send, recv, static_cast<size_t>(count), type, op, send_mr,
                               recv_mr, request);
    });
  }

  template <class Sge>
  static Status iallgather(void* comm, void* send, int n, Sge* recv, size_t bytes_per_rank,
                           size_t window_offset, size_t window_bytes, void* send_mr,
                           void** request) noexcept {
    return call([&](const InternalTable& t) -> int {
      CollPart parts[kMaxParts];
      if (request == nullptr || !convert(n, recv, parts, "iallgather")) {
        return kInvalidArgument;
      }
      *request = nullptr;
      return t.coll.iallgather(comm, send, n, parts, bytes_per_rank, window_offset, window_bytes,
                               send_mr, request);
    });
  }

  template <class Sge>
  static Status ireducescatter(void* comm, int n, Sge* send, void* recv, size_t bytes_per_rank,
                               size_t window_offset, size_t window_bytes, abi::DataType type,
                               abi::RedOp op, void* recv_mr, void** request) noexcept {
    return call([&](const InternalTable& t) -> int {
      CollPart parts[kMaxParts];
      if (request == nullptr || !convert(n, send, parts, "ireducescatter")) {
        return kInvalidArgument;
      }
      *request = nullptr;
      return t.coll.ireducescatter(comm, n, parts, recv, bytes_per_rank, window_offset,
                                   window_bytes, type, op, recv_mr, request);
    });
  }

  static Status iflush(void* comm, void* data, int size, void* mr, void** request) noexcept {
    return call([&](const InternalTable& t) -> int {
      if (request == nullptr || !fits(size, "iflush")) {
        return kInvalidArgument;
      }
      *request = nullptr;
      return t.coll.iflush(comm, data, size, mr, request);
    });
  }
  static Status test(void* request, int* done, int* size) noexcept {
    return call([&](const InternalTable& t) { return t.coll.test(request, done, size); });
  }
  static Status close_coll(void* comm) noexcept {
    return call([&](const InternalTable& t) { return t.coll.close_coll(comm); });
  }
  static Status close_listen(void* comm) noexcept {
    return call([&](const InternalTable& t) { return t.coll.close_listen(comm); });
  }

  static inline constinit std::atomic<bool> told{false};

 private:
  template <class Sge>
  static bool convert(int n, const Sge* from, CollPart* to, const char* what) {
    if (n < 0 || n > kMaxParts || (n > 0 && from == nullptr)) {
      PRUNEX_SAY(kLogWarn, "%s: %d parts, at most %d are possible", what, n, kMaxParts);
      return false;
    }
    for (int i = 0; i < n; ++i) {
      to[i] = {from[i].mr, from[i].address, from[i].size};
    }
    return true;
  }
};

template <int V>
constexpr abi::CollNet<V> make_coll_table() {
  using Entry = CollEntry<V>;
  abi::CollNet<V> t{};
  t.name = kName;
  t.init = Entry::init;
  t.devices = Entry::devices;
  t.get_properties = Entry::properties;
  t.listen = Entry::listen;
  t.connect = Entry::connect;
  t.reduce_support = Entry::reduce_support;
  t.reg_mr = Entry::reg_mr;
  t.reg_mr_dmabuf = Entry::reg_mr_dmabuf;
  t.dereg_mr = Entry::dereg_mr;
  t.iallreduce = Entry::iallreduce;
  if constexpr (requires { t.iallgather; }) {
    t.iallgather = Entry::iallgather;
    t.ireducescatter = Entry::ireducescatter;
  }
  t.iflush = Entry::iflush;
  t.test = Entry::test;
  t.close_coll = Entry::close_coll;
  t.close_listen = Entry::close_listen;
  if constexpr (requires { t.finalize; }) {
    t.finalize = Entry::finalize;
  }
  return t;  // make_vdevice: NULL
}

}  // namespace prunex::nccl::module_side

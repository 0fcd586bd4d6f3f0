// SPDX-License-Identifier: Apache-2.0
// The functions behind ncclNet_v6 to ncclNet_v12.
#pragma once
#include "plugin/nccl/module/entry.h"

namespace prunex::nccl::module_side {

inline constexpr int kMaxReceives = 8;  // of one irecv whose sizes are widened here

// For tables without a context of their own.
inline constinit OwnContexts net_contexts(
    [](const InternalTable& t, void** ctx, int traffic_class, Logger log) {
      return t.net.init(ctx, 0, traffic_class, log);
    },
    [](const InternalTable& t, void* ctx) { return t.net.finalize(ctx); });

template <int V>
struct NetEntry : DeviceEntry {
  // v6 to v9
  static Status init(Logger log) noexcept {
    remember_logger(log);
    return call([&](const InternalTable& t) {
      tell_chosen<V>("ncclNet", told);
      return net_contexts.init(t, log);
    });
  }
  // v10
  static Status init(Logger log, abi::ProfilerCallback*) noexcept { return init(log); }
  // v11, v12: once per communicator
  static Status init(void** ctx, uint64_t comm_id, abi::CommConfig* config, Logger log,
                     abi::ProfilerCallback*) noexcept {
    remember_logger(log);
    return call([&](const InternalTable& t) -> int {
      if (ctx == nullptr) {
        return kInvalidArgument;
      }
      *ctx = nullptr;
      tell_chosen<V>("ncclNet", told);
      const int traffic_class = config == nullptr ? abi::kTrafficClassUnset : config->traffic_class;
      return t.net.init(ctx, comm_id, traffic_class, log);
    });
  }

  // NCCL 2.28.3 to 2.29.3 finalize after a failed init too.
  static Status finalize(void* ctx) noexcept {
    if (ctx == nullptr) {
      return kSuccess;
    }
    return call([&](const InternalTable& t) { return t.net.finalize(ctx); });
  }

  static Status listen(int device, void* handle, void** comm) noexcept {
    return call([&](const InternalTable& t) -> int {
      void* ctx = nullptr;
      const Status status = net_contexts.get(t, abi::kTrafficClassUnset, &ctx);
      return status != kSuccess ? status : t.net.listen(ctx, device, handle, comm);
    });
  }
  static Status listen(void* ctx, int device, void* handle, void** comm) noexcept {
    return call([&](const InternalTable& t) { return t.net.listen(ctx, device, handle, comm); });
  }

  // v6
  static Status connect(int device, void* handle, void** comm) noexcept {
    return connect_class(device, abi::kTrafficClassUnset, handle, comm);
  }
  // v7 to v9
  static Status connect(int device, void* handle, void** comm, abi::DeviceHandle**) noexcept {
    return connect_class(device, abi::kTrafficClassUnset, handle, comm);
  }
  // v10
  static Status connect(int device, abi::CommConfig* config, void* handle, void** comm,
                        abi::DeviceHandle**) noexcept {
    const int traffic_class = config == nullptr ? abi::kTrafficClassUnset : config->traffic_class;
    return connect_class(device, traffic_class, handle, comm);
  }
  // v11, v12
  static Status connect(void* ctx, int device, void* handle, void** comm,
                        abi::DeviceHandle**) noexcept {
    return call([&](const InternalTable& t) { return t.net.connect(ctx, device, handle, comm); });
  }

  static Status accept(void* listen_comm, void** comm) noexcept {
    return call([&](const InternalTable& t) { return t.net.accept(listen_comm, comm); });
  }
  static Status accept(void* listen_comm, void** comm, abi::DeviceHandle**) noexcept {
    return accept(listen_comm, comm);
  }

  template <class Size>
  static Status reg_mr(void* comm, void* data, Size size, int type, void** mr) noexcept {
    return call([&](const InternalTable& t) -> int {
      return fits(size, "regMr") ? t.net.reg_mr(comm, data, static_cast<size_t>(size), type, mr)
                                 : kInvalidArgument;
    });
  }
  static Status reg_mr_dmabuf(void* comm, void* data, size_t size, int type, uint64_t offset,
                              int fd, void** mr) noexcept {
    return call([&](const InternalTable& t) {
      return t.net.reg_mr_dmabuf(comm, data, size, type, offset, fd, mr);
    });
  }
  static Status dereg_mr(void* comm, void* mr) noexcept {
    return call([&](const InternalTable& t) { return t.net.dereg_mr(comm, mr); });
  }

  template <class Size>
  static Status isend(void* comm, void* data, Size size, int tag, void* mr,
                      void** request) noexcept {
    return call([&](const InternalTable& t) -> int {
      if (request == nullptr || !fits(size, "isend")) {
        return kInvalidArgument;
      }
      *request = nullptr;
      return t.net.isend(comm, data, static_cast<size_t>(size), tag, mr, request);
    });
  }
  static Status isend(void* comm, void* data, size_t size, int tag, void* mr, void* /* event */,
                      void** request) noexcept {
    return isend(comm, data, size, tag, mr, request);
  }

  // v6 to v8
  static Status irecv(void* comm, int n, void** data, int* sizes, int* tags, void** mrs,
                      void** request) noexcept {
    if (n < 0 || n > kMaxReceives || sizes == nullptr || request == nullptr) {
      PRUNEX_SAY(kLogWarn, "irecv: %d receives in one, at most %d are possible", n, kMaxReceives);
      return kInvalidArgument;
    }
    *request = nullptr;  // no hint in these versions, whatever the slot held before
    size_t wide[kMaxReceives];
    for (int i = 0; i < n; ++i) {
      if (!fits(sizes[i], "irecv")) {
        return kInvalidArgument;
      }
      wide[i] = static_cast<size_t>(sizes[i]);
    }
    return irecv(comm, n, data, wide, tags, mrs, request);
  }
  // v9
  static Status irecv(void* comm, int n, void** data, size_t* sizes, int* tags, void** mrs,
                      void** request) noexcept {
    return call([&](const InternalTable& t) -> int {
      if (request == nullptr) {
        return kInvalidArgument;
      }
      // Anything but the hint is the request of an earlier use of this slot.
      const auto hint = reinterpret_cast<void*>(kOptionalRecv);
      *request = *request == hint ? hint : nullptr;
      const int status = t.net.irecv(comm, n, data, sizes, tags, mrs, request);
      if (status != kSuccess || *request == hint) {
        *request = nullptr;
      }
      return status;
    });
  }
  // v10 to v12
  static Status irecv(void* comm, int n, void** data, size_t* sizes, int* tags, void** mrs,
                      void** /* events */, void** request) noexcept {
    return irecv(comm, n, data, sizes, tags, mrs, request);
  }

  static Status iflush(void* comm, int n, void** data, int* sizes, void** mrs,
                       void** request) noexcept {
    return call([&](const InternalTable& t) -> int {
      if (request == nullptr) {
        return kInvalidArgument;
      }
      *request = nullptr;
      return t.net.iflush(comm, n, data, sizes, mrs, request);
    });
  }
  static Status test(void* request, int* done, int* sizes) noexcept {
    return call([&](const InternalTable& t) { return t.net.test(request, done, sizes); });
  }
  static Status close_send(void* comm) noexcept {
    return call([&](const InternalTable& t) { return t.net.close_send(comm); });
  }
  static Status close_recv(void* comm) noexcept {
    return call([&](const InternalTable& t) { return t.net.close_recv(comm); });
  }
  static Status close_listen(void* comm) noexcept {
    return call([&](const InternalTable& t) { return t.net.close_listen(comm); });
  }

  static Status set_net_attr(void* ctx, abi::NetAttr* attr) noexcept {
    return call([&](const InternalTable& t) -> int {
      if (attr == nullptr) {
        return kInvalidArgument;
      }
      const TransferHint hint{attr->op, attr->algo, attr->proto};
      return t.net.set_hint(ctx, &hint);
    });
  }

  static inline constinit std::atomic<bool> told{false};

 private:
  static Status connect_class(int device, int traffic_class, void* handle, void** comm) noexcept {
    return call([&](const InternalTable& t) -> int {
      void* ctx = nullptr;
      const Status status = net_contexts.get(t, traffic_class, &ctx);
      return status != kSuccess ? status : t.net.connect(ctx, device, handle, comm);
    });
  }
};

template <int V>
constexpr abi::Net<V> make_net_table() {
  using Entry = NetEntry<V>;
  abi::Net<V> t{};
  t.name = kName;
  t.init = Entry::init;
  t.devices = Entry::devices;
  t.get_properties = Entry::properties;
  t.listen = Entry::listen;
  t.connect = Entry::connect;
  t.accept = Entry::accept;
  t.reg_mr = Entry::reg_mr;
  t.reg_mr_dmabuf = Entry::reg_mr_dmabuf;
  t.dereg_mr = Entry::dereg_mr;
  t.isend = Entry::isend;
  t.irecv = Entry::irecv;
  t.iflush = Entry::iflush;
  t.test = Entry::test;
  t.close_send = Entry::close_send;
  t.close_recv = Entry::close_recv;
  t.close_listen = Entry::close_listen;
  if constexpr (requires { t.finalize; }) {
    t.finalize = Entry::finalize;
    t.set_net_attr = Entry::set_net_attr;
  }
  return t;  // get_device_mr, irecv_consumed, make_vdevice: NULL, the network has none of these
}

}  // namespace prunex::nccl::module_side

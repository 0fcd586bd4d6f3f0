// SPDX-License-Identifier: Apache-2.0
// Net's entries: arguments looked at, objects handed out and taken back, errors said and
// translated.
#include "plugin/nccl/net/connect.h"
#include "plugin/nccl/net/host.h"
#include "plugin/nccl/net/register.h"
#include "plugin/nccl/net_calls.h"
#include "plugin/nccl/status.h"

namespace prunex::nccl {
namespace {

constexpr int kMaxComms = 65536;
constexpr size_t kMaxTransfer = size_t{1} << 30;      // what NCCL itself asks for at most
constexpr size_t kMaxCollTransfer = size_t{8} << 20;  // calls are in flight together: they pipeline

Living& living() {
  static Living* const one = new Living;  // outlives exit handlers
  return *one;
}

template <class T>
void hand_out(std::unique_ptr<T> object, void** out) {
  living().add(static_cast<Object*>(object.get()));
  *out = static_cast<Object*>(object.release());
}

// The object behind a pointer that NCCL holds, if it is alive and of this kind.
template <class T>
T* living_as(void* pointer) {
  if (pointer == nullptr || !living().has(pointer)) {
    return nullptr;
  }
  auto* object = static_cast<Object*>(pointer);
  return object->tag == T::kTag ? static_cast<T*>(object) : nullptr;
}

// For the data path: no look-up.
template <class T>
T* tagged(void* pointer) {
  auto* object = static_cast<Object*>(pointer);
  return object != nullptr && object->tag == T::kTag ? static_cast<T*>(object) : nullptr;
}

NetComm* net_comm(void* pointer) {
  if (auto* sending = tagged<SendComm>(pointer)) {
    return sending;
  }
  return tagged<RecvComm>(pointer);
}

int init(void** ctx, uint64_t comm_id, int traffic_class, Logger logger) {
  return guard("init", [&]() -> int {
    if (ctx == nullptr) {
      return invalid("init", "the context's address is NULL");
    }
    *ctx = nullptr;
    auto context = Host::instance().open(comm_id, traffic_class, logger);
    if (!context) {
      return report(context.error());
    }
    *ctx = context->get();
    return kSuccess;
  });
}

int finalize(void* ctx) {
  return guard("finalize", [&]() -> int {
    if (const auto context = Host::instance().find(ctx)) {
      forget_connecting(context.get());
      Host::instance().close(ctx);
    }
    return kSuccess;
  });
}

int devices(int* count) {
  return guard("devices", [&]() -> int {
    if (count == nullptr) {
      return invalid("devices", "the count's address is NULL");
    }
    const auto settings = Host::instance().settings();
    *count = settings == nullptr ? 0 : static_cast<int>(settings->devices.size());
    return settings == nullptr ? invalid("devices", "init was not called, or failed") : kSuccess;
  });
}

int properties(int device, NetProperties* out) {
  return guard("getProperties", [&]() -> int {
    const auto settings = Host::instance().settings();
    if (out == nullptr || settings == nullptr || device < 0 ||
        static_cast<size_t>(device) >= settings->devices.size()) {
      return invalid("getProperties", strf("device %d of %zu", device,
                                           settings == nullptr ? 0 : settings->devices.size())
                                          .c_str());
    }
    const Device& d = settings->devices[static_cast<size_t>(device)];
    *out = NetProperties{};
    out->name = Host::instance().lasting(d.name);
    out->pci_path = d.pci_path.empty() ? nullptr : Host::instance().lasting(d.pci_path);
    out->guid = d.guid;
    out->ptr_support = settings->takes_device ? kPtrHost | kPtrCuda : kPtrHost;
    out->speed_mbps = d.speed_mbps;
    out->port = d.port;
    out->max_comms = kMaxComms;
    out->max_recvs = 1;
    out->max_p2p_bytes = kMaxTransfer;
    out->max_coll_bytes = kMaxCollTransfer;
    return kSuccess;
  });
}

int listen_call(void* ctx, int device, void* handle, void** listen_comm) {
  return guard("listen", [&]() -> int {
    if (handle == nullptr || listen_comm == nullptr) {
      return invalid("listen", "the handle or the comm's address is NULL");
    }
    *listen_comm = nullptr;
    auto context = Host::instance().find(ctx);
    if (context == nullptr) {
      return invalid("listen", "the context is not open");
    }
    auto made =
        listen(std::move(context), device,
               std::span<std::byte, kHandleBytes>(static_cast<std::byte*>(handle), kHandleBytes));
    if (!made) {
      return report(made.error());
    }
    hand_out(std::move(*made), listen_comm);
    return kSuccess;
  });
}

int connect_call(void* ctx, int device, void* handle, void** send_comm) {
  return guard("connect", [&]() -> int {
    if (handle == nullptr || send_comm == nullptr) {
      return invalid("connect", "the handle or the comm's address is NULL");
    }
    *send_comm = nullptr;
    const auto context = Host::instance().find(ctx);
    if (context == nullptr) {
      return invalid("connect", "the context is not open");
    }
    auto made = connect(context, device, handle);
    if (!made) {
      return report(made.error());
    }
    if (*made != nullptr) {
      hand_out(std::move(*made), send_comm);
    }
    return kSuccess;
  });
}

int accept_call(void* listen_comm, void** recv_comm) {
  return guard("accept", [&]() -> int {
    auto* listening = living_as<ListenComm>(listen_comm);
    if (listening == nullptr || recv_comm == nullptr) {
      return invalid("accept", "not a listening comm, or the comm's address is NULL");
    }
    *recv_comm = nullptr;
    auto made = accept(*listening);
    if (!made) {
      return report(made.error());
    }
    if (*made != nullptr) {
      hand_out(std::move(*made), recv_comm);
    }
    return kSuccess;
  });
}

// Messages of device memory lie in what was registered: whether the network reaches them is known
// of that alone.
bool outside(const Memory* memory, const void* data, size_t bytes) {
  return memory != nullptr && memory->lane() != nullptr && bytes > 0 && !memory->holds(data, bytes);
}

int reg_mr(void* comm, void* data, size_t bytes, int type, void** mr) {
  return guard("regMr", [&]() -> int {
    if (mr == nullptr || comm == nullptr || !living().has(comm)) {
      return invalid("regMr", "not a comm, or the handle's address is NULL");
    }
    *mr = nullptr;
    if (bytes == 0 || data == nullptr) {
      return invalid(
          "regMr", bytes == 0 ? "a buffer of 0 bytes: there is nothing to register" : "NULL data");
    }
    NetComm* owner = net_comm(comm);
    if (owner == nullptr) {
      return invalid("regMr", "neither a sending nor a receiving comm");
    }
    const bool staged = type == kPtrCuda && owner->context().settings->takes_device;
    if (type != kPtrHost && !staged) {
      return invalid("regMr",
                     strf("memory of type %d: this device takes host memory (type %d)%s", type,
                          kPtrHost, type == kPtrCuda ? "; PRUNEX_STAGED_GPU=1 takes a GPU's" : "")
                         .c_str());
    }
    auto memory = std::make_unique<Memory>(data, bytes, type);
    const int status = register_memory(*owner, *memory);
    if (status == kSuccess) {
      hand_out(std::move(memory), mr);
    }
    return status;
  });
}

int reg_mr_dmabuf(void*, void*, size_t, int, uint64_t, int, void** mr) {
  if (mr != nullptr) {
    *mr = nullptr;
  }
  return invalid("regMrDmaBuf", "this device takes host memory");
}

int dereg_mr(void*, void* mr) {
  return guard("deregMr", [&]() -> int {
    auto* memory = living_as<Memory>(mr);
    if (memory == nullptr) {
      return invalid("deregMr", "not a registered buffer");
    }
    (void)living().take(mr);
    const auto lane = memory->known->of_device;
    delete memory;
    count_buffer_taken();
    if (lane != nullptr) {
      lane->drain();  // a connection that broke may have left a copy behind
    }
    return kSuccess;
  });
}

int isend(void* comm, void* data, size_t bytes, int, void* mr, void** request) {
  return guard("isend", [&]() -> int {
    auto* sending = tagged<SendComm>(comm);
    if (sending == nullptr || request == nullptr || (data == nullptr && bytes > 0)) {
      return invalid("isend", "not a sending comm, or NULL data or request");
    }
    const auto* memory = tagged<Memory>(mr);
    if (outside(memory, data, bytes)) {
      return invalid("isend", "the message is not in the registered buffer");
    }
    return sending->isend(data, bytes, memory, request);
  });
}

int irecv(void* comm, int n, void** data, const size_t* bytes, const int*, void** mrs,
          void** request) {
  return guard("irecv", [&]() -> int {
    auto* receiving = tagged<RecvComm>(comm);
    if (receiving == nullptr || request == nullptr || data == nullptr || bytes == nullptr) {
      return invalid("irecv", "not a receiving comm, or NULL data, sizes or request");
    }
    if (n != 1) {
      return invalid("irecv", strf("%d receives in one: maxRecvs is 1", n).c_str());
    }
    if (data[0] == nullptr && bytes[0] > 0) {
      return invalid("irecv", "NULL data");
    }
    const bool polled = reinterpret_cast<uintptr_t>(*request) == kOptionalRecv;
    const auto* memory = tagged<Memory>(mrs == nullptr ? nullptr : mrs[0]);
    if (outside(memory, data[0], bytes[0])) {
      return invalid("irecv", "the message is not in the registered buffer");
    }
    return receiving->irecv(data[0], bytes[0], memory, polled, request);
  });
}

int iflush(void* comm, int n, void**, const int* bytes, void** mrs, void** request) {
  return guard("iflush", [&]() -> int {
    auto* receiving = tagged<RecvComm>(comm);
    if (receiving == nullptr || request == nullptr) {
      return invalid("iflush", "not a receiving comm, or NULL request");
    }
    *request = nullptr;  // what there is to do is done at once
    for (int i = 0; i < n && mrs != nullptr; ++i) {
      const auto* memory = tagged<Memory>(mrs[i]);
      if (memory != nullptr && memory->is_direct() && (bytes == nullptr || bytes[i] > 0)) {
        return receiving->flush(*memory);  // one of a device is one of all
      }
    }
    return kSuccess;
  });
}

int test(void* request, int* done, int* bytes) {
  return guard("test", [&]() -> int {
    auto* r = tagged<Request>(request);
    if (r == nullptr || done == nullptr || !r->used) {
      return invalid("test", "not a request in flight, or NULL done");
    }
    return r->owner->test(*r, done, bytes);
  });
}

// What a forked child closes is its parent's: shutting it down would end the parent's connection.
bool left_to_parent(const NetComm& comm) { return comm.from_before_fork(); }
bool left_to_parent(const ListenComm&) { return false; }

template <class T>
int close(const char* call, void* comm) {
  return guard(call, [&]() -> int {
    T* object = living_as<T>(comm);
    if (object == nullptr) {
      return invalid(call, "not such a comm, or closed before");
    }
    (void)living().take(comm);
    if (!left_to_parent(*object)) {
      delete object;
    }
    return kSuccess;
  });
}

int close_send(void* comm) { return close<SendComm>("closeSend", comm); }
int close_recv(void* comm) { return close<RecvComm>("closeRecv", comm); }
int close_listen(void* comm) { return close<ListenComm>("closeListen", comm); }

int set_hint(void* ctx, const TransferHint* hint) {
  if (hint == nullptr) {
    return invalid("setNetAttr", "NULL attributes");
  }
  set_thread_hint(ctx, *hint);
  return kSuccess;
}

constexpr NetCalls kCalls{init,         finalize,     devices, properties,    listen_call,
                          connect_call, accept_call,  reg_mr,  reg_mr_dmabuf, dereg_mr,
                          isend,        irecv,        iflush,  test,          close_send,
                          close_recv,   close_listen, set_hint};

}  // namespace

const NetCalls& net_calls() { return kCalls; }

}  // namespace prunex::nccl

// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/fake/fake.h"

#include <type_traits>

namespace prunex::nccl::fake {
namespace {

Fake state;
int contexts = 0;

template <class T>
uint64_t number(T value) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<uint64_t>(value);
  } else {
    return static_cast<uint64_t>(static_cast<int64_t>(value));
  }
}

template <class... Given>
int note(const char* function, Given... given) {
  state.calls.push_back({function, {number(given)...}});
  return state.answer;
}

template <class T, class V>
int give(T** out, V value, int status) {
  if (status == kSuccess && out != nullptr) {
    *out = object(number(value));
  }
  return status;
}

void append(const CollPart* parts, int n) {
  for (int i = 0; i < n; ++i) {
    state.calls.back().given.insert(
        state.calls.back().given.end(),
        {number(parts[i].mr), number(parts[i].address), parts[i].bytes});
  }
}

int net_init(void** ctx, uint64_t id, int traffic_class, Logger log) {
  return give(ctx, kCtx + static_cast<uintptr_t>(contexts++),
              note("net.init", id, traffic_class, reinterpret_cast<uint64_t>(log)));
}
int net_finalize(void* ctx) { return note("net.finalize", ctx); }
int net_devices(int* count) {
  *count = state.devices;
  return note("net.devices");
}
int net_properties(int device, NetProperties* out) {
  *out = {"fake0", "/sys/fake", 77, kPtrHost, 25000,           3,      1.5F,
          1000,    1,           1,  1,        size_t{5} << 30, 6 << 20};
  return note("net.properties", device);
}
int net_listen(void* ctx, int device, void* handle, void** comm) {
  return give(comm, kListen, note("net.listen", ctx, device, handle));
}
int net_connect(void* ctx, int device, void* handle, void** comm) {
  return give(comm, kSend, note("net.connect", ctx, device, handle));
}
int net_accept(void* listen, void** comm) { return give(comm, kRecv, note("net.accept", listen)); }
int net_reg_mr(void* comm, void* data, size_t bytes, int type, void** mr) {
  return give(mr, kMr, note("net.reg_mr", comm, data, bytes, type));
}
int net_reg_mr_dmabuf(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                      void** mr) {
  return give(mr, kMr, note("net.reg_mr_dmabuf", comm, data, bytes, type, offset, fd));
}
int net_dereg_mr(void* comm, void* mr) { return note("net.dereg_mr", comm, mr); }
int net_isend(void* comm, void* data, size_t bytes, int tag, void* mr, void** request) {
  const uint64_t before = number(*request);
  return give(request, kRequest, note("net.isend", comm, data, bytes, tag, mr, before));
}
int net_irecv(void* comm, int n, void** data, const size_t* bytes, const int* tags, void** mrs,
              void** request) {
  const int status = note("net.irecv", comm, n, *request);
  for (int i = 0; i < n; ++i) {
    state.calls.back().given.insert(state.calls.back().given.end(),
                                    {number(data[i]), bytes[i], number(tags[i]), number(mrs[i])});
  }
  return state.leaves_hint ? status : give(request, kRequest, status);
}
int net_iflush(void* comm, int n, void** data, const int* bytes, void** mrs, void** request) {
  return give(request, kRequest, note("net.iflush", comm, n, data[0], bytes[0], mrs[0]));
}
int net_test(void* request, int* done, int* bytes) {
  *done = 1;
  if (bytes != nullptr) {
    bytes[0] = 123;
  }
  return note("net.test", request, bytes);
}
int net_close_send(void* comm) { return note("net.close_send", comm); }
int net_close_recv(void* comm) { return note("net.close_recv", comm); }
int net_close_listen(void* comm) { return note("net.close_listen", comm); }
int net_set_hint(void* ctx, const TransferHint* hint) {
  return note("net.set_hint", ctx, hint->op, hint->algo, hint->proto);
}

int coll_init(void** ctx, uint64_t id, Logger log) {
  return give(ctx, kCtx + static_cast<uintptr_t>(contexts++),
              note("coll.init", id, reinterpret_cast<uint64_t>(log)));
}
int coll_finalize(void* ctx) { return note("coll.finalize", ctx); }
int coll_listen(void* ctx, int device, void* handle, void** comm) {
  return give(comm, kListen, note("coll.listen", ctx, device, handle));
}
int coll_connect(void* const* handles, int ranks, int rank, void* listen, void** comm) {
  return give(comm, kColl, note("coll.connect", handles[0], ranks, rank, listen));
}
int coll_reduce_support(int type, int op, int* supported) {
  *supported = 1;
  return note("coll.reduce_support", type, op);
}
int coll_reg_mr(void* comm, void* data, size_t bytes, int type, void** mr) {
  return give(mr, kMr, note("coll.reg_mr", comm, data, bytes, type));
}
int coll_reg_mr_dmabuf(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                       void** mr) {
  return give(mr, kMr, note("coll.reg_mr_dmabuf", comm, data, bytes, type, offset, fd));
}
int coll_dereg_mr(void* comm, void* mr) { return note("coll.dereg_mr", comm, mr); }
int coll_iallreduce(void* comm, const void* send, void* recv, size_t count, int type, int op,
                    void* send_mr, void* recv_mr, void** request) {
  return give(request, kRequest,
              note("coll.iallreduce", comm, send, recv, count, type, op, send_mr, recv_mr));
}
int coll_iallgather(void* comm, const void* send, int n, const CollPart* recv, size_t per_rank,
                    size_t offset, size_t bytes, void* send_mr, void** request) {
  const int status = note("coll.iallgather", comm, send, n, per_rank, offset, bytes, send_mr);
  append(recv, n);
  return give(request, kRequest, status);
}
int coll_ireducescatter(void* comm, int n, const CollPart* send, void* recv, size_t per_rank,
                        size_t offset, size_t bytes, int type, int op, void* recv_mr,
                        void** request) {
  const int status =
      note("coll.ireducescatter", comm, n, recv, per_rank, offset, bytes, type, op, recv_mr);
  append(send, n);
  return give(request, kRequest, status);
}
int coll_iflush(void* comm, void* data, int bytes, void* mr, void** request) {
  return give(request, kRequest, note("coll.iflush", comm, data, bytes, mr));
}
int coll_test(void* request, int* done, int* bytes) {
  *done = 1;
  return note("coll.test", request, bytes);
}
int coll_close_coll(void* comm) { return note("coll.close_coll", comm); }
int coll_close_listen(void* comm) { return note("coll.close_listen", comm); }

int tuner_mode(int* mode) {
  *mode = state.tuner_mode;
  return note("tuner.mode");
}

constexpr NetCalls kNet{
    net_init,   net_finalize, net_devices,       net_properties, net_listen,       net_connect,
    net_accept, net_reg_mr,   net_reg_mr_dmabuf, net_dereg_mr,   net_isend,        net_irecv,
    net_iflush, net_test,     net_close_send,    net_close_recv, net_close_listen, net_set_hint};
constexpr CollCalls kCollectives{
    coll_init,           coll_finalize,      coll_listen,   coll_connect,    coll_reduce_support,
    coll_reg_mr,         coll_reg_mr_dmabuf, coll_dereg_mr, coll_iallreduce, coll_iallgather,
    coll_ireducescatter, coll_iflush,        coll_test,     coll_close_coll, coll_close_listen};

}  // namespace
}  // namespace prunex::nccl::fake

prunex::nccl::fake::Fake* fake_state() { return &prunex::nccl::fake::state; }

const prunex::nccl::InternalTable* prunex_internal_table(uint32_t, uint32_t) {
  using namespace prunex::nccl::fake;  // NOLINT
  static prunex::nccl::InternalTable table;
  table = {state.bytes, state.version, "9.8.7",     "/fake/libprunex.so",
           kNet,        kCollectives,  {tuner_mode}};
  return state.no_table ? nullptr : &table;
}

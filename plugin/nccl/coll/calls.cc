// SPDX-License-Identifier: Apache-2.0
// NCCL's CollNet calls: arguments checked, errors said once and turned into result codes, nothing
// thrown.
#include <climits>
#include <memory>

#include "plugin/nccl/coll/comm.h"
#include "plugin/nccl/coll/connect.h"
#include "plugin/nccl/coll/types.h"
#include "plugin/nccl/coll_calls.h"
#include "plugin/nccl/net/host.h"
#include "plugin/nccl/net/object.h"
#include "plugin/nccl/status.h"

namespace prunex::nccl {
namespace coll {
namespace {

struct Memory {
  std::shared_ptr<transport::Transport> transport;  // outlives the region
  std::shared_ptr<const transport::Region> region;  // kept by calls, too
};

// What NCCL holds pointers to, by kind; never destroyed: calls may come during exit.
struct Handed {
  Living listeners, comms, memories;
};
Handed& handed() {
  static auto* const all = new Handed;
  return *all;
}

int init(void** ctx, uint64_t comm_id, Logger logger) {
  return guard("CollNet init", [&]() -> int {
    if (ctx == nullptr) {
      return invalid("CollNet init", "nowhere to put the context");
    }
    *ctx = nullptr;
    auto context = Host::instance().open(comm_id, -1, logger);
    if (!context) {
      return report(context.error());
    }
    *ctx = context->get();
    return kSuccess;
  });
}

int finalize(void* ctx) {
  return guard("CollNet finalize", [&]() -> int {
    Host::instance().close(ctx);
    return kSuccess;
  });
}

int listen_on(void* ctx, int device, void* handle, void** listen_comm) {
  return guard("CollNet listen", [&]() -> int {
    if (handle == nullptr || listen_comm == nullptr) {
      return invalid("CollNet listen", "a pointer is NULL");
    }
    *listen_comm = nullptr;
    const auto context = Host::instance().find(ctx);
    if (context == nullptr) {
      return invalid("CollNet listen", "the context is not open");
    }
    auto listener =
        listen(context, device,
               std::span<std::byte, kHandleBytes>(static_cast<std::byte*>(handle), kHandleBytes),
               HandleFor::coll);
    if (!listener) {
      return report(listener.error());
    }
    handed().listeners.add(listener->get());
    *listen_comm = listener->release();
    return kSuccess;
  });
}

int connect_all(void* const* handles, int ranks, int rank, void* listen_comm, void** coll_comm) {
  return guard("CollNet connect", [&]() -> int {
    if (handles == nullptr || coll_comm == nullptr || !handed().listeners.has(listen_comm)) {
      return invalid("CollNet connect", "a pointer is NULL, or the comm does not listen");
    }
    *coll_comm = nullptr;
    if (ranks < 1 || rank < 0 || rank >= ranks) {
      return invalid("CollNet connect", strf("rank %d of %d ranks", rank, ranks).c_str());
    }
    auto comm = connect(std::span<const void* const>(handles, static_cast<size_t>(ranks)),
                        static_cast<size_t>(rank), *static_cast<ListenComm*>(listen_comm));
    if (!comm) {
      return report(comm.error());
    }
    handed().comms.add(comm->get());
    *coll_comm = comm->release();
    return kSuccess;
  });
}

int reduce_support(int type, int op, int* supported) {
  if (supported == nullptr) {
    return invalid("CollNet reduceSupport", "nowhere to put the answer");
  }
  *supported = type_of(type) && op_of(op) ? 1 : 0;
  return kSuccess;
}

int reg_mr(void* comm, void* data, size_t bytes, int type, void** mr) {
  return guard("CollNet regMr", [&]() -> int {
    if (!handed().comms.has(comm) || mr == nullptr) {
      return invalid("CollNet regMr", "not a comm, or nowhere to put the handle");
    }
    *mr = nullptr;
    if (bytes == 0 || data == nullptr) {
      return invalid("CollNet regMr", bytes == 0
                                          ? "a buffer of 0 bytes: there is nothing to register"
                                          : "NULL data");
    }
    if (type != kPtrHost) {
      return invalid(
          "CollNet regMr",
          strf("memory of type %d: this device takes host memory (type %d)", type, kPtrHost)
              .c_str());
    }
    const auto& transport = static_cast<CollComm*>(comm)->transport();
    // NCCL looks at it only after test() has said done.
    auto region = transport->register_relaxed(data, bytes);
    if (!region) {
      return report(region.error());
    }
    auto memory = std::make_unique<Memory>(Memory{transport, *std::move(region)});
    static_cast<CollComm*>(comm)->expect(bytes);
    handed().memories.add(memory.get());
    *mr = memory.release();
    return kSuccess;
  });
}

int reg_mr_dmabuf(void*, void*, size_t, int, uint64_t, int, void** mr) {
  if (mr != nullptr) {
    *mr = nullptr;
  }
  return invalid("CollNet regMrDmaBuf", "only host memory is supported");
}

int dereg_mr(void*, void* mr) {
  if (!handed().memories.take(mr)) {
    return invalid("CollNet deregMr", "not a registered buffer");
  }
  delete static_cast<Memory*>(mr);
  return kSuccess;
}

// nullptr, which is copied on its way: not registered, or with another device's comm.
std::shared_ptr<const transport::Region> region_of(const CollComm& comm, void* mr) {
  const auto* memory = handed().memories.has(mr) ? static_cast<const Memory*>(mr) : nullptr;
  return memory != nullptr && memory->transport == comm.transport() ? memory->region : nullptr;
}

// Where a window is one part, it is moved from or to where it lies.
void* mr_of(std::span<const CollPart> parts) { return parts.size() == 1 ? parts[0].mr : nullptr; }

// What posting has in common.
template <class Post>
int post(const char* call, void* comm, void** request, Post body) {
  return guard(call, [&]() -> int {
    if (!handed().comms.has(comm) || request == nullptr) {
      return invalid(call, "not a CollNet comm, or nowhere to put the request");
    }
    *request = nullptr;
    auto& c = *static_cast<CollComm*>(comm);
    Result<Request*> posted = body(c);
    if (!posted) {
      // The communicator's own end has been told already.
      return c.dead() ? to_status(posted.error().code) : report(posted.error());
    }
    *request = *posted;
    return kSuccess;
  });
}

Result<std::pair<DType, Op>> meaning_of(const char* call, int type, int op) {
  const auto t = type_of(type);
  const auto o = op_of(op);
  if (!t || !o) {
    return fail(Code::invalid_argument,
                strf("CollNet %s: type %d with operation %d is not supported (see reduceSupport)",
                     call, type, op));
  }
  return std::pair(*t, *o);
}

Result<std::span<const CollPart>> parts_of(const char* call, int parts, const CollPart* list) {
  if (parts < 0 || (parts > 0 && list == nullptr)) {
    return fail(Code::invalid_argument, strf("CollNet %s: %d parts", call, parts));
  }
  return std::span<const CollPart>(list, static_cast<size_t>(parts));
}

int iallreduce(void* comm, const void* send, void* recv, size_t count, int type, int op,
               void* send_mr, void* recv_mr, void** request) {
  return post("CollNet iallreduce", comm, request, [&](CollComm& c) -> Result<Request*> {
    const auto meaning = meaning_of("iallreduce", type, op);
    if (!meaning) {
      return tl::unexpected(meaning.error());
    }
    return c.all_reduce({send,
                         recv,
                         count,
                         meaning->first,
                         meaning->second,
                         {region_of(c, send_mr), region_of(c, recv_mr)}});
  });
}

int iallgather(void* comm, const void* send, int parts, const CollPart* recv, size_t bytes_per_rank,
               size_t window_offset, size_t window_bytes, void* send_mr, void** request) {
  return post("CollNet iallgather", comm, request, [&](CollComm& c) -> Result<Request*> {
    const auto list = parts_of("iallgather", parts, recv);
    if (!list) {
      return tl::unexpected(list.error());
    }
    return c.all_gather(send, *list, {bytes_per_rank, window_offset, window_bytes},
                        {region_of(c, send_mr), region_of(c, mr_of(*list))});
  });
}

int ireducescatter(void* comm, int parts, const CollPart* send, void* recv, size_t bytes_per_rank,
                   size_t window_offset, size_t window_bytes, int type, int op, void* recv_mr,
                   void** request) {
  return post("CollNet ireducescatter", comm, request, [&](CollComm& c) -> Result<Request*> {
    const auto meaning = meaning_of("ireducescatter", type, op);
    if (!meaning) {
      return tl::unexpected(meaning.error());
    }
    const auto list = parts_of("ireducescatter", parts, send);
    if (!list) {
      return tl::unexpected(list.error());
    }
    return c.reduce_scatter(*list, recv, {bytes_per_rank, window_offset, window_bytes},
                            meaning->first, meaning->second,
                            {region_of(c, mr_of(*list)), region_of(c, recv_mr)});
  });
}

// What arrived in host memory is there for everybody.
int iflush(void* comm, void*, int, void*, void** request) {
  if (!handed().comms.has(comm) || request == nullptr) {
    return invalid("CollNet iflush", "not a CollNet comm, or nowhere to put the request");
  }
  *request = nullptr;
  return kSuccess;
}

int test(void* request, int* done, int* bytes) {
  return guard("CollNet test", [&]() -> int {
    if (request == nullptr || done == nullptr) {
      return invalid("CollNet test", "a pointer is NULL");
    }
    *done = 0;
    auto& r = *static_cast<Request*>(request);
    const size_t size = r.bytes;
    const auto tested = r.comm->test(r);
    if (!tested) {
      return to_status(tested.error().code);
    }
    *done = *tested ? 1 : 0;
    if (*tested && bytes != nullptr) {
      *bytes = static_cast<int>(std::min<size_t>(size, INT_MAX));
    }
    return kSuccess;
  });
}

int close_coll(void* comm) {
  return guard("CollNet closeColl", [&]() -> int {
    if (!handed().comms.take(comm)) {
      return invalid("CollNet closeColl", "not such a comm, or closed before");
    }
    delete static_cast<CollComm*>(comm);
    return kSuccess;
  });
}

int close_listen(void* listen_comm) {
  return guard("CollNet closeListen", [&]() -> int {
    if (!handed().listeners.take(listen_comm)) {
      return invalid("CollNet closeListen", "not such a comm, or closed before");
    }
    delete static_cast<ListenComm*>(listen_comm);
    return kSuccess;
  });
}

}  // namespace
}  // namespace coll

const CollCalls& coll_calls() {
  static constexpr CollCalls kCalls = {
      coll::init,           coll::finalize,   coll::listen_on,      coll::connect_all,
      coll::reduce_support, coll::reg_mr,     coll::reg_mr_dmabuf,  coll::dereg_mr,
      coll::iallreduce,     coll::iallgather, coll::ireducescatter, coll::iflush,
      coll::test,           coll::close_coll, coll::close_listen,
  };
  return kCalls;
}

bool coll_stats(void* coll_comm, coll::CollStats* out) {
  if (coll_comm == nullptr || out == nullptr) {
    return false;
  }
  *out = static_cast<const coll::CollComm*>(coll_comm)->stats();
  return true;
}

}  // namespace prunex::nccl

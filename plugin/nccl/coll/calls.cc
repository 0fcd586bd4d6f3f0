// SPDX-License-Identifier: Apache-2.0
// NCCL's CollNet calls: arguments checked, errors said once and turned into result codes, nothing
// thrown.
#include <climits>
#include <cstring>
#include <exception>
#include <mutex>
#include <unordered_set>

#include "kernels/pack.h"
#include "plugin/base/config.h"
#include "plugin/base/log.h"
#include "plugin/nccl/coll/comm.h"
#include "plugin/nccl/coll/connect.h"
#include "plugin/nccl/coll/types.h"
#include "plugin/nccl/coll_calls.h"

namespace prunex::nccl {
namespace coll {
namespace {

struct Context {
  uint64_t comm_id = 0;
};

struct Memory {  // a registration: host memory needs none
  void* data;
  size_t bytes;
};

// NCCL may give back contexts twice, or ones that it never got.
struct Contexts {
  std::mutex mutex;
  std::unordered_set<void*> live;
};
Contexts& contexts() {
  static auto* const all = new Contexts;  // never destroyed: finalize may come during exit
  return *all;
}

Status said(const Error& e) {
  PRUNEX_LOG(warn, "%s", e.text.c_str());
  return status_of(e.code);
}

Status invalid(const char* call, const char* what) {
  PRUNEX_LOG(warn, "CollNet %s: %s", call, what);
  return kInvalidArgument;
}

template <class Body>
int guarded(const char* call, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    PRUNEX_LOG(warn, "CollNet %s: out of memory", call);
    return kSystemError;
  } catch (const std::exception& e) {
    PRUNEX_LOG(warn, "CollNet %s: %s", call, e.what());
    return kInternalError;
  }
}

// Read once per process; what is wrong with it is said at every try.
const Result<LoadedConfig>& loaded_config() {
  static const auto* const loaded = new Result<LoadedConfig>([] {
    auto config = load_config(process_environment());
    if (config) {
      if (auto isa = select_isa(config->config.isa); !isa) {
        return Result<LoadedConfig>(tl::unexpected(isa.error()));
      }
      set_log_level(config->config.debug);
    }
    return config;
  }());
  return *loaded;
}

int init(void** ctx, uint64_t comm_id, Logger) {
  return guarded("init", [&]() -> Status {
    if (ctx == nullptr) {
      return invalid("init", "nowhere to put the context");
    }
    *ctx = nullptr;
    if (const auto& config = loaded_config(); !config) {
      return said(config.error());
    }
    auto context = std::make_unique<Context>();
    context->comm_id = comm_id;
    const std::lock_guard lock(contexts().mutex);
    contexts().live.insert(context.get());
    *ctx = context.release();
    return kSuccess;
  });
}

int finalize(void* ctx) {
  return guarded("finalize", [&]() -> Status {
    const std::lock_guard lock(contexts().mutex);
    if (contexts().live.erase(ctx) > 0) {
      delete static_cast<Context*>(ctx);
    }
    return kSuccess;
  });
}

int listen_on(void*, int device, void* handle, void** listen_comm) {
  return guarded("listen", [&]() -> Status {
    if (handle == nullptr || listen_comm == nullptr) {
      return invalid("listen", "a pointer is NULL");
    }
    *listen_comm = nullptr;
    const auto& config = loaded_config();  // NCCL up to 2.27 lists devices before any init
    if (!config) {
      return said(config.error());
    }
    auto listener =
        listen(device, config->config, std::span(static_cast<std::byte*>(handle), kHandleBytes));
    if (!listener) {
      return said(listener.error());
    }
    *listen_comm = listener->release();
    return kSuccess;
  });
}

int connect_all(void* const* handles, int ranks, int rank, void* listen_comm, void** coll_comm) {
  return guarded("connect", [&]() -> Status {
    if (handles == nullptr || listen_comm == nullptr || coll_comm == nullptr) {
      return invalid("connect", "a pointer is NULL");
    }
    *coll_comm = nullptr;
    if (ranks < 1 || rank < 0 || rank >= ranks) {
      return said(
          Error{Code::invalid_argument, strf("CollNet connect: rank %d of %d ranks", rank, ranks)});
    }
    auto comm = connect(std::span<const void* const>(handles, static_cast<size_t>(ranks)),
                        static_cast<size_t>(rank), *static_cast<CollListener*>(listen_comm));
    if (!comm) {
      return said(comm.error());
    }
    *coll_comm = comm->release();
    return kSuccess;
  });
}

int reduce_support(int type, int op, int* supported) {
  if (supported == nullptr) {
    return invalid("reduceSupport", "nowhere to put the answer");
  }
  *supported = type_of(type) && op_of(op) ? 1 : 0;
  return kSuccess;
}

int reg_mr(void* comm, void* data, size_t bytes, int type, void** mr) {
  return guarded("regMr", [&]() -> Status {
    if (comm == nullptr || mr == nullptr) {
      return invalid("regMr", "a pointer is NULL");
    }
    *mr = nullptr;
    if (bytes == 0) {
      return invalid("regMr", "a buffer of 0 bytes: there is nothing to register");
    }
    if (type != kPtrHost) {
      return said(Error{Code::invalid_argument,
                        strf("CollNet regMr: memory of type %d; only host memory (%d) is supported",
                             type, kPtrHost)});
    }
    *mr = new Memory{data, bytes};
    return kSuccess;
  });
}

int reg_mr_dmabuf(void*, void*, size_t, int, uint64_t, int, void** mr) {
  if (mr != nullptr) {
    *mr = nullptr;
  }
  return invalid("regMrDmaBuf", "only host memory is supported");
}

int dereg_mr(void*, void* mr) {
  if (mr == nullptr) {
    return invalid("deregMr", "not a registered buffer");
  }
  delete static_cast<Memory*>(mr);
  return kSuccess;
}

// What posting has in common.
template <class Post>
int post(const char* call, void* comm, void** request, Post body) {
  return guarded(call, [&]() -> Status {
    if (comm == nullptr || request == nullptr) {
      return invalid(call, "a pointer is NULL");
    }
    *request = nullptr;
    auto& c = *static_cast<CollComm*>(comm);
    Result<Request*> posted = body(c);
    if (!posted) {
      // The communicator's own end has been told already.
      return c.dead() ? status_of(posted.error().code) : said(posted.error());
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

int iallreduce(void* comm, const void* send, void* recv, size_t count, int type, int op, void*,
               void*, void** request) {
  return post("iallreduce", comm, request, [&](CollComm& c) -> Result<Request*> {
    const auto meaning = meaning_of("iallreduce", type, op);
    if (!meaning) {
      return tl::unexpected(meaning.error());
    }
    return c.all_reduce({send, recv, count, meaning->first, meaning->second});
  });
}

int iallgather(void* comm, const void* send, int parts, const CollPart* recv, size_t bytes_per_rank,
               size_t window_offset, size_t window_bytes, void*, void** request) {
  return post("iallgather", comm, request, [&](CollComm& c) -> Result<Request*> {
    const auto list = parts_of("iallgather", parts, recv);
    if (!list) {
      return tl::unexpected(list.error());
    }
    return c.all_gather(send, *list, {bytes_per_rank, window_offset, window_bytes});
  });
}

int ireducescatter(void* comm, int parts, const CollPart* send, void* recv, size_t bytes_per_rank,
                   size_t window_offset, size_t window_bytes, int type, int op, void*,
                   void** request) {
  return post("ireducescatter", comm, request, [&](CollComm& c) -> Result<Request*> {
    const auto meaning = meaning_of("ireducescatter", type, op);
    if (!meaning) {
      return tl::unexpected(meaning.error());
    }
    const auto list = parts_of("ireducescatter", parts, send);
    if (!list) {
      return tl::unexpected(list.error());
    }
    return c.reduce_scatter(*list, recv, {bytes_per_rank, window_offset, window_bytes},
                            meaning->first, meaning->second);
  });
}

// What arrived in host memory is there for everybody.
int iflush(void* comm, void*, int, void*, void** request) {
  if (comm == nullptr || request == nullptr) {
    return invalid("iflush", "a pointer is NULL");
  }
  *request = nullptr;
  return kSuccess;
}

int test(void* request, int* done, int* bytes) {
  return guarded("test", [&]() -> Status {
    if (request == nullptr || done == nullptr) {
      return invalid("test", "a pointer is NULL");
    }
    *done = 0;
    auto& r = *static_cast<Request*>(request);
    const size_t size = r.bytes;
    const auto tested = r.comm->test(r);
    if (!tested) {
      return status_of(tested.error().code);
    }
    *done = *tested ? 1 : 0;
    if (*tested && bytes != nullptr) {
      *bytes = static_cast<int>(std::min<size_t>(size, INT_MAX));
    }
    return kSuccess;
  });
}

int close_coll(void* comm) {
  return guarded("closeColl", [&]() -> Status {
    delete static_cast<CollComm*>(comm);
    return kSuccess;
  });
}

int close_listen(void* listen_comm) {
  return guarded("closeListen", [&]() -> Status {
    delete static_cast<CollListener*>(listen_comm);
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

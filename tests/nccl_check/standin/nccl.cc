// SPDX-License-Identifier: Apache-2.0
// A stand-in for libnccl.so.2 between processes. Two of them move sums through the network plugin
// which NCCL_NET_PLUGIN names, as NCCL does: from buffers of its own, or from registered ones where
// the plugin takes device memory; by CollNet where NCCL_ALGO says so. Without a plugin ("none") any
// number of them share memory, and the other collectives are there, too. Device memory is the CUDA
// stand-in's. A call is over when it returns.
//
// STANDIN_FAULT=KIND[:FILE] does something wrong, where NCCL_DEBUG_FILE is FILE or everywhere:
// hang, crash, wrong (a sum), fallback (no plugin), no-coll (Net instead of CollNet), staged
// (registered buffers are not used).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "plugin/device/nccl_library.h"
#include "tests/nccl/host/failure.h"
#include "tests/nccl/host/logger.h"
#include "tests/nccl/host/world.h"
#include "tests/nccl_check/standin/plugin.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace prunex::nccl::host;
using namespace prunex::nccl::host::standin;
using prunex::device::nccl::UniqueId;
namespace abi = prunex::nccl::abi;

constexpr int kInternalError = 3, kInvalidUsage = 5;

struct Shared {
  Board board;
  std::byte chunk[kMaxRanks][kChunk];
};

class Comm {
 public:
  Comm(const UniqueId& id, int rank, int size) {
    const int fd = ::open(id.bytes, O_RDWR | O_CLOEXEC);
    void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    PRUNEX_MUST(fd >= 0 && memory != MAP_FAILED && size <= kMaxRanks, "%s", id.bytes);
    ::close(fd);
    shared_ = static_cast<Shared*>(memory);
    rank_ = std::make_unique<Rank>(shared_->board, rank, size);
    if (!fault("fallback") && variable("NCCL_NET_PLUGIN") != "none") {
      PRUNEX_MUST(size == 2);
      plugin_ = std::make_unique<Plugin>(*rank_);
    }
  }
  ~Comm() { ::munmap(shared_, sizeof(Shared)); }

  void use(void* data, size_t bytes) {
    if (plugin_ != nullptr) {
      plugin_->use(data, bytes);
    }
  }

  void all_reduce(const std::byte* send, std::byte* recv, size_t bytes, int type) {
    for (size_t at = 0; at < bytes; at += kChunk) {
      const size_t some = std::min(kChunk, bytes - at);
      if (plugin_ != nullptr) {
        plugin_->sum(send, recv, at, some);
      } else {
        share(send + at, some);
        sum(recv + at, some, type);
        rank_->barrier();
      }
    }
    if (fault("wrong")) {
      reinterpret_cast<float*>(recv)[7] += 1.0f;
    }
  }

  // Only through shared memory. A part is what one rank has of it, of `bytes`.
  void reduce(const std::byte* send, std::byte* recv, size_t bytes, int type, int root) {
    for (size_t at = 0; at < bytes; at += kChunk) {
      const size_t some = std::min(kChunk, bytes - at);
      share(send + at, some);
      if (rank_->rank() == root) {
        sum(recv + at, some, type);
      }
      rank_->barrier();
    }
  }
  void reduce_scatter(const std::byte* send, std::byte* recv, size_t bytes, int type) {
    for (int part = 0; part < rank_->size(); ++part) {
      reduce(send + static_cast<size_t>(part) * bytes, recv, bytes, type, part);
    }
  }
  void broadcast(const std::byte* send, std::byte* recv, size_t bytes, int root) {
    for (size_t at = 0; at < bytes; at += kChunk) {
      const size_t some = std::min(kChunk, bytes - at);
      share(rank_->rank() == root ? send + at : recv + at, some);
      std::memcpy(recv + at, shared_->chunk[root], some);
      rank_->barrier();
    }
  }
  void all_gather(const std::byte* send, std::byte* recv, size_t bytes) {
    for (int part = 0; part < rank_->size(); ++part) {
      broadcast(send, recv + static_cast<size_t>(part) * bytes, bytes, part);
    }
  }

  void close() {
    rank_->barrier();
    if (plugin_ != nullptr) {
      plugin_->close();
    }
  }

 private:
  void share(const std::byte* from, size_t bytes) {
    std::memcpy(shared_->chunk[rank_->rank()], from, bytes);
    rank_->barrier();
  }
  void sum(std::byte* to, size_t bytes, int type) {
    std::memcpy(to, shared_->chunk[0], bytes);
    for (int r = 1; r < rank_->size(); ++r) {
      add(to, to, shared_->chunk[r], bytes, type);
    }
  }

  Shared* shared_ = nullptr;
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<Plugin> plugin_;
};

template <class Body>
int guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "stand-in for NCCL: %s\n", e.what());
    for (const LogLine& line : log_lines(abi::kLogWarn)) {
      std::fprintf(stderr, "plugin: %s\n", line.text.c_str());
    }
    return kInternalError;
  }
}

}  // namespace

EXPORT int ncclGetVersion(int* version) {
  *version = 22900;
  return 0;
}
EXPORT int ncclGetUniqueId(UniqueId* id) {
  const int fd = ::memfd_create("standin", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, sizeof(Shared)) != 0) {
    return kInternalError;
  }
  std::memset(id->bytes, 0, sizeof id->bytes);
  std::snprintf(id->bytes, sizeof id->bytes, "/proc/%d/fd/%d", ::getpid(), fd);
  return 0;
}
EXPORT int ncclCommInitRank(void** comm, int size, UniqueId id, int rank) {
  return guarded([&] { *comm = new Comm(id, rank, size); });
}

namespace {

constexpr size_t bytes_of(size_t count, int type) { return count * (type == kUint64 ? 8 : 4); }

template <class Body>
int collective(int type, int op, void* comm, void* stream, const Body& body) {
  if ((type != kFloat && type != kUint64) || op != 0) {
    std::fprintf(stderr, "stand-in for NCCL: type %d, operation %d\n", type, op);
    return kInvalidUsage;
  }
  if (fault("hang")) {
    ::pause();
  }
  if (fault("crash")) {
    std::abort();
  }
  return guarded([&] {
    PRUNEX_MUST(cuda().stream_synchronize(stream) == 0);
    body(*static_cast<Comm*>(comm));
  });
}
const std::byte* from(const void* p) { return static_cast<const std::byte*>(p); }
std::byte* to(void* p) { return static_cast<std::byte*>(p); }

}  // namespace

EXPORT int ncclAllReduce(const void* send, void* recv, size_t count, int type, int op, void* comm,
                         void* stream) {
  return collective(type, op, comm, stream, [&](Comm& c) {
    c.all_reduce(from(send), to(recv), bytes_of(count, type), type);
  });
}
EXPORT int ncclReduce(const void* send, void* recv, size_t count, int type, int op, int root,
                      void* comm, void* stream) {
  return collective(type, op, comm, stream, [&](Comm& c) {
    c.reduce(from(send), to(recv), bytes_of(count, type), type, root);
  });
}
EXPORT int ncclReduceScatter(const void* send, void* recv, size_t count, int type, int op,
                             void* comm, void* stream) {
  return collective(type, op, comm, stream, [&](Comm& c) {
    c.reduce_scatter(from(send), to(recv), bytes_of(count, type), type);
  });
}
EXPORT int ncclAllGather(const void* send, void* recv, size_t count, int type, void* comm,
                         void* stream) {
  return collective(type, 0, comm, stream,
                    [&](Comm& c) { c.all_gather(from(send), to(recv), bytes_of(count, type)); });
}
EXPORT int ncclBroadcast(const void* send, void* recv, size_t count, int type, int root, void* comm,
                         void* stream) {
  return collective(type, 0, comm, stream, [&](Comm& c) {
    c.broadcast(from(send), to(recv), bytes_of(count, type), root);
  });
}
EXPORT int ncclCommRegister(void* comm, void* data, size_t bytes, void** handle) {
  *handle = data;
  return guarded([&] { static_cast<Comm*>(comm)->use(data, bytes); });
}
EXPORT int ncclMemAlloc(void** out, size_t bytes) { return cuda().allocate(out, bytes); }
EXPORT int ncclCommDestroy(void* comm) {
  return guarded([&] {
    static_cast<Comm*>(comm)->close();
    delete static_cast<Comm*>(comm);
  });
}
EXPORT int ncclCommAbort(void*) { return 0; }
EXPORT int ncclCommGetAsyncError(void*, int* error) {
  *error = 0;
  return 0;
}
EXPORT const char* ncclGetErrorString(int) { return "an error of the stand-in"; }

EXPORT int ncclGroupStart() { return 0; }
EXPORT int ncclGroupEnd() { return 0; }

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
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "kernels/cuda/table.h"
#include "plugin/device/nccl_library.h"
#include "tests/nccl/host/failure.h"
#include "tests/nccl/host/logger.h"
#include "tests/nccl/host/world.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace prunex::nccl::host;
using prunex::device::nccl::UniqueId;
namespace abi = prunex::nccl::abi;
using prunex::nccl::kPtrCuda;
using prunex::nccl::kPtrHost;
using prunex::nccl::kSuccess;

constexpr int kInternalError = 3, kInvalidUsage = 5, kVersion = 12, kFloat = 7, kUint64 = 5;
constexpr size_t kChunk = size_t{1} << 20;

struct Shared {
  Board board;
  std::byte chunk[kMaxRanks][kChunk];
};

const prunex::cuda::Table& cuda() {
  static const prunex::cuda::Table* const table = [] {
    void* const library = ::dlopen("libprunex-cuda.so", RTLD_NOW);
    const auto entry = reinterpret_cast<decltype(&prunex_cuda_table)>(
        library != nullptr ? ::dlsym(library, "prunex_cuda_table") : nullptr);
    PRUNEX_MUST(entry != nullptr, "no stand-in for CUDA");
    return entry(sizeof(prunex::cuda::Table), prunex::cuda::kTableVersion);
  }();
  return *table;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool fault(const char* kind) {
  const std::string wanted = variable("STANDIN_FAULT"), file = variable("NCCL_DEBUG_FILE");
  const size_t colon = wanted.find(':');
  return wanted.substr(0, colon) == kind &&
         (colon == std::string::npos ||
          std::string_view(file).ends_with(std::string_view(wanted).substr(colon + 1)));
}

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
      open();
    }
  }
  ~Comm() { ::munmap(shared_, sizeof(Shared)); }

  void use(void* data, size_t bytes) {
    void *send = nullptr, *recv = nullptr;
    if (takes_device_ && !fault("staged")) {
      PRUNEX_MUST(net_->reg_mr(send_, data, bytes, kPtrCuda, &send) == kSuccess);
      PRUNEX_MUST(net_->reg_mr(recv_, data, bytes, kPtrCuda, &recv) == kSuccess);
      registered_[data] = {send, recv};
    }
  }

  void all_reduce(const std::byte* send, std::byte* recv, size_t bytes, int type) {
    for (size_t at = 0; at < bytes; at += kChunk) {
      const size_t some = std::min(kChunk, bytes - at);
      if (net_ == nullptr) {
        share(send + at, some);
        sum(recv + at, some, type);
        rank_->barrier();
      } else if (coll_ != nullptr) {
        by_coll(send + at, recv + at, some);
      } else {
        by_net(send, recv, at, some);
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
    if (net_ == nullptr) {
      return;
    }
    for (const auto& [data, mrs] : registered_) {
      PRUNEX_MUST(net_->dereg_mr(send_, mrs.first) == kSuccess);
      PRUNEX_MUST(net_->dereg_mr(recv_, mrs.second) == kSuccess);
    }
    PRUNEX_MUST(net_->dereg_mr(send_, out_mr_) == kSuccess);
    PRUNEX_MUST(net_->dereg_mr(recv_, in_mr_) == kSuccess);
    if (coll_ != nullptr) {
      PRUNEX_MUST(coll_->dereg_mr(chain_, chain_out_mr_) == kSuccess);
      PRUNEX_MUST(coll_->dereg_mr(chain_, chain_in_mr_) == kSuccess);
      PRUNEX_MUST(coll_->close_coll(chain_) == kSuccess && coll_->finalize() == kSuccess);
    }
    PRUNEX_MUST(net_->close_send(send_) == kSuccess && net_->close_recv(recv_) == kSuccess);
    PRUNEX_MUST(net_->finalize() == kSuccess);
  }

 private:
  void open() {
    void* const library = load_plugin("libnccl-net-" + variable("NCCL_NET_PLUGIN") + ".so");
    net_ = open_net(library, kVersion);
    PRUNEX_MUST(net_->init(1, abi::kTrafficClassUnset, log_from_plugin) == kSuccess);
    Properties properties;
    PRUNEX_MUST(net_->properties(0, &properties) == kSuccess);
    takes_device_ = (properties.ptr_support & kPtrCuda) != 0;
    Handle mine{}, theirs{};
    void* listening = nullptr;
    const int peer = 1 - rank_->rank();
    PRUNEX_MUST(net_->listen(0, mine, &listening) == kSuccess);
    rank_->post(peer, 0, mine);
    rank_->take(peer, 0, theirs);
    wait_for("connections", [&] {
      PRUNEX_MUST(send_ != nullptr || net_->connect(0, theirs, &send_) == kSuccess);
      PRUNEX_MUST(recv_ != nullptr || net_->accept(listening, &recv_) == kSuccess);
      return send_ != nullptr && recv_ != nullptr;
    });
    PRUNEX_MUST(net_->close_listen(listening) == kSuccess);
    void *out = nullptr, *in = nullptr;
    PRUNEX_MUST(cuda().allocate(&out, kChunk) == 0 && cuda().allocate(&in, kChunk) == 0);
    out_ = static_cast<std::byte*>(out);
    in_ = static_cast<std::byte*>(in);
    const int kind = takes_device_ ? kPtrCuda : kPtrHost;
    PRUNEX_MUST(net_->reg_mr(send_, out_, kChunk, kind, &out_mr_) == kSuccess);
    PRUNEX_MUST(net_->reg_mr(recv_, in_, kChunk, kind, &in_mr_) == kSuccess);
    if (variable("NCCL_ALGO") == "CollNetChain" && !fault("no-coll")) {
      open_chain(library);
    }
  }

  void open_chain(void* library) {
    coll_ = open_coll(library, kVersion);
    PRUNEX_MUST(coll_->init(1, log_from_plugin) == kSuccess);
    Handle handles[2]{};
    void* listening = nullptr;
    const int self = rank_->rank();
    PRUNEX_MUST(coll_->listen(0, handles[self], &listening) == kSuccess);
    rank_->post(1 - self, 1, handles[self]);
    rank_->take(1 - self, 1, handles[1 - self]);
    void* both[2] = {handles[0], handles[1]};
    PRUNEX_MUST(coll_->connect(both, 2, self, listening, &chain_) == kSuccess);
    PRUNEX_MUST(coll_->close_listen(listening) == kSuccess);
    chain_out_.resize(kChunk);
    chain_in_.resize(kChunk);
    const auto use = [&](std::vector<std::byte>& memory, void** mr) {
      PRUNEX_MUST(coll_->reg_mr(chain_, memory.data(), kChunk, kPtrHost, mr) == kSuccess);
    };
    use(chain_out_, &chain_out_mr_);
    use(chain_in_, &chain_in_mr_);
  }

  template <class T>
  static void add_as(std::byte* to, const std::byte* a, const std::byte* b, size_t bytes) {
    for (size_t i = 0; i < bytes; i += sizeof(T)) {
      T x{}, y{};
      std::memcpy(&x, a + i, sizeof x);
      std::memcpy(&y, b + i, sizeof y);
      x += y;
      std::memcpy(to + i, &x, sizeof x);
    }
  }
  static void add(std::byte* to, const std::byte* a, const std::byte* b, size_t bytes,
                  int type = kFloat) {
    type == kUint64 ? add_as<uint64_t>(to, a, b, bytes) : add_as<float>(to, a, b, bytes);
  }
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

  void by_net(const std::byte* send, std::byte* recv, size_t at, size_t bytes) {
    const auto mine = registered_.find(send);
    const auto target = registered_.find(recv);
    const bool direct = mine != registered_.end() && target != registered_.end();
    auto* const from = const_cast<std::byte*>(send) + at;
    std::byte* const result = recv + at;
    if (!direct) {
      std::memcpy(out_, from, bytes);
    }
    std::byte* const out = direct ? from : out_;
    std::byte* const in = direct ? result : in_;
    move(out, in, bytes, direct ? mine->second.first : out_mr_,
         direct ? target->second.second : in_mr_);
    add(result, from, in, bytes);
  }

  void move(std::byte* out, std::byte* in, size_t bytes, void* out_mr, void* in_mr) {
    void *sending = nullptr, *receiving = nullptr, *data = in;
    size_t size = bytes;
    int tag = 0, sent = 0, received = 0, got = 0;
    wait_for("a message", [&] {
      if (sending == nullptr) {
        PRUNEX_MUST(net_->isend(send_, out, bytes, 0, out_mr, &sending) == kSuccess);
      }
      if (receiving == nullptr) {
        PRUNEX_MUST(net_->irecv(recv_, 1, &data, &size, &tag, &in_mr, false, &receiving) ==
                    kSuccess);
      }
      if (sending != nullptr && sent == 0) {
        PRUNEX_MUST(net_->test(sending, &sent, nullptr) == kSuccess);
      }
      if (receiving != nullptr && received == 0) {
        PRUNEX_MUST(net_->test(receiving, &received, &got) == kSuccess);
      }
      return sent != 0 && received != 0;
    });
    PRUNEX_MUST(static_cast<size_t>(got) == bytes, "%d bytes came", got);
  }

  void by_coll(const std::byte* from, std::byte* to, size_t bytes) {
    std::memcpy(chain_out_.data(), from, bytes);
    void* request = nullptr;
    int done = 0, size = 0;
    wait_for("a collective", [&] {
      if (request == nullptr) {
        PRUNEX_MUST(coll_->iallreduce(chain_, chain_out_.data(), chain_in_.data(), bytes / 4,
                                      static_cast<abi::DataType>(kFloat),
                                      static_cast<abi::RedOp>(0), chain_out_mr_, chain_in_mr_,
                                      &request) == kSuccess);
      }
      if (request != nullptr) {
        PRUNEX_MUST(coll_->test(request, &done, &size) == kSuccess);
      }
      return done != 0;
    });
    std::memcpy(to, chain_in_.data(), bytes);
  }

  Shared* shared_ = nullptr;
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<HostNet> net_;
  std::unique_ptr<HostColl> coll_;
  bool takes_device_ = false;
  void *send_ = nullptr, *recv_ = nullptr, *out_mr_ = nullptr, *in_mr_ = nullptr;
  void *chain_ = nullptr, *chain_out_mr_ = nullptr, *chain_in_mr_ = nullptr;
  std::byte *out_ = nullptr, *in_ = nullptr;
  std::vector<std::byte> chain_out_, chain_in_;
  std::map<const void*, std::pair<void*, void*>> registered_;
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

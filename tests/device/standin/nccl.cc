// SPDX-License-Identifier: Apache-2.0
// A stand-in for libnccl.so.2 over host memory: NCCL's functions among the threads of one process.
// Communicators made with a configuration do not block, as with NCCL.
#include "tests/device/standin/nccl.h"

#include <cstdio>
#include <cstring>
#include <functional>

#include "tests/device/fake_stream.h"
#include "tests/device/standin/clique.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace prunex::test::standin;
using prunex::device::nccl::Config;
using prunex::device::nccl::UniqueId;

constexpr int kInvalidArgument = 4;
constexpr int kInProgress = prunex::device::nccl::kInProgress;

struct Pending {
  MemberPtr member;
  Work work;
  void* stream;
  int async;
};

std::mutex registry_mutex;
std::map<std::string, std::shared_ptr<Clique>> registry;
std::atomic<uint64_t> next_id{1};
std::atomic<int> live{0};

thread_local int depth = 0;
thread_local std::vector<Pending> pending;
thread_local std::string fail_function;
thread_local int fail_in = -1, fail_code = 0, async_code = 0;
thread_local std::vector<std::string>* call_log = nullptr;

// 0, or what the test wants the function to return.
int entered(const char* function) {
  if (fail_in < 0 || fail_function != function || fail_in-- > 0) {
    return 0;
  }
  return fail_code;
}

void launch(const Pending& p) {
  prunex::test::enqueue_on(p.stream, [p] {
    if (p.async != 0) {
      p.member->error = p.async;
      p.member->aborted = true;  // it takes part in nothing any more
      return;
    }
    if (const int error = meet(p.member, p.work); error != 0) {
      p.member->error = error;
    }
  });
}

int collective(const char* function, void* comm, const Work& work, void* stream) {
  if (const int code = entered(function); code != 0) {
    return code;
  }
  if (comm == nullptr) {
    return kInvalidArgument;
  }
  if (call_log != nullptr) {
    call_log->push_back(std::string(function) + " " + std::to_string(work.count));
  }
  pending.push_back({*static_cast<MemberPtr*>(comm), work, stream, async_code});
  async_code = 0;
  if (depth == 0) {
    launch(pending.back());
    pending.clear();
  }
  return 0;
}

void* handle_of(MemberPtr member) {
  ++live;
  return new MemberPtr(std::move(member));
}

MemberPtr join(int size, const UniqueId& id, int rank) {
  const std::lock_guard lock(registry_mutex);
  auto& clique = registry[std::string(id.bytes, sizeof id.bytes)];
  if (clique == nullptr) {
    clique = std::make_shared<Clique>(size);
  }
  auto member = std::make_shared<Member>();
  member->clique = clique;
  member->rank = rank;
  const std::lock_guard inner(clique->mutex);
  ++clique->joined;
  clique->changed.notify_all();
  return member;
}

}  // namespace

EXPORT void standin_fail(const char* function, int nth, int code) {
  fail_function = function;
  fail_in = nth;
  fail_code = code;
}
EXPORT void standin_fail_async(int code) { async_code = code; }
EXPORT void standin_log(std::vector<std::string>* log) { call_log = log; }
EXPORT int standin_live() { return live; }

EXPORT int ncclGetVersion(int* version) {
  *version = 22700;
  return 0;
}

EXPORT int ncclGetUniqueId(UniqueId* id) {
  if (const int code = entered("GetUniqueId"); code != 0) {
    return code;
  }
  std::memset(id->bytes, 0, sizeof id->bytes);
  std::snprintf(id->bytes, sizeof id->bytes, "standin %llu",
                static_cast<unsigned long long>(next_id++));
  return 0;
}

EXPORT int ncclCommInitRankConfig(void** comm, int size, UniqueId id, int rank, Config* config) {
  if (const int code = entered("CommInitRankConfig"); code != 0) {
    return code;
  }
  if (config->magic != 0xcafebeef || config->blocking != 0) {
    return kInvalidArgument;
  }
  *comm = handle_of(join(size, id, rank));
  return kInProgress;
}

EXPORT int ncclCommInitRank(void** comm, int size, UniqueId id, int rank) {
  if (const int code = entered("CommInitRank"); code != 0) {
    return code;
  }
  MemberPtr member = join(size, id, rank);
  std::unique_lock lock(member->clique->mutex);
  member->clique->changed.wait(lock, [&] { return member->clique->joined == size; });
  lock.unlock();
  *comm = handle_of(std::move(member));
  return 0;
}

EXPORT int ncclCommSplit(void* comm, int color, int key, void** out, Config*) {
  if (const int code = entered("CommSplit"); code != 0) {
    return code;
  }
  MemberPtr child = split(*static_cast<MemberPtr*>(comm), color, key);
  *out = child != nullptr ? handle_of(std::move(child)) : nullptr;
  return kInProgress;
}

EXPORT int ncclCommGetAsyncError(void* comm, int* error) {
  const MemberPtr& member = *static_cast<MemberPtr*>(comm);
  const std::lock_guard splits(split_mutex());
  if (member->clique == nullptr || member->splitting) {
    *error = kInProgress;
    return 0;
  }
  const std::lock_guard lock(member->clique->mutex);
  *error = member->error;
  if (*error == 0 && member->clique->joined < member->clique->size) {
    *error = kInProgress;
  }
  return 0;
}

EXPORT int ncclCommAbort(void* comm) {
  auto* handle = static_cast<MemberPtr*>(comm);
  const std::lock_guard splits(split_mutex());
  if ((*handle)->clique != nullptr) {
    const std::lock_guard lock((*handle)->clique->mutex);
    (*handle)->aborted = true;
    (*handle)->clique->changed.notify_all();
  }
  delete handle;
  --live;
  return 0;
}

EXPORT int ncclCommDestroy(void* comm) {
  delete static_cast<MemberPtr*>(comm);
  --live;
  return 0;
}

EXPORT const char* ncclGetErrorString(int error) {
  return error == 6 ? "remote process exited or there was a network error" : "stand-in error";
}
EXPORT const char* ncclGetLastError(void*) { return "as the test wanted it"; }

EXPORT int ncclGroupStart() {
  ++depth;
  return 0;
}

EXPORT int ncclGroupEnd() {
  if (--depth > 0) {
    return 0;
  }
  std::vector<Pending> all;
  all.swap(pending);
  for (const Pending& p : all) {
    launch(p);
  }
  return entered("GroupEnd");
}

EXPORT int ncclAllReduce(const void* send, void* recv, size_t count, int type, int op, void* comm,
                         void* stream) {
  return collective("AllReduce", comm, {Verb::all_reduce, send, recv, count, type, op, 0}, stream);
}
EXPORT int ncclReduce(const void* send, void* recv, size_t count, int type, int op, int root,
                      void* comm, void* stream) {
  return collective("Reduce", comm, {Verb::reduce, send, recv, count, type, op, root}, stream);
}
EXPORT int ncclReduceScatter(const void* send, void* recv, size_t count, int type, int op,
                             void* comm, void* stream) {
  return collective("ReduceScatter", comm, {Verb::reduce_scatter, send, recv, count, type, op, 0},
                    stream);
}
EXPORT int ncclAllGather(const void* send, void* recv, size_t count, int type, void* comm,
                         void* stream) {
  return collective("AllGather", comm, {Verb::all_gather, send, recv, count, type, 0, 0}, stream);
}
EXPORT int ncclBroadcast(const void* send, void* recv, size_t count, int type, int root, void* comm,
                         void* stream) {
  return collective("Broadcast", comm, {Verb::broadcast, send, recv, count, type, 0, root}, stream);
}

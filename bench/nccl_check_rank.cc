// SPDX-License-Identifier: Apache-2.0
// One rank of a case: NCCL over the plugin, on the first GPU.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/nccl_check_gpu.h"
#include "plugin/device/nccl_library.h"
#include "prunex/prunex.h"

namespace prunex::check {
namespace {

constexpr int kFloat32 = 7;

class Rank {
 public:
  Rank(const Places& places, const Case& one, int rank) : case_(one), rank_(rank), gpu_(places) {
    auto api = device::open_nccl();
    if (!api) {
      give_up("NCCL", api.error().text);
    }
    nccl_ = *api;
  }

  void connect(int id_from, int id_to) {
    device::nccl::UniqueId id{};
    if (rank_ == 0) {
      nccl("ncclGetUniqueId", nccl_.GetUniqueId(&id));
      if (::write(id_to, &id, sizeof id) != static_cast<ssize_t>(sizeof id)) {
        give_up("identity", "cannot be handed over");
      }
    } else if (::read(id_from, &id, sizeof id) != static_cast<ssize_t>(sizeof id)) {
      give_up("identity", "did not come");
    }
    nccl("ncclCommInitRank", nccl_.CommInitRank(&comm_, kRanks, id, rank_));
  }

  void run() {
    float *send = allocate(), *recv = allocate();
    if (case_.registered) {
      enlist(send);
      enlist(recv);
    }
    if (case_.masked) {
      gpu_.publish(send, PRUNEX_LOSSLESS);
      gpu_.publish(recv, PRUNEX_LOSSLESS);
    }
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> values = values_of(case_.masked, rank_, round);
      gpu_.copy(send, values.data());
      gpu_.fill(recv);
      nccl("ncclAllReduce",
           nccl_.AllReduce(send, recv, kCount, kFloat32, device::nccl::kSum, comm_, gpu_.stream()));
      gpu_.copy(values.data(), recv);
      for (size_t i = 0; i < kCount; ++i) {
        const float expected =
            value_of(case_.masked, 0, round, i) + value_of(case_.masked, 1, round, i);
        if (!(values[i] == expected)) {
          give_up("wrong sum", strf("round %d, element %zu: %g, expected %g", round, i,
                                    static_cast<double>(values[i]), static_cast<double>(expected)));
        }
      }
    }
    nccl("ncclCommDestroy", nccl_.CommDestroy(comm_));
  }

 private:
  void nccl(const char* what, int result) const {
    if (result != 0) {
      give_up(what, nccl_.GetErrorString(result));
    }
  }
  template <class F>
  static F newer(const char* name) {
    void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    const auto f = library == nullptr ? nullptr : reinterpret_cast<F>(::dlsym(library, name));
    if (f == nullptr) {
      give_up(name, "this NCCL has no such function");
    }
    return f;
  }
  [[nodiscard]] float* allocate() const {
    if (!case_.registered) {
      return gpu_.allocate();
    }
    void* p = nullptr;
    nccl("ncclMemAlloc", newer<int (*)(void**, size_t)>("ncclMemAlloc")(&p, kBytes));
    return static_cast<float*>(p);
  }

  void enlist(float* p) const {
    void* handle = nullptr;
    nccl("ncclCommRegister", newer<int (*)(void*, void*, size_t, void**)>("ncclCommRegister")(
                                 comm_, p, kCount * sizeof(float), &handle));
  }
  const Case& case_;
  const int rank_;
  const Gpu gpu_;
  device::NcclApi nccl_;
  device::nccl::Comm comm_ = nullptr;
};

void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

void set_environment(const Places& places, const Case& one, int rank) {
  set("NCCL_HOSTID", strf("prunex-check-%d", rank));
  set("NCCL_NET_PLUGIN", "prunex");
  set("NCCL_PROTO", "Simple");
  set("NCCL_ALGO", one.collnet ? "CollNetChain" : "Ring");
  set("NCCL_COLLNET_ENABLE", one.collnet ? "1" : "0");
  set("NCCL_COLLNET_NODE_THRESHOLD", "2");
  set("NCCL_SOCKET_IFNAME", "lo");
  set("NCCL_MIN_NCHANNELS", "1");  // both processes' blocks have to run beside each other
  set("NCCL_MAX_NCHANNELS", "2");
  set("NCCL_MAX_CTAS", "2");
  set("NCCL_DEBUG", "INFO");
  set("NCCL_DEBUG_FILE", file_of(places, one, rank, "log"));
  set("PRUNEX_NET_MODE", "compact");
  set("PRUNEX_TRANSPORT", "socket");  // whatever RDMA devices the machine has
  set("PRUNEX_METRICS_FILE", file_of(places, one, rank, "prom"));
  if (one.staged) {
    set("PRUNEX_STAGED_GPU", "1");
    set("NCCL_NET_GDR_LEVEL", "SYS");
  }
}

// Where NCCL closes its connections on a thread of its own, the last numbers come a little later.
void await_counts(const Places& places, const Case& one, int rank) {
  constexpr int kTries = 110;  // the file is written anew every ten seconds
  for (int i = 0; i < kTries; ++i) {
    const Counts c = read_counts(file_of(places, one, rank, "prom"));
    if (fault_of(one, c).empty()) {
      return;
    }
    ::usleep(100'000);
  }
}

}  // namespace

void be_rank(const Places& places, const Case& one, int rank, const int* pipe, double seconds) {
  if (one.device_ranks > 0) {
    be_device_rank(places, one, rank, pipe, seconds);
  }
  set_environment(places, one, rank);
  Rank me(places, one, rank);
  me.connect(pipe[0], pipe[1]);
  me.run();
  await_counts(places, one, rank);
  ::_exit(0);
}

std::string missing_here(const Places& places) {
  std::string why;
  const cuda::Table* const table = open_table(places.cuda, &why);
  cuda::Probe probe;
  if (table != nullptr && (table->probe(&probe) != 0 || probe.devices == 0)) {
    why = strf("no GPU: %s", table->error_text(probe.status));
  }
  if (why.empty()) {
    auto api = device::open_nccl();
    why = api ? "" : api.error().text;
  }
  return why;
}

}  // namespace prunex::check

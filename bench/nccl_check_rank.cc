// SPDX-License-Identifier: Apache-2.0
// One rank of a case: NCCL over the plugin, on the first GPU.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/nccl_check.h"
#include "kernels/cuda/table.h"
#include "plugin/device/nccl_library.h"
#include "prunex/prunex.h"

namespace prunex::check {
namespace {

constexpr int kFloat32 = 7;

[[noreturn]] void give_up(const char* what, const std::string& why) {
  std::printf("%s: %s\n", what, why.c_str());
  std::fflush(stdout);
  ::_exit(1);
}

const cuda::Table* open_table(const std::string& file, std::string* why) {
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *why = ::dlerror();
    return nullptr;
  }
  const auto entry =
      reinterpret_cast<decltype(&prunex_cuda_table)>(::dlsym(library, "prunex_cuda_table"));
  const cuda::Table* const table =
      entry == nullptr ? nullptr : entry(sizeof(cuda::Table), cuda::kTableVersion);
  if (table == nullptr) {
    *why = file + " has no table that fits";
  }
  return table;
}

class Rank {
 public:
  Rank(const Places& places, const Case& one, int rank) : case_(one), rank_(rank) {
    std::string why;
    cuda_ = open_table(places.cuda, &why);
    if (cuda_ == nullptr) {
      give_up("CUDA library", why);
    }
    auto api = device::open_nccl();
    if (!api) {
      give_up("NCCL", api.error().text);
    }
    nccl_ = *api;
    library_ = ::dlopen(places.library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      give_up("libprunex", ::dlerror());
    }
    cuda("device", cuda_->set_device(0));
    cuda("stream", cuda_->stream_create(&stream_));
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
      publish(send);
      publish(recv);
    }
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> values(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        values[i] = value_of(rank_, round, i);
      }
      copy(send, values.data());
      cuda("fill", cuda_->fill(recv, 0xEE, kCount * sizeof(float), stream_));
      nccl("ncclAllReduce",
           nccl_.AllReduce(send, recv, kCount, kFloat32, device::nccl::kSum, comm_, stream_));
      copy(values.data(), recv);
      for (size_t i = 0; i < kCount; ++i) {
        const float expected = value_of(0, round, i) + value_of(1, round, i);
        if (!(values[i] == expected)) {
          give_up("wrong sum", strf("round %d, element %zu: %g, expected %g", round, i,
                                    static_cast<double>(values[i]), static_cast<double>(expected)));
        }
      }
    }
    nccl("ncclCommDestroy", nccl_.CommDestroy(comm_));
  }

 private:
  // Whole numbers: sums are exact in any order. Dropped rows are zero.
  [[nodiscard]] float value_of(int rank, int round, size_t i) const {
    if (case_.masked && !kept(i / kColumns)) {
      return 0;
    }
    return static_cast<float>((i * 7 + static_cast<size_t>(rank * 13 + round)) % 251) + 1;
  }
  [[nodiscard]] static bool kept(size_t row) { return row % 8 < 3; }

  void cuda(const char* what, int error) const {
    if (error != 0) {
      give_up(what, cuda_->error_text(error));
    }
  }
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
  float* allocate() const {
    void* p = nullptr;
    const size_t bytes = kCount * sizeof(float);
    if (case_.registered) {
      nccl("ncclMemAlloc", newer<int (*)(void**, size_t)>("ncclMemAlloc")(&p, bytes));
    } else {
      cuda("allocate", cuda_->allocate(&p, bytes));
    }
    return static_cast<float*>(p);
  }
  void enlist(float* p) const {
    void* handle = nullptr;
    nccl("ncclCommRegister", newer<int (*)(void*, void*, size_t, void**)>("ncclCommRegister")(
                                 comm_, p, kCount * sizeof(float), &handle));
  }
  void publish(const float* p) const {
    const auto register_mask = reinterpret_cast<decltype(&prunex_register_mask)>(
        ::dlsym(library_, "prunex_register_mask"));
    const auto last_error =
        reinterpret_cast<decltype(&prunex_last_error)>(::dlsym(library_, "prunex_last_error"));
    if (register_mask == nullptr || last_error == nullptr) {
      give_up("libprunex", "does not export prunex_register_mask");
    }
    const int64_t sizes[] = {static_cast<int64_t>(kRows), static_cast<int64_t>(kColumns)};
    prunex_tensor_t tensor{};
    tensor.struct_size = sizeof tensor;
    tensor.dtype = PRUNEX_FLOAT32;
    tensor.ndim = 2;
    tensor.sizes = sizes;
    std::vector<uint8_t> rows(kRows);
    for (size_t r = 0; r < kRows; ++r) {
      rows[r] = kept(r) ? 1 : 0;
    }
    prunex_mask_desc_t desc{};
    desc.struct_size = sizeof desc;
    desc.kind = PRUNEX_MASK_DIMS;
    desc.declared_kept = -1;
    desc.keep[0] = rows.data();
    desc.keep_len[0] = rows.size();
    prunex_mask_t mask = 0;
    if (register_mask(p, &tensor, &desc, &mask) != PRUNEX_SUCCESS) {
      give_up("prunex_register_mask", last_error());
    }
  }
  void copy(void* to, const void* from) const {
    cuda("copy", cuda_->copy(to, from, kCount * sizeof(float), stream_));
    cuda("synchronize", cuda_->stream_synchronize(stream_));
  }

  const Case& case_;
  const int rank_;
  const cuda::Table* cuda_ = nullptr;
  device::NcclApi nccl_;
  void *library_ = nullptr, *stream_ = nullptr;
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

void be_rank(const Places& places, const Case& one, int rank, const int* pipe) {
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

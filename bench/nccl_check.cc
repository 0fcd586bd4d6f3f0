// SPDX-License-Identifier: Apache-2.0
// Real NCCL over the plugin with two processes on one GPU: all-reduces by Net and CollNetChain,
// with and without registered buffers and masks, every result checked. The two processes differ in
// NCCL_HOSTID, so that NCCL takes them for two nodes.
//
//   nccl_check CUDA_LIBRARY LIBPRUNEX OUT_FOLDER [SECONDS_PER_CASE]
//
// NCCL and the plugin come from LD_LIBRARY_PATH. One line per case, OUT_FOLDER/nccl.json, and
// NCCL's own log beside it. Exit status 0: all passed, 1: not, 77: cannot run here, and the last
// line says why.
#include <dlfcn.h>
#include <signal.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/cuda/table.h"
#include "plugin/device/nccl_library.h"
#include "prunex/prunex.h"

namespace prunex {
namespace {

constexpr int kSkip = 77, kRanks = 2, kRounds = 5;
constexpr size_t kRows = 1024, kColumns = 1024, kCount = kRows * kColumns;
constexpr int kFloat32 = 7;

struct Case {
  const char* name;
  bool collnet, staged, registered, masked;
};
constexpr Case kCases[] = {
    {"net", false, false, false, false},
    {"net-masked", false, false, false, true},
    {"net-staged", false, true, false, false},
    {"net-staged-registered", false, true, true, false},
    {"net-staged-registered-masked", false, true, true, true},
    {"collnet", true, false, false, false},
    {"collnet-masked", true, false, false, true},
    {"collnet-registered", true, false, true, false},
    {"collnet-registered-masked", true, false, true, true},
};

struct Places {
  std::string cuda, library, out;
  int seconds = 45;
};

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

// ---- one rank -----------------------------------------------------------------------------------

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

// ---- a case -------------------------------------------------------------------------------------

void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

std::string log_of(const Places& places, const Case& one, int rank) {
  return strf("%s/nccl-%s-%d.log", places.out.c_str(), one.name, rank);
}

[[noreturn]] void be_rank(const Places& places, const Case& one, int rank, const int* pipe) {
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
  set("NCCL_DEBUG_FILE", log_of(places, one, rank));
  set("PRUNEX_NET_MODE", "compact");
  if (one.staged) {
    set("PRUNEX_STAGED_GPU", "1");
    set("NCCL_NET_GDR_LEVEL", "SYS");
  }
  Rank me(places, one, rank);
  me.connect(pipe[0], pipe[1]);
  me.run();
  ::_exit(0);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Which network NCCL took is in its log only.
bool used_prunex(const std::string& file) {
  std::ifstream log(file);
  for (std::string line; std::getline(log, line);) {
    if (::strcasestr(line.c_str(), "using network prunex") != nullptr) {
      return true;
    }
  }
  return false;
}

// Empty: passed.
std::string run_case(const Places& places, const Case& one) {
  int pipe[2] = {};
  if (::pipe(pipe) != 0) {
    return "no pipe";
  }
  pid_t ranks[kRanks] = {};
  for (int r = 0; r < kRanks; ++r) {
    std::remove(log_of(places, one, r).c_str());
    std::fflush(stdout);
    ranks[r] = ::fork();
    if (ranks[r] == 0) {
      be_rank(places, one, r, pipe);
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  std::string fault;
  int left = kRanks;
  while (left > 0) {
    for (pid_t& p : ranks) {
      int status = 0;
      if (p > 0 && ::waitpid(p, &status, WNOHANG) == p) {
        p = 0;
        --left;
        if (status != 0 && fault.empty()) {
          fault = WIFSIGNALED(status) ? strf("a rank died of signal %d", WTERMSIG(status))
                                      : "a rank failed";
        }
      }
    }
    const bool late = seconds_since(begin) > places.seconds;
    if (left > 0 && (late || !fault.empty())) {
      fault = fault.empty() ? strf("not done after %d s", places.seconds) : fault;
      for (const pid_t p : ranks) {
        if (p > 0) {
          ::kill(p, SIGKILL);
        }
      }
    }
    ::usleep(20000);
  }
  ::close(pipe[0]);
  ::close(pipe[1]);
  for (int r = 0; r < kRanks && fault.empty(); ++r) {
    if (!used_prunex(log_of(places, one, r))) {
      fault = "NCCL used another network: " + log_of(places, one, r);
    }
  }
  return fault;
}

// In a process of its own: one that forks must not have started CUDA.
int look(const Places& places) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
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
    if (!why.empty()) {
      std::printf("cannot run: %s\n", why.c_str());
      std::fflush(stdout);
    }
    ::_exit(why.empty() ? 0 : kSkip);
  }
  int status = 0;
  (void)::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int run_all(const Places& places) {
  if (const int code = look(places); code != 0) {
    return code;
  }
  int failed = 0;
  std::string json;
  for (const Case& one : kCases) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string fault = run_case(places, one);
    failed += fault.empty() ? 0 : 1;
    const double took = seconds_since(begin);
    std::printf("%-30s %-4s %6.1f s  %s\n", one.name, fault.empty() ? "pass" : "FAIL", took,
                fault.c_str());
    json += strf("%s\n  {\"case\": \"%s\", \"result\": \"%s\", \"seconds\": %.1f}",
                 json.empty() ? "" : ",", one.name, fault.empty() ? "pass" : "FAIL", took);
  }
  std::ofstream(places.out + "/nccl.json") << "[" << json << "]\n";
  std::printf("%d of %zu cases failed\n", failed, std::size(kCases));
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace prunex

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s CUDA_LIBRARY LIBPRUNEX OUT_FOLDER [SECONDS_PER_CASE]\n",
                 argv[0]);
    return 2;
  }
  prunex::Places places{argv[1], argv[2], argv[3]};
  if (argc > 4) {
    places.seconds = std::atoi(argv[4]);
  }
  return prunex::run_all(places);
}

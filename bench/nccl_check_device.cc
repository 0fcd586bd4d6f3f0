// SPDX-License-Identifier: Apache-2.0
// One rank of a case of prunex_all_reduce on device memory: ranks in two nodes, NCCL's own network.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdlib>
#include <fstream>

#include "bench/nccl_check_gpu.h"
#include "plugin/base/result.h"

namespace prunex::check {
namespace {

// A port that was free a moment ago.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  auto* const name = reinterpret_cast<sockaddr*>(&at);
  if (fd < 0 || ::bind(fd, name, length) != 0 || ::getsockname(fd, name, &length) != 0) {
    give_up("port", "none is free on the loopback interface");
  }
  ::close(fd);
  return ntohs(at.sin_port);
}

// Rank 0 finds it, the others read it, each its own copy.
int agree_on_port(const Case& one, int rank, const int* pipe) {
  int port = rank == 0 ? free_port() : 0;
  for (int r = 1; rank == 0 && r < one.ranks(); ++r) {
    if (::write(pipe[1], &port, sizeof port) != static_cast<ssize_t>(sizeof port)) {
      give_up("port", "cannot be handed over");
    }
  }
  if (rank != 0 && ::read(pipe[0], &port, sizeof port) != static_cast<ssize_t>(sizeof port)) {
    give_up("port", "did not come");
  }
  return port;
}

void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

void set_environment(const Places& places, const Case& one, int rank, double seconds) {
  set("NCCL_HOSTID", strf("prunex-check-%d", rank));  // NCCL takes one GPU once per node
  set("NCCL_NET_PLUGIN", "none");
  set("NCCL_NET", "Socket");
  set("NCCL_IB_DISABLE", "1");
  set("NCCL_SOCKET_IFNAME", "lo");
  set("NCCL_MAX_NCHANNELS", "2");
  set("NCCL_MAX_CTAS", "2");
  set("NCCL_DEBUG", "INFO");
  set("NCCL_DEBUG_FILE", file_of(places, one, rank, "log"));
  set("PRUNEX_NODE_ID", strf("prunex-check-node-%d", rank / (one.ranks() / 2)));
  set("PRUNEX_SOCKET_IFNAME", "lo");
  set("PRUNEX_TIMEOUT", strf("%d", static_cast<int>(seconds) + 1));
}

class DeviceRank {
 public:
  DeviceRank(const Places& places, const Case& one, int rank, int port)
      : case_(one), rank_(rank), gpu_(places) {
    const std::string root = strf("127.0.0.1:%d", port);
    prunex_comm_config_t config = PRUNEX_COMM_CONFIG_INIT;
    config.rank = rank;
    config.size = one.ranks();
    config.root = root.c_str();
    gpu_.must("prunex_device_ready",
              gpu_.prunex<decltype(prunex_device_ready)>("prunex_device_ready")());
    gpu_.must("prunex_comm_create",
              gpu_.prunex<decltype(prunex_comm_create)>("prunex_comm_create")(&config, &comm_));
  }

  void run() {
    float *const send = gpu_.allocate(), *const recv = gpu_.allocate();
    if (case_.masked) {
      gpu_.publish(send, case_.project ? PRUNEX_PROJECT : PRUNEX_LOSSLESS);
    }
    prunex_call_t call = PRUNEX_CALL_INIT;
    call.stream = gpu_.stream();
    for (int round = 0; round < kRounds; ++round) {
      std::vector<float> values = values_of(zeros(), rank_, round);
      gpu_.copy(send, values.data());
      gpu_.fill(recv);
      gpu_.must("prunex_all_reduce",
                gpu_.prunex<decltype(prunex_all_reduce)>("prunex_all_reduce")(
                    comm_, send, recv, kCount, PRUNEX_FLOAT32, PRUNEX_SUM, 0, &call));
      gpu_.copy(values.data(), recv);
      check(round, values);
    }
  }

  // The headers of calls are compared behind our back: the counters come a little later.
  void write_counts(const std::string& file) const {
    prunex_stats_t stats{};
    stats.struct_size = sizeof stats;
    constexpr int kTries = 500;
    for (int i = 0; i < kTries && stats.calls < kRounds; ++i) {
      ::usleep(10'000);
      gpu_.must("prunex_stats", gpu_.prunex<decltype(prunex_stats)>("prunex_stats")(comm_, &stats));
    }
    std::ofstream(file) << strf("prunex_device_calls_total %" PRIu64
                                "\nprunex_device_compact_total %" PRIu64
                                "\nprunex_device_violations_total %" PRIu64 "\n",
                                stats.calls, stats.calls_compact, stats.violations);
    gpu_.must("prunex_comm_destroy",
              gpu_.prunex<decltype(prunex_comm_destroy)>("prunex_comm_destroy")(comm_));
  }

 private:
  // Only what is checked and has to hold is zero; `project` selects, whatever is there.
  [[nodiscard]] bool zeros() const {
    return case_.masked && !case_.project && case_.way != Way::violated;
  }
  void check(int round, const std::vector<float>& values) const {
    for (size_t i = 0; i < kCount; ++i) {
      float expected = 0;
      for (int r = 0; r < case_.ranks(); ++r) {
        expected += value_of(zeros() || case_.project, r, round, i);
      }
      if (!(values[i] == expected)) {
        give_up("wrong sum", strf("round %d, element %zu: %g, expected %g", round, i,
                                  static_cast<double>(values[i]), static_cast<double>(expected)));
      }
    }
  }

  const Case& case_;
  const int rank_;
  const Gpu gpu_;
  prunex_comm_t comm_ = 0;
};

}  // namespace

void be_device_rank(const Places& places, const Case& one, int rank, const int* pipe,
                    double seconds) {
  set_environment(places, one, rank, seconds);
  DeviceRank me(places, one, rank, agree_on_port(one, rank, pipe));
  me.run();
  me.write_counts(file_of(places, one, rank, "prom"));
  ::_exit(0);
}

}  // namespace prunex::check

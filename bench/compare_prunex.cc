// SPDX-License-Identifier: Apache-2.0
// prunex_all_reduce of BYTES of fp32, in place and dense: the twin of compare_mpi.cc.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "plugin/base/clock.h"
#include "prunex/prunex.h"

namespace {

void check(prunex_result_t result) {
  if (result != PRUNEX_SUCCESS) {
    std::fprintf(stderr, "%s\n", prunex_last_error());
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: compare_prunex BYTES ITERS WARMUP\n");
    return 2;
  }
  const size_t count = std::strtoull(argv[1], nullptr, 10) / sizeof(float);
  const int iters = std::atoi(argv[2]), warmup = std::atoi(argv[3]);
  const prunex_comm_config_t config = PRUNEX_COMM_CONFIG_INIT;
  prunex_comm_t comm = 0;
  check(prunex_comm_create(&config, &comm));
  prunex_comm_info_t info = {};
  info.struct_size = sizeof info;
  check(prunex_comm_info(comm, &info));
  std::vector<float> data(count, 0.0f);
  std::vector<double> ms;
  float token = 0;
  for (int i = 0; i < warmup + iters; ++i) {
    std::fill(data.begin(), data.end(), 1.0f);
    check(prunex_all_reduce(comm, &token, &token, 1, PRUNEX_FLOAT32, PRUNEX_SUM, 0, nullptr));
    const int64_t begin = prunex::now_ns();
    check(prunex_all_reduce(comm, data.data(), data.data(), count, PRUNEX_FLOAT32, PRUNEX_SUM, 0,
                            nullptr));
    if (i >= warmup) {
      ms.push_back(static_cast<double>(prunex::now_ns() - begin) * 1e-6);
    }
    if (data[count / 2] != static_cast<float>(info.size)) {
      std::fprintf(stderr, "wrong sum\n");
      return 1;
    }
  }
  std::sort(ms.begin(), ms.end());
  if (info.rank == 0) {
    std::printf("%.3f %.3f\n", ms[ms.size() / 2], ms[0]);
  }
  check(prunex_comm_destroy(comm));
}

// SPDX-License-Identifier: Apache-2.0
// MPI_Allreduce of BYTES of fp32, in place: one line "median_ms min_ms" of ITERS runs. For
// bench/compare_allreduce.py, which runs it beside the other libraries.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const size_t count = std::strtoull(argv[1], nullptr, 10) / sizeof(float);
  const int iters = std::atoi(argv[2]), warmup = std::atoi(argv[3]);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<float> data(count, 0.0f);
  std::vector<double> ms;
  for (int i = 0; i < warmup + iters; ++i) {
    std::fill(data.begin(), data.end(), 1.0f);
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    if (i >= warmup) {
      ms.push_back((MPI_Wtime() - begin) * 1e3);
    }
    if (data[count / 2] != static_cast<float>(size)) {
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  std::sort(ms.begin(), ms.end());
  if (rank == 0) {
    std::printf("%.3f %.3f\n", ms[ms.size() / 2], ms[0]);
  }
  MPI_Finalize();
}

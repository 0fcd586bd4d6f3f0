/* SPDX-License-Identifier: Apache-2.0 */
/* An all-reduce of device memory from C: half of a matrix's rows kept, result checked.
 *
 *   cc -std=c99 -Iinclude -I/usr/local/cuda/include docs/examples/device.c -o device \
 *     -Lbuild/plugin -lprunex -L/usr/local/cuda/lib64 -lcudart
 *   export LD_LIBRARY_PATH=$PWD/build/plugin
 *   build/tools/prunex run -n 2 -- ./device    (NCCL wants a GPU for each rank of a node)
 *
 * Exit status 77 where device memory cannot be reduced; the text says why.
 */
#include <cuda_runtime_api.h>
#include <prunex/prunex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { kRows = 1024, kColumns = 512, kCount = kRows * kColumns };

static float values[kCount];

#define CHECK(call)                                            \
  do {                                                         \
    if ((call) != PRUNEX_SUCCESS) {                            \
      fprintf(stderr, "%s: %s\n", #call, prunex_last_error()); \
      return 1;                                                \
    }                                                          \
  } while (0)
#define CUDA(call)                                                   \
  do {                                                               \
    const cudaError_t error = (call);                                \
    if (error != cudaSuccess) {                                      \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
      return 1;                                                      \
    }                                                                \
  } while (0)

int main(void) {
  if (prunex_device_ready() != PRUNEX_SUCCESS) {
    fprintf(stderr, "%s\n", prunex_last_error());
    return 77;
  }
  prunex_comm_t comm = 0;
  prunex_comm_config_t config = PRUNEX_COMM_CONFIG_INIT;
  CHECK(prunex_comm_create(&config, &comm)); /* rank and size: the environment */
  prunex_comm_info_t info = {0};
  info.struct_size = sizeof info;
  CHECK(prunex_comm_info(comm, &info));
  const int rank = info.rank, size = info.size;
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  CUDA(cudaSetDevice(rank %
                     devices)); /* before the first call: a communicator stays on one device */

  /* Every second row stays; with PROJECT the result is +0 elsewhere. The mask belongs to the
   * buffer. */
  const int64_t sizes[] = {kRows, kColumns};
  uint8_t rows[kRows];
  for (int r = 0; r < kRows; r++) rows[r] = r % 2 == 0;
  prunex_tensor_t tensor = {0};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = PRUNEX_FLOAT32;
  tensor.ndim = 2;
  tensor.sizes = sizes;
  prunex_mask_desc_t desc = {0};
  desc.struct_size = sizeof desc;
  desc.kind = PRUNEX_MASK_DIMS;
  desc.contract = PRUNEX_PROJECT;
  desc.declared_kept = -1;
  desc.keep[0] = rows;
  desc.keep_len[0] = kRows;

  float* grad = NULL;
  cudaStream_t stream = NULL;
  prunex_mask_t mask = 0;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaMalloc((void**)&grad, sizeof values));
  CHECK(prunex_register_mask(grad, &tensor, &desc, &mask));

  for (int i = 0; i < kCount; i++) values[i] = (float)(i % 100 + rank);
  CUDA(cudaMemcpyAsync(grad, values, sizeof values, cudaMemcpyHostToDevice, stream));
  prunex_call_t call = PRUNEX_CALL_INIT;
  call.stream = stream; /* the call is enqueued behind the copy, and what follows behind the call */
  CHECK(prunex_all_reduce(comm, grad, grad, kCount, PRUNEX_FLOAT32, PRUNEX_SUM, 0, &call));
  CUDA(cudaMemcpyAsync(values, grad, sizeof values, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));

  for (int i = 0; i < kCount; i++) {
    const float kept = (float)(i % 100 * size + size * (size - 1) / 2);
    if (values[i] != (rows[i / kColumns] ? kept : 0)) {
      fprintf(stderr, "element %d is %g\n", i, (double)values[i]);
      return 1;
    }
  }
  CHECK(prunex_unregister_mask(mask));
  CHECK(prunex_comm_destroy(comm));
  CUDA(cudaFree(grad));
  CUDA(cudaStreamDestroy(stream));
  if (rank == 0) printf("%d ranks: all is well\n", size);
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// ncclTuner_v2 to ncclTuner_v6 (NCCL 2.21, 2.22, 2.24, 2.28, 2.30). v2 answers with one algorithm
// and protocol; from v3 on a tuner changes costs in a table of rows by algorithm, `protos` floats
// each, one behind the other whatever the type says; a negative cost means: not possible.
#pragma once
#include "plugin/nccl/abi/types.h"

namespace prunex::nccl::abi {

struct NvlDomainInfo {
  int domains, min_ranks, max_ranks;
};
struct TunerConstants {  // v5, v6; PruneX leaves them alone
  double base_latencies[7][3];
  double hw_latencies[3][7][3];
  double ll_max_bws[4][3];
  double per_channel_max_ring_ll128_bws[4][3];
  double per_channel_max_tree_ll128_bws[4][3];
  double per_channel_max_tree_bws[4][3];
  double per_channel_max_nvls_tree_bws[4][3];
};
static_assert(sizeof(NvlDomainInfo) == 12 && sizeof(TunerConstants) == 1152);

using TunerInit = Status(size_t ranks, size_t nodes, Logger log, void** ctx);
using TunerInitV5 = Status(void** ctx, uint64_t comm_id, size_t ranks, size_t nodes, Logger log,
                           NvlDomainInfo* domains, TunerConstants* constants);
using GetCollInfoV2 = Status(void* ctx, Func func, size_t bytes, int coll_net_support,
                             int nvls_support, int pipe_ops, int* algo, int* proto, int* channels);
using GetCollInfoV3 = Status(void* ctx, Func func, size_t bytes, int pipe_ops, float** costs,
                             int algos, int protos, int* channels);
using GetCollInfoV4 = Status(void* ctx, Func func, size_t bytes, int pipe_ops, float** costs,
                             int algos, int protos, int registered, int* channels);
using TunerDestroy = Status(void* ctx);
using GetChunkSize = Status(void* ctx, Func func, size_t bytes, int algo, int proto, int channels,
                            size_t* chunk_bytes);

template <class Init, class GetCollInfo>
struct TunerBase {
  const char* name;
  Init* init;
  GetCollInfo* get_coll_info;
  TunerDestroy* destroy;  // "finalize" from v5 on
};
using TunerV2 = TunerBase<TunerInit, GetCollInfoV2>;
using TunerV3 = TunerBase<TunerInit, GetCollInfoV3>;
using TunerV4 = TunerBase<TunerInit, GetCollInfoV4>;
using TunerV5 = TunerBase<TunerInitV5, GetCollInfoV4>;
struct TunerV6 {
  const char* name;
  TunerInitV5* init;
  GetCollInfoV4* get_coll_info;
  TunerDestroy* destroy;
  GetChunkSize* get_chunk_size;  // may be NULL
};

template <class T>
constexpr bool kTunerSlots = offsetof(T, name) == 0 && offsetof(T, init) == 8 &&
                             offsetof(T, get_coll_info) == 16 && offsetof(T, destroy) == 24;
static_assert(kTunerSlots<TunerV2> && kTunerSlots<TunerV3> && kTunerSlots<TunerV4>);
static_assert(kTunerSlots<TunerV5> && kTunerSlots<TunerV6>);
static_assert(sizeof(TunerV2) == 32 && sizeof(TunerV5) == 32 && sizeof(TunerV6) == 40);
static_assert(offsetof(TunerV6, get_chunk_size) == 32);

}  // namespace prunex::nccl::abi

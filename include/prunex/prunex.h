/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prunex.h - masks, and a hierarchical all-reduce that sends only what they keep.
 *
 * Training that prunes whole filters, channels or blocks fills the links between nodes with zeros.
 * A mask published here tells PruneX where they are: ranks reduce inside each node, node leaders
 * exchange only the kept elements as a dense buffer without indices, and the result is spread again
 * (paper arXiv 2512.14628, sections on physical compaction and hierarchical synchronisation).
 *
 * Conventions
 *  - Sizes and offsets are in elements unless a name says bytes. Pointers stay the caller's;
 * whatever must outlive a call is copied.
 *  - Every struct starts with struct_size = sizeof(it); prunex_*_INIT macros fill in the defaults.
 *  - Handles are opaque integers, never reused; 0 is none.
 *  - Functions return prunex_result_t; after a failure prunex_last_error() has one line for a
 * person, of the calling thread. Nothing throws, exits or prints on stdout.
 *  - Masks and layouts may be used from any thread. A communicator runs one collective at a time,
 * in the order of the calls; ranks must make the same calls in the same order.
 */
#ifndef PRUNEX_PRUNEX_H_
#define PRUNEX_PRUNEX_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PRUNEX_API __attribute__((visibility("default")))
#else
#define PRUNEX_API
#endif

/* In C++11 an enum of a fixed type may hold any int, as in C: junk is refused, not undefined. */
#if defined(__cplusplus) && __cplusplus >= 201103L
#define PRUNEX_INT_ENUM : int
#else
#define PRUNEX_INT_ENUM
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define PRUNEX_VERSION_MAJOR 0
#define PRUNEX_VERSION_MINOR 1
#define PRUNEX_VERSION_PATCH 0
#define PRUNEX_MAX_DIMS 8

typedef enum PRUNEX_INT_ENUM {
  PRUNEX_SUCCESS = 0,
  PRUNEX_ERROR_INVALID_ARGUMENT = 1, /* fix the call */
  PRUNEX_ERROR_INVALID_HANDLE = 2,   /* unknown or destroyed */
  PRUNEX_ERROR_CONFIG = 3,           /* a PRUNEX_* variable cannot be understood */
  PRUNEX_ERROR_MISMATCH =
      4, /* ranks disagree about a call; buffers untouched, communicator usable */
  PRUNEX_ERROR_TIMEOUT = 5,   /* communicator dead; the text names the rank waited for */
  PRUNEX_ERROR_PEER_LOST = 6, /* communicator dead; the text names the rank */
  PRUNEX_ERROR_SYSTEM = 7,
  PRUNEX_ERROR_MEMORY = 8,
  PRUNEX_ERROR_UNSUPPORTED = 9,
  PRUNEX_ERROR_BUSY = 10,
  PRUNEX_ERROR_INTERNAL = 11
} prunex_result_t;

typedef enum PRUNEX_INT_ENUM {
  PRUNEX_FLOAT32 = 0,
  PRUNEX_FLOAT64 = 1,
  PRUNEX_FLOAT16 = 2,
  PRUNEX_BFLOAT16 = 3,
  PRUNEX_INT8 = 4,
  PRUNEX_UINT8 = 5,
  PRUNEX_INT32 = 6,
  PRUNEX_INT64 = 7,
  PRUNEX_UINT32 = 8,
  PRUNEX_UINT64 = 9
} prunex_dtype_t;

/* AVG divides once, at the end, by the number of contributions of the scope; integers truncate
 * toward zero. Only SUM and AVG are compacted; the others go dense. */
typedef enum PRUNEX_INT_ENUM {
  PRUNEX_SUM = 0,
  PRUNEX_AVG = 1,
  PRUNEX_MAX = 2,
  PRUNEX_MIN = 3,
  PRUNEX_PROD = 4
} prunex_op_t;

/* WORLD: every rank contributes, every rank gets the result. NODE: among the ranks of one node
 * only. LEADERS: one contribution per node, that of its node leader (prunex_comm_info says who that
 * is), and every rank of the world gets the result; other ranks' send buffers are not read (may be
 * NULL). */
typedef enum PRUNEX_INT_ENUM {
  PRUNEX_SCOPE_WORLD = 0,
  PRUNEX_SCOPE_NODE = 1,
  PRUNEX_SCOPE_LEADERS = 2
} prunex_scope_t;

/* What a mask promises about dropped elements.
 * LOSSLESS: every dropped element of every call is checked. All zero on all ranks: compact.
 * Otherwise that call's result is the dense one on all ranks, one warning names parameter and
 * element, and the parameter stays dense in that communicator until its mask changes. PROJECT: the
 * result is mask * reduction by selection: +0 in dropped places, whatever was there. SAMPLED:
 * LOSSLESS checked on the first 10 calls with a mask and 1 in 64 after that; in between an
 *   unchecked dropped non-zero is lost. Opt-in. */
typedef enum PRUNEX_INT_ENUM {
  PRUNEX_LOSSLESS = 0,
  PRUNEX_PROJECT = 1,
  PRUNEX_SAMPLED = 2
} prunex_contract_t;

typedef uint64_t prunex_mask_t;
typedef uint64_t prunex_layout_t;
typedef uint64_t prunex_comm_t;
typedef uint64_t prunex_request_t;

/* ---- masks
 * --------------------------------------------------------------------------------------- */

/* A dense tensor in any dimension order. sizes: ndim logical sizes (OIHW for a convolution).
 * strides: in elements, a permutation of the row-major ones (channels_last); NULL: row-major. */
typedef struct {
  size_t struct_size;
  prunex_dtype_t dtype;
  int ndim; /* 0 (scalar) to PRUNEX_MAX_DIMS */
  const int64_t* sizes;
  const int64_t* strides;
} prunex_tensor_t;

typedef enum PRUNEX_INT_ENUM {
  PRUNEX_MASK_DIMS = 0, /* keep[d]: one byte per index of dimension d, NULL: all kept; product of
                           them. Filters: dimension 0 of a convolution (1 of a transposed one);
                           channels: dimension 1; rows and columns of a linear layer: 0 and 1. */
  PRUNEX_MASK_BLOCKS =
      1,              /* cells: one byte per tile of block[0] x block[1] x ..., row-major over the
                         tile grid; block[d] = 0: the whole dimension; edge tiles may be partial */
  PRUNEX_MASK_NM = 2, /* cells: one byte per element, exactly nm_n kept in every nm_m consecutive
                         elements along dimension nm_dim */
  PRUNEX_MASK_RANGES = 3, /* ranges: kept, in memory order, ascending, disjoint */
  PRUNEX_MASK_BYTES = 4   /* cells: one byte per element, logical row-major order */
} prunex_mask_kind_t;

typedef struct {
  uint64_t begin, count; /* elements */
} prunex_range_t;

typedef struct {
  size_t struct_size;
  prunex_mask_kind_t kind;
  prunex_contract_t contract;
  uint64_t epoch;        /* informative, shown in messages; digests decide */
  const char* name;      /* parameter name for messages; copied; may be NULL */
  int64_t declared_kept; /* -1: not declared; otherwise must equal the counted number of kept
                            elements */
  const uint8_t* keep[PRUNEX_MAX_DIMS];
  size_t keep_len[PRUNEX_MAX_DIMS]; /* must equal the tensor's sizes where keep is given */
  int64_t block[PRUNEX_MAX_DIMS];
  const uint8_t* cells;
  size_t cells_len;
  int64_t nm_n, nm_m;
  int nm_dim;
  const prunex_range_t* ranges;
  size_t num_ranges;
} prunex_mask_desc_t;

typedef struct {
  size_t struct_size;
  uint64_t count, kept; /* elements */
  uint64_t digest;
  uint64_t epoch;
  uint64_t hits, misses_stale; /* calls by address: served; refused for another length or type */
  uint64_t violations;         /* calls in which it was found not to keep LOSSLESS or SAMPLED */
} prunex_mask_info_t;

/* Publishes a mask. base: the buffer it belongs to, so that calls without a layout find it by
 * address (exactly this pointer, length and dtype); NULL: only layouts use it. The description is
 * copied. keep, cells and ranges may lie in device memory (CUDA): they are read before the call
 * returns, so what writes them must be done (synchronise its stream). The same (base, length) again
 * replaces the earlier mask's registration; another length at the same base, or a partial overlap
 * with a registered buffer, is an error naming both ranges. */
PRUNEX_API prunex_result_t prunex_register_mask(const void* base, const prunex_tensor_t* tensor,
                                                const prunex_mask_desc_t* desc, prunex_mask_t* out);
/* Takes effect at the next call that starts; calls in flight keep the old mask. The shape stays. */
PRUNEX_API prunex_result_t prunex_update_mask(prunex_mask_t mask, const prunex_mask_desc_t* desc);
/* Layouts that hold the mask keep it. */
PRUNEX_API prunex_result_t prunex_unregister_mask(prunex_mask_t mask);
PRUNEX_API prunex_result_t prunex_mask_info(prunex_mask_t mask, prunex_mask_info_t* info);

/* ---- layouts
 * ------------------------------------------------------------------------------------- */

/* What lies in one flat buffer. offset, count: elements; mask 0: dense. */
typedef struct {
  uint64_t offset, count;
  prunex_mask_t mask;
} prunex_segment_t;

typedef struct {
  size_t struct_size;
  uint64_t count, kept; /* elements, with the masks as they are now */
  uint64_t digest;      /* of the segments and masks */
} prunex_layout_info_t;

/* Segments in any order, not overlapping; gaps are dense. count: elements of the buffer. The layout
 * follows later prunex_update_mask calls of its masks. */
PRUNEX_API prunex_result_t prunex_layout_create(const prunex_segment_t* segments,
                                                size_t num_segments, uint64_t count,
                                                prunex_layout_t* out);
PRUNEX_API prunex_result_t prunex_layout_destroy(prunex_layout_t layout);
PRUNEX_API prunex_result_t prunex_layout_info(prunex_layout_t layout, prunex_layout_info_t* info);

/* ---- communicators
 * ------------------------------------------------------------------------------- */

/* A key-value store shared by all ranks. Return 0 for success. get waits for the key up to
 * timeout_s and writes at most capacity bytes; *length gets the value's length. Called only during
 * prunex_comm_create, from the calling thread. */
typedef struct {
  int (*set)(void* context, const char* key, const void* value, size_t length);
  int (*get)(void* context, const char* key, void* value, size_t capacity, size_t* length,
             double timeout_s);
  void* context;
} prunex_store_t;

typedef struct {
  size_t struct_size;
  int rank, size;      /* -1: from PRUNEX_RANK/WORLD_SIZE, torchrun's, MPI's or Slurm's variables */
  const char* root;    /* "host:port" of rank 0; NULL: PRUNEX_ROOT; not used with a store */
  const char* node_id; /* NULL: PRUNEX_NODE_ID, else hostname, boot id and shared-memory device */
  const prunex_store_t* store; /* NULL: none; copied */
  const char* name;            /* tells communicators on one store apart; NULL: "default" */
  double timeout_s;            /* <= 0: PRUNEX_TIMEOUT (1800) */
} prunex_comm_config_t;

#define PRUNEX_COMM_CONFIG_INIT \
  { sizeof(prunex_comm_config_t), -1, -1, NULL, NULL, NULL, NULL, 0.0 }

typedef struct {
  size_t struct_size;
  int rank, size;
  int node, num_nodes;
  int local_rank, local_size;
  int leader;    /* rank of this node's leader */
  int is_leader; /* of any rail */
  int rails;
  char transport[16];
} prunex_comm_info_t;

/* Collective. A rank that does not come is named by every other at the deadline. A communicator
 * belongs to the process that made it: in a forked child its calls are INVALID_ARGUMENT and destroy
 * only forgets it. A rank that dies while a forked child of it lives on (a data loader's worker
 * holds its sockets open) is noticed when that child ends, or at the deadline. */
PRUNEX_API prunex_result_t prunex_comm_create(const prunex_comm_config_t* config,
                                              prunex_comm_t* out);
/* Waits for this rank's calls in flight. Not collective: peers notice only if they call again. */
PRUNEX_API prunex_result_t prunex_comm_destroy(prunex_comm_t comm);
/* Ends the communicator on all ranks, from any thread: calls in flight and later ones fail with
 * PEER_LOST, naming this rank. It still has to be destroyed, which no longer waits for others. */
PRUNEX_API prunex_result_t prunex_comm_abort(prunex_comm_t comm);
/* What became of the communicator, as ncclCommGetAsyncError says it: *error is SUCCESS while it can
 * be used, else what the next call will return, and prunex_last_error() has the text. Calls nobody,
 * waits for nobody, from any thread, also while calls are under way. A peer that died is known
 * within about two seconds without a call; of device calls also errors of NCCL, of the device and
 * of the checks in captured graphs that came after they were enqueued, which end the communicator
 * on all ranks. */
PRUNEX_API prunex_result_t prunex_comm_get_async_error(prunex_comm_t comm, prunex_result_t* error);
PRUNEX_API prunex_result_t prunex_comm_info(prunex_comm_t comm, prunex_comm_info_t* info);
/* Nodes, leaders and why, as text. Writes at most capacity bytes with a final 0; *length: needed.
 */
PRUNEX_API prunex_result_t prunex_comm_topology(prunex_comm_t comm, char* text, size_t capacity,
                                                size_t* length);

/* ---- collectives
 * --------------------------------------------------------------------------------- */

typedef struct {
  size_t struct_size;
  prunex_scope_t scope;
  void* stream;              /* of device buffers: the caller's CUDA stream (NULL: the default
                                stream); of host buffers: NULL */
  prunex_request_t* request; /* NULL: blocking. Otherwise the call returns at once. */
} prunex_call_t;

#define PRUNEX_CALL_INIT \
  { sizeof(prunex_call_t), PRUNEX_SCOPE_WORLD, NULL, NULL }

/* count elements from send to recv on every rank; send == recv is in place, a partial overlap is an
 * error. layout 0: by address of send (or of recv when in place), dense when nothing is registered
 * there. call NULL: world, blocking. Outputs are bit-identical on all ranks and from run to run.
 * Buffers must not be touched until the call has completed; they are written only once the call is
 * certain to succeed, save for a peer's death during the final spread.
 *
 * Device buffers (CUDA; both of one device, the same for all calls of a communicator, both at a
 * multiple of the element's size: else INVALID_ARGUMENT) need libprunex-cuda.so, beside this
 * library, with kernels for the GPU, and NCCL's libnccl.so.2; where one rank lacks them the call is
 * UNSUPPORTED on all, and the text says what is missing. Device memory on one rank and host memory
 * on another is a MISMATCH. The call is enqueued on `stream` and returns, also with `request`,
 * which then is complete at once; synchronise the stream before the result is read. Calls with
 * masks under check (LOSSLESS, SAMPLED when due) wait for the device before the result is written.
 * The first call with a layout, its masks, count, type, operation and scope makes a plan; it may
 * allocate and wait. While a stream is captured into a CUDA graph only calls that have a plan can
 * be made; PROJECT, SAMPLED (always checked; a violation is an error of the next call outside the
 * graph) and dense. Replays of a graph and other calls of the communicator must be ordered by the
 * caller, the same on all ranks. MAX and MIN follow NCCL where values are NaN; 16-bit types are
 * rounded at every step that NCCL adds. AVG of FLOAT16 and of integers shorter than 64 bits is
 * added in, and takes the bytes of, a wider type. A difference between ranks that is found only
 * after one of them has enqueued its part ends the communicator. Results of calls that were under
 * way when a communicator ended are not valid; the next call and prunex_comm_get_async_error say
 * that it has. Not between ncclGroupStart and ncclGroupEnd. */
PRUNEX_API prunex_result_t prunex_all_reduce(prunex_comm_t comm, const void* send, void* recv,
                                             size_t count, prunex_dtype_t dtype, prunex_op_t op,
                                             prunex_layout_t layout, const prunex_call_t* call);

/* Could calls with device buffers be made in this process? SUCCESS, or UNSUPPORTED and the text
 * says what is missing: a driver, a GPU, libprunex-cuda.so, its kernels for the calling thread's
 * current GPU, or NCCL. Of this rank alone. Opens those libraries (tries anew what failed before);
 * makes no communicator. */
PRUNEX_API prunex_result_t prunex_device_ready(void);

/* *done: 1 when complete; the result is then that of the call and the request is gone. */
PRUNEX_API prunex_result_t prunex_request_test(prunex_request_t request, int* done);
PRUNEX_API prunex_result_t prunex_request_wait(prunex_request_t request);
/* prunex_request_test that waits up to `milliseconds`, for callers that have signals or the like to
 * look at now and then. SUCCESS with *done 0: the time is over, and the call goes on. Threads may
 * wait for one request together; one of them gets the result, the others INVALID_HANDLE. */
PRUNEX_API prunex_result_t prunex_request_wait_for(prunex_request_t request, uint32_t milliseconds,
                                                   int* done);

typedef enum PRUNEX_INT_ENUM {
  PRUNEX_AGREE_TOPK = 0,        /* keep the best of the weighted sum of scores over nodes */
  PRUNEX_AGREE_UNION = 1,       /* keep what any contribution has with score != 0 */
  PRUNEX_AGREE_INTERSECTION = 2 /* keep what all contributions have with score != 0 */
} prunex_agree_mode_t;

/* Mask agreement (paper: consistent masks before the exchange). Score groups are split into layers
 * with a budget each; num_layers 0: one layer of all groups with budget `keep`. */
typedef struct {
  size_t struct_size;
  prunex_agree_mode_t mode;
  prunex_scope_t scope; /* LEADERS (default of the INIT macro): one contribution per node */
  double weight;        /* of this contribution, finite, >= 0 */
  size_t keep;
  const size_t* layer_groups; /* groups of each layer, their sum = groups */
  const size_t* layer_keep;
  size_t num_layers;
  const uint8_t* incumbents; /* groups bytes, the same on all ranks; NULL: none */
  double hysteresis;         /* incumbents' sums are multiplied by 1 + hysteresis; >= 0 */
} prunex_agree_t;

#define PRUNEX_AGREE_INIT                                                                         \
  {                                                                                               \
    sizeof(prunex_agree_t), PRUNEX_AGREE_TOPK, PRUNEX_SCOPE_LEADERS, 1.0, 0, NULL, NULL, 0, NULL, \
        0.0                                                                                       \
  }

/* scores: groups floats, finite and >= 0. keep_out: groups bytes, 0 or 1, the same on all ranks;
 * exactly the budget of ones per layer in TOPK, ties go to the lower index. Unequal arguments on
 * ranks are a MISMATCH. */
PRUNEX_API prunex_result_t prunex_agree_mask(prunex_comm_t comm, const float* scores, size_t groups,
                                             const prunex_agree_t* agree, uint8_t* keep_out);

/* ---- errors, version
 * ----------------------------------------------------------------------------- */

PRUNEX_API const char* prunex_result_string(prunex_result_t result);
/* The calling thread's last failure in one line; "" if there was none. Valid until its next
 * failure. */
PRUNEX_API const char* prunex_last_error(void);
/* major * 10000 + minor * 100 + patch */
PRUNEX_API int prunex_version(void);

#ifdef __cplusplus
}
#endif

#include "prunex/collectives.h"
#include "prunex/stats.h"

#endif

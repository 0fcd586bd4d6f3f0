/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was saved, and what it cost. Part of prunex.h, which includes it: conventions and types are
 * described there.
 */
#ifndef PRUNEX_STATS_H_
#define PRUNEX_STATS_H_

#include "prunex/prunex.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  size_t struct_size;
  uint64_t calls, calls_compact, calls_dense;
  uint64_t hits, misses, stale;                  /* look-ups by address */
  uint64_t mismatches, violations;               /* calls that went dense because of them */
  uint64_t bytes_logical;                        /* sum of count * element size of the calls */
  uint64_t bytes_wire_sent, bytes_wire_received; /* between nodes, headers included, this rank */
  uint64_t bytes_dense;     /* what bytes_wire_sent would be without masks, headers aside */
  uint64_t dropped_nonzero; /* non-zero dropped elements seen under PROJECT, this rank */
  /* Time of each stage in nanoseconds, this rank; stages overlap. Busy time, save for inter_ns:
   * that is the time with something outstanding between nodes, waiting included (0 where a rank
   * leads no rail). */
  uint64_t pack_ns, unpack_ns, reduce_ns, inter_ns, agree_ns, total_ns;
} prunex_stats_t;

PRUNEX_API prunex_result_t prunex_stats(prunex_comm_t comm, prunex_stats_t* stats);

/* What the NCCL plugin of this process has carried through its Net tables. bytes_logical: what NCCL
 * handed over; bytes_wire: what stood for it on the network (headers of the transport aside). */
typedef struct {
  uint64_t messages, bytes_logical, bytes_wire;
} prunex_net_kind_t;

/* Totals since the process started, over all of NCCL's communicators, closed ones included. Every
 * message is counted once, when it is complete, under the way it travelled: raw (as it was),
 * zero_block (without its blocks of zeros), masked (without what a registered mask drops). */
typedef struct {
  size_t struct_size;
  prunex_net_kind_t sent_raw, sent_zero_block, sent_masked;
  prunex_net_kind_t received_raw, received_zero_block, received_masked;
  uint64_t pack_ns, unpack_ns; /* time of scanning, packing and testing; of expanding */
  uint64_t stale; /* messages of 4 KiB and more that touched a registered buffer, not inside it */
  uint64_t violated; /* messages with a non-zero byte where their mask has none: sent raw */
  /* Messages of device memory: packed and tested by kernels, expanded by kernels, read or
   * written by the network where they are (GPUDirect), copied through pinned memory. */
  uint64_t device_packed, device_unpacked, device_direct, device_copied;
} prunex_net_stats_t;

/* Zeros where no plugin runs. May be called from any thread, at any time; counters that change
 * meanwhile are each read once. */
PRUNEX_API prunex_result_t prunex_net_stats(prunex_net_stats_t* stats);

#ifdef __cplusplus
}
#endif

#endif

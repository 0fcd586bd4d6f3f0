/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives that move data, and messages between two ranks. Part of prunex.h, which includes it:
 * conventions, types and prunex_call_t are described there.
 */
#ifndef PRUNEX_COLLECTIVES_H_
#define PRUNEX_COLLECTIVES_H_

#include "prunex/prunex.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collectives that move data. Like prunex_all_reduce: every rank of the communicator makes the same
 * call, in the same order among all collectives; call NULL means world and blocking, a request
 * makes it return at once. Scopes other than WORLD are UNSUPPORTED. Masks play no part. A rank that
 * makes another call, or passes another size, root, dtype or op, is a MISMATCH on every rank, with
 * no buffer touched; a rank that does not come or dies ends the call as in prunex_all_reduce (a
 * peer's death may leave a receive buffer partly written). In prunex_stats they count as dense
 * calls; bytes_logical grows by the bytes of the whole result or, for prunex_reduce_scatter, of the
 * whole input. */

/* bytes bytes at buffer go from rank `root` to every other rank's buffer; the root's is only read.
 * They cross to every other node once: small ones straight from the root's node leader, large ones
 * handed on from leader to leader, so that no link carries them twice. */
PRUNEX_API prunex_result_t prunex_broadcast(prunex_comm_t comm, void* buffer, size_t bytes,
                                            int root, const prunex_call_t* call);
/* Every rank gives bytes_per_rank bytes; recv holds size * bytes_per_rank, in rank order, on every
 * rank. In place when send == recv + rank * bytes_per_rank; any other overlap is an error. Each
 * node sends its ranks' parts to every other node once. */
PRUNEX_API prunex_result_t prunex_all_gather(prunex_comm_t comm, const void* send, void* recv,
                                             size_t bytes_per_rank, const prunex_call_t* call);
/* send holds size * count_per_rank elements, in rank order; recv gets this rank's count_per_rank
 * elements of the reduction: the same bits as that slice of prunex_all_reduce without masks. In
 * place when recv == send + rank * count_per_rank elements (the rest of send is then left as it
 * is); any other overlap is an error. Half the traffic of an all-reduce. */
PRUNEX_API prunex_result_t prunex_reduce_scatter(prunex_comm_t comm, const void* send, void* recv,
                                                 size_t count_per_rank, prunex_dtype_t dtype,
                                                 prunex_op_t op, const prunex_call_t* call);
/* Returns once every rank of the communicator has called it. Blocking. Of the host: what is enqueued
 * on CUDA streams may still be under way; synchronise them first. */
PRUNEX_API prunex_result_t prunex_barrier(prunex_comm_t comm);

/* Messages between two ranks. Not collective: they take no turn in the order of the collectives,
 * disturb none that is under way and need no third rank. Any thread, any number at a time. Messages
 * from one rank to another with the same tag are received in the order in which they were sent, by
 * receives in the order in which they were posted; tags are independent of each other. peer is any
 * other rank; the rank itself is an error.
 *
 * prunex_send returns (its request completes) when buffer may be reused. Up to 16 KiB it does not
 * wait for the receive while no more than 256 KiB lie untaken with the peer; larger ones do wait,
 * so two ranks that both send first must not both block. prunex_recv takes a message of exactly
 * `bytes` bytes (0 is a message, too). One of another size, shorter or longer, is a MISMATCH that
 * says both sizes: buffer is untouched, the communicator usable and the message stays for the next
 * receive of its tag. A message not taken, or not sent, within the communicator's timeout is a
 * TIMEOUT naming the peer, a peer that died or closed its communicator PEER_LOST: both end the
 * communicator on all ranks, as in prunex_all_reduce. What a peer sent before it closed can still
 * be received; one that closed and never sent anything is noticed at the timeout.
 *
 * They travel over TCP, also inside a node, on a connection that the first message opens; call as
 * in prunex_all_reduce (scope WORLD). In prunex_stats each counts as a dense call once complete.
 * Where PRUNEX_PORT_RANGE has no port left for a rank to listen on, sending to it is UNSUPPORTED.
 */
PRUNEX_API prunex_result_t prunex_send(prunex_comm_t comm, const void* buffer, size_t bytes,
                                       int peer, int tag, const prunex_call_t* call);
PRUNEX_API prunex_result_t prunex_recv(prunex_comm_t comm, void* buffer, size_t bytes, int peer,
                                       int tag, const prunex_call_t* call);

#ifdef __cplusplus
}
#endif
#endif

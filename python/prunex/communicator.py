# SPDX-License-Identifier: Apache-2.0
"""Communicators: the hierarchical all-reduce, mask agreement, and plain collectives."""

from __future__ import annotations

import ctypes
from datetime import timedelta
from typing import Any, NoReturn, Optional, Sequence, Tuple, Union

import numpy as np

from . import _api
from ._arguments import bytes_of, choice, op_code, seconds_of, stream_of, whole
from ._closing import Closing
from ._library import check, last_error, library, optional
from ._memory import Memory, as_bytes, contiguous_memory, dtype_name, is_torch
from ._store import StoreAdapter
from ._waiting import InFlight, on_main_thread, run
from .errors import Error, InvalidArgument, InvalidHandle
from .layout import Layout
from .request import Request
from .stats import Stats

__all__ = ["Communicator"]


class Communicator(Closing):
    """Ranks that reduce together. Creation is collective; calls run one at a time, in their order.

    rank, size: both, or neither: then from PRUNEX_RANK and PRUNEX_WORLD_SIZE, torchrun's, MPI's or
    Slurm's variables. root: "host:port" of rank 0 (PRUNEX_ROOT), or store: a torch.distributed
    Store, or any object with ``set(key, bytes)`` and ``get(key)`` that waits. node_id: ranks with
    equal texts share memory. name tells communicators on one store or root apart. timeout: seconds
    or timedelta, of start-up and every call (PRUNEX_TIMEOUT, 1800).

    Timeout if a rank does not come, naming it. A context manager; also closed when collected. Not
    to be used after a fork.

    Ctrl-C ends a wait on the main thread within a moment. The call itself goes on: it may still
    write its buffers, which are kept alive, and later calls queue behind it. :meth:`close` then gives
    the communicator up, and the other ranks get PeerLost; where all ranks carry on together, it need
    not be closed.
    """

    def __init__(
        self,
        rank: Optional[int] = None,
        size: Optional[int] = None,
        root: Optional[str] = None,
        node_id: Optional[str] = None,
        store: Any = None,
        name: Optional[str] = None,
        timeout: Union[None, float, timedelta] = None,
    ) -> None:
        self._handle = 0
        self._in_flight = InFlight()
        if (rank is None) != (size is None):
            raise InvalidArgument(f"rank is {rank} and size is {size}: give both or neither")
        adapter = None
        if store is not None:
            adapter = StoreAdapter(store, name or "default", rank)
        config = _api.CommConfig(
            rank=-1 if rank is None else int(rank),
            size=-1 if size is None else int(size),
            root=root.encode() if root else None,
            node_id=node_id.encode() if node_id else None,
            store=ctypes.pointer(adapter.table) if adapter else None,
            name=name.encode() if name else None,
            timeout_s=seconds_of(timeout),
        )
        out = ctypes.c_uint64()
        functions = library()

        def create() -> int:
            return functions.prunex_comm_create(ctypes.byref(config), ctypes.byref(out))

        def undo() -> None:
            functions.prunex_comm_abort(out.value)
            functions.prunex_comm_destroy(out.value)

        try:
            run(create, undo)
        except Exception as error:
            if adapter is not None and adapter.error is not None:
                raise error from adapter.error
            raise
        self._handle = out.value
        info = _api.CommInfo()
        check(library().prunex_comm_info(self._handle, ctypes.byref(info)))
        self.rank: int = info.rank
        self.size: int = info.size
        self.node: int = info.node
        self.num_nodes: int = info.num_nodes
        self.local_rank: int = info.local_rank
        self.local_size: int = info.local_size
        self.leader: int = info.leader
        self.is_leader: bool = bool(info.is_leader)
        self.rails: int = info.rails
        self.transport: str = info.transport.decode()

    @property
    def handle(self) -> int:
        """The library's handle; InvalidHandle once closed."""
        if not self._handle:
            raise InvalidHandle("the communicator is closed")
        return self._handle

    # ---- reduction

    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        op: str = "sum",
        layout: Optional[Layout] = None,
        scope: str = "world",
        async_op: bool = False,
        stream: Any = None,
    ) -> Any:
        """Reduces send of all ranks into recv of all ranks; recv None: in place.

        send, recv: contiguous numpy arrays or torch tensors of equal length and type; send may
        be None on ranks that lead no node where scope is "leaders". op: sum, avg, max, min or prod;
        of booleans sum is "any" and prod is "all".
        layout: where the masks are; None: by the address of send, dense if nothing is registered
        there. scope: "world", "node" (the ranks of one node), "leaders" (one contribution per node,
        the result on every rank).

        CUDA tensors, both on one device, are reduced on a CUDA stream: a torch.cuda.Stream, its
        number, or None for the device's current one. The call returns once it is enqueued, also as
        a Request, and the host does not wait for it. Unsupported where libprunex-cuda.so or NCCL is
        missing: see prunex_all_reduce in prunex.h.

        Returns recv; with async_op a :class:`Request` at once. Mismatch if ranks disagree, buffers
        untouched; Timeout and PeerLost end the communicator.
        """
        if layout is not None and not isinstance(layout, Layout):
            raise InvalidArgument(f"layout is a {type(layout).__name__}; a prunex.Layout is needed")
        target = send if recv is None else recv
        name = "recv" if recv is not None else "send"
        to = contiguous_memory(target, name, writable=True, cuda=True)
        at = to
        if send is None:
            at = to._replace(address=0)
        elif recv is not None:
            at = contiguous_memory(send, "send", writable=False, cuda=True)
            if at.count != to.count or at.dtype != to.dtype:
                raise InvalidArgument(
                    f"send has {at.count} elements of type {dtype_name(at.dtype)}, recv {to.count} "
                    f"of {dtype_name(to.dtype)}"
                )
        return self._start(
            lambda call: library().prunex_all_reduce(
                self.handle,
                at.address or None,
                to.address or None,
                to.count,
                to.dtype,
                op_code(op, target),
                0 if layout is None else layout.handle,
                ctypes.byref(call),
            ),
            (send, target),
            target,
            async_op,
            scope,
            stream_of(stream, target),
        )

    def _start(
        self,
        function: Any,
        buffers: Tuple[Any, ...],
        result: Any,
        async_op: bool,
        scope: str = "world",
        stream: Optional[int] = None,
    ) -> Any:
        call = _api.Call(scope=choice(scope, _api.SCOPES, "scope"), stream=stream)
        # On a stream a call only enqueues; there is nothing that a signal would have to end.
        if not async_op and (stream is not None or not on_main_thread()):
            check(function(call))
            return result
        handle = ctypes.c_uint64()
        call.request = ctypes.pointer(handle)
        held = self._in_flight.buffers
        held[id(call)] = buffers  # should a signal's exception come before there is a Request
        try:
            check(function(call))
        except Exception:
            del held[id(call)]
            raise
        request = Request(self._in_flight, handle.value, buffers, result)
        del held[id(call)]
        return request if async_op else request.wait()

    # ---- masks

    def agree_mask(
        self,
        scores: Any,
        keep: Optional[int] = None,
        layer_groups: Optional[Sequence[int]] = None,
        layer_keep: Optional[Sequence[int]] = None,
        weight: float = 1.0,
        incumbents: Any = None,
        hysteresis: float = 0.0,
        mode: str = "topk",
        scope: str = "leaders",
    ) -> np.ndarray:
        """One mask of all nodes from scores of each: booleans, equal on all ranks. Collective.

        scores: one per group, finite and >= 0, taken as float32; those of ranks outside the scope
        are not read. topk: the best of the sum of weight * score, ``keep`` of all, or
        ``layer_keep[l]`` of the next ``layer_groups[l]`` groups for every layer l; ties go to the
        lower index. incumbents: booleans, their sums count 1 + hysteresis times. union and
        intersection: of the groups with a score other than 0.
        """
        if is_torch(scores):
            scores = scores.detach().cpu().numpy()
        values = np.ascontiguousarray(scores, dtype=np.float32)
        if values.ndim != 1:
            raise InvalidArgument(f"scores has shape {values.shape}; one score per group is needed")
        if (layer_groups is None) != (layer_keep is None):
            raise InvalidArgument("layer_groups and layer_keep: give both or neither")
        if mode == "topk" and (keep is None) == (layer_keep is None):
            raise InvalidArgument("topk needs keep, or layer_groups and layer_keep")
        agree = _api.Agree(
            mode=choice(mode, _api.AGREE_MODES, "mode"),
            scope=choice(scope, _api.SCOPES, "scope"),
            weight=float(weight),
            keep=whole(keep or 0, "keep"),
            hysteresis=float(hysteresis),
        )
        if layer_groups is not None and layer_keep is not None:
            if len(layer_groups) != len(layer_keep):
                raise InvalidArgument(
                    f"layer_groups has {len(layer_groups)} entries, layer_keep {len(layer_keep)}"
                )
            sizes = ctypes.c_size_t * max(len(layer_groups), 1)
            agree.layer_groups = sizes(*(whole(g, "layer_groups") for g in layer_groups))
            agree.layer_keep = sizes(*(whole(k, "layer_keep") for k in layer_keep))
            agree.num_layers = len(layer_groups)
        held = None
        if incumbents is not None:
            held = as_bytes(incumbents, "incumbents").reshape(-1)
            if held.size != values.size:
                raise InvalidArgument(
                    f"incumbents has {held.size} entries, scores has {values.size}"
                )
            agree.incumbents = held.ctypes.data
        out = np.zeros(values.size, dtype=np.uint8)
        function, handle = library().prunex_agree_mask, self.handle
        used = values, held, out  # as long as the call, which may outlive this one

        def ask() -> int:
            return function(
                handle, used[0].ctypes.data, values.size, ctypes.byref(agree), used[2].ctypes.data
            )

        run(ask)
        return out != 0

    # ---- the other collectives; Unsupported with a library that lacks them

    def broadcast(self, buffer: Any, root: int = 0, async_op: bool = False) -> Any:
        """Copies buffer of rank root to all ranks. Returns buffer, or a Request."""
        function = optional("prunex_broadcast")
        at = contiguous_memory(buffer, "buffer", writable=True)
        return self._start(
            lambda call: function(
                self.handle, at.address or None, bytes_of(at), root, ctypes.byref(call)
            ),
            (buffer,),
            buffer,
            async_op,
        )

    def all_gather(self, send: Any, recv: Any, async_op: bool = False) -> Any:
        """recv: size times send, in rank order, one after the other. Returns recv, or a Request."""
        function = optional("prunex_all_gather")
        at = contiguous_memory(send, "send", writable=False)
        to = contiguous_memory(recv, "recv", writable=True)
        self._check_parts(at, to, "send", "recv")
        return self._start(
            lambda call: function(
                self.handle,
                at.address or None,
                to.address or None,
                bytes_of(at),
                ctypes.byref(call),
            ),
            (send, recv),
            recv,
            async_op,
        )

    def reduce_scatter(self, send: Any, recv: Any, op: str = "sum", async_op: bool = False) -> Any:
        """send: size parts, one per rank; recv gets the reduction of this rank's part."""
        function = optional("prunex_reduce_scatter")
        at = contiguous_memory(send, "send", writable=False)
        to = contiguous_memory(recv, "recv", writable=True)
        self._check_parts(to, at, "recv", "send")
        return self._start(
            lambda call: function(
                self.handle,
                at.address or None,
                to.address or None,
                to.count,
                to.dtype,
                op_code(op, recv),
                ctypes.byref(call),
            ),
            (send, recv),
            recv,
            async_op,
        )

    def barrier(self) -> None:
        """Returns once all ranks have come."""
        function, handle = optional("prunex_barrier"), self.handle
        run(lambda: function(handle))

    def send(self, buffer: Any, peer: int, tag: int = 0, async_op: bool = False) -> Any:
        """Sends buffer to rank peer, which calls :meth:`recv` with as many bytes and this tag."""
        return self._point(optional("prunex_send"), buffer, peer, tag, async_op, False)

    def recv(self, buffer: Any, peer: int, tag: int = 0, async_op: bool = False) -> Any:
        """Receives into buffer from rank peer. Returns buffer, or a Request."""
        return self._point(optional("prunex_recv"), buffer, peer, tag, async_op, True)

    def _point(
        self, function: Any, buffer: Any, peer: int, tag: int, async_op: bool, writable: bool
    ) -> Any:
        at = contiguous_memory(buffer, "buffer", writable)
        return self._start(
            lambda call: function(
                self.handle, at.address or None, bytes_of(at), peer, tag, ctypes.byref(call)
            ),
            (buffer,),
            buffer,
            async_op,
        )

    def _check_parts(self, part: Memory, whole: Memory, part_name: str, whole_name: str) -> None:
        if part.dtype != whole.dtype or part.count * self.size != whole.count:
            raise InvalidArgument(
                f"{whole_name} has {whole.count} elements of type {dtype_name(whole.dtype)}; "
                f"{self.size} ranks times {part_name}'s {part.count} of type "
                f"{dtype_name(part.dtype)} are needed"
            )

    # ---- about it

    def topology(self) -> str:
        """Nodes, leaders and why, as text."""
        length = ctypes.c_size_t()
        check(library().prunex_comm_topology(self.handle, None, 0, ctypes.byref(length)))
        text = ctypes.create_string_buffer(length.value + 1)
        check(library().prunex_comm_topology(self.handle, text, len(text), ctypes.byref(length)))
        return text.value.decode("utf-8", "replace")

    def stats(self) -> Stats:
        """Counters of this rank."""
        stats = _api.Stats()
        check(library().prunex_stats(self.handle, ctypes.byref(stats)))
        return Stats(*(getattr(stats, field) for field in Stats._fields))

    def async_error(self) -> Optional[Error]:
        """What ended the communicator, without a call and a wait: the exception of the next call;
        None while it can be used. See prunex_comm_get_async_error in prunex.h."""
        state = ctypes.c_int()
        check(optional("prunex_comm_get_async_error")(self.handle, ctypes.byref(state)))
        return last_error(state.value) if state.value else None

    def close(self) -> None:
        """Waits for this rank's calls and frees it. Not collective. May be called again.

        If a wait for one of the calls was broken off (Ctrl-C), the others are not waited for: the
        communicator ends on all ranks.
        """
        handle, self._handle = self._handle, 0
        if handle:
            try:
                if self._in_flight.interrupted:
                    library().prunex_comm_abort(handle)
                check(library().prunex_comm_destroy(handle))
            finally:
                self._in_flight = InFlight()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Communicator belongs to its process and cannot be pickled")

    def __repr__(self) -> str:
        if not self._handle:
            return "Communicator(closed)"
        return (
            f"Communicator(rank={self.rank}, size={self.size}, node={self.node}, "
            f"num_nodes={self.num_nodes}, leader={self.leader}, transport={self.transport!r})"
        )

# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend "prunex"; importing this module registers it.

    import prunex.torch.backend
    torch.distributed.init_process_group("prunex")

CPU tensors travel on PruneX's engine. Of CUDA tensors all-reduces are PruneX's, on a stream of their
own, where libprunex-cuda.so and NCCL are found; the other calls, and all of them where not, go to an
NCCL group made at the first one.
"""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from ..communicator import Communicator, Request
from ..errors import InvalidArgument, Unsupported
from ..layout import Layout
from .backend_cuda import CudaReducer, op_name
from .backend_lacks import add_lacking
from .bucket_masks import BucketMasks
from .masked import MaskedParameters
from .world import Completer, keep_alive

__all__ = ["register_backend", "use_masks", "PrunexProcessGroup"]

_log = logging.getLogger("prunex.torch")


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements in logical order: a view where it is contiguous, else a copy."""
    return tensor.detach().reshape(-1)


def _raw(flat: torch.Tensor) -> torch.Tensor:
    """Bytes of a flat tensor, for calls that only move data: any dtype will do."""
    return (
        torch.view_as_real(flat).reshape(-1).view(torch.uint8)
        if flat.is_complex()
        else (flat.view(torch.uint8))
    )


class _Work(Work):
    """A call in flight; ``finish`` runs once, in the thread that learns the end first.

    completer None: the call takes no turn among the others, so its future gets a thread of its own.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        result: List[torch.Tensor],
        completer: Optional[Completer],
        finish: Optional[Callable[[], None]] = None,
    ) -> None:
        super().__init__()
        self._requests = list(requests)
        self._result = result
        self._completer = completer
        self._finish = finish
        self._lock = threading.Lock()
        self._future: Any = None
        keep_alive(self)

    def _end(self) -> List[torch.Tensor]:
        with self._lock:
            for request in self._requests:
                request.wait()
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()
        return self._result

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the end, at most the group's timeout; raises the call's error."""
        self._end()
        return True

    def is_completed(self) -> bool:
        return all(request.done() for request in self._requests)

    def is_success(self) -> bool:
        return self.is_completed()

    def result(self) -> List[torch.Tensor]:
        return self._result

    def synchronize(self) -> None:
        self._end()

    def get_future(self) -> Any:
        with self._lock:
            if self._future is None:
                last = self._requests[-1] if self._requests else None
                if last is None:
                    self._future = torch.futures.Future()
                    self._future.set_result(self._result)
                else:
                    completer = self._completer or Completer()
                    self._future = completer.future(last, self._end)
                    if self._completer is None:
                        completer.end()
        return self._future


class PrunexProcessGroup(dist.ProcessGroup):
    """A process group on a PruneX communicator, which is at hand as ``.comm``.

    allreduce, broadcast, allgather, reduce_scatter (and their one-tensor forms), barrier, send and
    recv. Tensors that are not contiguous are copied, and the result is written back into them.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch has this one, too
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self.comm = Communicator(rank, size, store=store, name="torch-backend", timeout=timeout)
        self._completer = Completer()
        self._masks: Optional[BucketMasks] = None
        self._cuda = CudaReducer(lambda: self.comm, self._nccl)
        self._nccl_group: Any = None

    def getBackendName(self) -> str:
        return "prunex"

    def shutdown(self) -> None:
        """Waits for calls in flight and closes the communicator."""
        self._completer.close()
        self.comm.close()

    def use_masks(self, masks: Optional[MaskedParameters]) -> None:
        """See :func:`use_masks`."""
        self._masks = None if masks is None else BucketMasks(masks)

    def _nccl(self) -> Any:
        if self._nccl_group is None:
            make = getattr(dist, "ProcessGroupNCCL", None)
            if make is None:
                raise Unsupported("CUDA tensors need a PyTorch with NCCL; this one has none")
            store = dist.PrefixStore("prunex-nccl", self._store)
            self._nccl_group = make(store, self._rank, self._size, self._timeout)
        return self._nccl_group

    def _work(
        self,
        requests: Sequence[Request],
        result: List[torch.Tensor],
        finish: Optional[Callable[[], None]] = None,
    ) -> _Work:
        return _Work(requests, result, self._completer, finish)

    # ---- reductions

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        if tensors[0].is_cuda:
            return self._cuda.allreduce(tensors, opts, self._masks)
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        requests: List[Request] = []
        copies: List[Tuple[torch.Tensor, torch.Tensor]] = []
        for tensor in tensors:
            name = op_name(op, tensor.dtype)
            if tensor.is_sparse:
                raise Unsupported(
                    "the prunex backend reduces dense tensors; use gloo for sparse ones"
                )
            layout = self._layout_of(tensor, name)
            flat = _flat(tensor)
            if flat.is_complex():
                flat = torch.view_as_real(flat).reshape(-1)
            if not tensor.is_contiguous():
                copies.append((tensor, flat))
            requests.append(self.comm.all_reduce(flat, op=name, layout=layout, async_op=True))

        def finish() -> None:
            for tensor, flat in copies:
                tensor.copy_(
                    torch.view_as_complex(flat.view(-1, 2)).view(tensor.shape)
                    if tensor.is_complex()
                    else flat.view(tensor.shape)
                )

        return self._work(requests, tensors, finish)

    def _layout_of(self, tensor: torch.Tensor, op: str) -> Optional[Layout]:
        if self._masks is None or op not in ("sum", "avg"):
            return None
        return self._masks.layout_of(tensor)

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def reduce_scatter(  # type: ignore[override]
        self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any = None
    ) -> Any:
        if outputs[0].is_cuda:
            return self._nccl().reduce_scatter(outputs, inputs, opts)
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        requests: List[Request] = []
        copies: List[Tuple[torch.Tensor, torch.Tensor]] = []
        for output, parts in zip(outputs, inputs):
            if len(parts) != self._size or any(p.numel() != output.numel() for p in parts):
                raise InvalidArgument(
                    f"reduce_scatter needs {self._size} inputs of the output's {output.numel()} "
                    "elements each"
                )
            self._scatter(torch.cat([_flat(p) for p in parts]), output, op, requests, copies)
        return self._work(requests, outputs, lambda: _write_back(copies))

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        if output.is_cuda:
            return self._nccl()._reduce_scatter_base(output, source, opts)
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        requests: List[Request] = []
        copies: List[Tuple[torch.Tensor, torch.Tensor]] = []
        self._scatter(_flat(source), output, op, requests, copies)
        return self._work(requests, [output], lambda: _write_back(copies))

    def _scatter(
        self,
        flat: torch.Tensor,
        output: torch.Tensor,
        op: Any,
        requests: List[Request],
        copies: List[Tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        target = _flat(output)
        requests.append(
            self.comm.reduce_scatter(flat, target, op=op_name(op, output.dtype), async_op=True)
        )
        if not output.is_contiguous():
            copies.append((output, target))

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    # ---- calls that move data

    def broadcast(self, tensors: List[torch.Tensor], opts: Any = None) -> Any:  # type: ignore[override]
        if tensors[0].is_cuda:
            return self._nccl().broadcast(tensors, opts)
        root = 0 if opts is None else int(opts.rootRank)
        requests: List[Request] = []
        copies: List[Tuple[torch.Tensor, torch.Tensor]] = []
        for tensor in tensors:
            flat = _flat(tensor)
            requests.append(self.comm.broadcast(_raw(flat), root, async_op=True))
            if not tensor.is_contiguous():
                copies.append((tensor, flat))
        return self._work(requests, tensors, lambda: _write_back(copies))

    def allgather(  # type: ignore[override]
        self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None
    ) -> Any:
        if inputs[0].is_cuda:
            return self._nccl().allgather(outputs, inputs, opts)
        requests: List[Request] = []
        copies: List[Tuple[torch.Tensor, torch.Tensor]] = []
        for parts, tensor in zip(outputs, inputs):
            if len(parts) != self._size or any(
                p.numel() != tensor.numel() or p.dtype != tensor.dtype for p in parts
            ):
                raise InvalidArgument(
                    f"all_gather needs {self._size} outputs like the input of {tensor.numel()} "
                    f"elements of {tensor.dtype}"
                )
            flat = _flat(tensor)
            whole = flat.new_empty(self._size * flat.numel())
            requests.append(self.comm.all_gather(_raw(flat), _raw(whole), async_op=True))
            copies.extend(zip(parts, whole.chunk(self._size) if flat.numel() else []))
        return self._work(
            requests, [p for parts in outputs for p in parts], lambda: _write_back(copies)
        )

    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        if output.is_cuda:
            return self._nccl()._allgather_base(output, source, opts)
        if output.numel() != self._size * source.numel() or output.dtype != source.dtype:
            raise InvalidArgument(
                f"all_gather of {source.numel()} elements of {source.dtype} from {self._size} ranks "
                f"into {output.numel()} of {output.dtype}"
            )
        flat, target = _flat(source), _flat(output)
        request = self.comm.all_gather(_raw(flat), _raw(target), async_op=True)
        copies = [] if output.is_contiguous() else [(output, target)]
        return self._work([request], [output], lambda: _write_back(copies))

    _allgather_base = all_gather_single  # type: ignore[assignment]

    def all_gather_single_coalesced(
        self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None
    ) -> Any:
        works = [self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs)]
        return self._joined(works, outputs)

    def reduce_scatter_single_coalesced(
        self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None
    ) -> Any:
        works = [self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs)]
        return self._joined(works, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    def _joined(self, works: Sequence[_Work], result: List[torch.Tensor]) -> Any:
        requests = [request for work in works for request in work._requests]

        def finish() -> None:
            for work in works:
                work._end()

        return self._work(requests, result, finish)

    def barrier(self, opts: Any = None) -> Any:
        self.comm.barrier()
        return self._work([], [])

    def send(self, tensors: List[torch.Tensor], peer: int, tag: int = 0) -> Any:
        if tensors[0].is_cuda:
            return self._nccl().send(tensors, peer, tag)
        requests = [
            self.comm.send(_raw(_flat(tensor)), peer, tag, async_op=True) for tensor in tensors
        ]
        return _Work(requests, tensors, None)

    def recv(self, tensors: List[torch.Tensor], peer: int, tag: int = 0) -> Any:
        if tensors[0].is_cuda:
            return self._nccl().recv(tensors, peer, tag)
        requests: List[Request] = []
        copies: List[Tuple[torch.Tensor, torch.Tensor]] = []
        for tensor in tensors:
            flat = _flat(tensor)
            requests.append(self.comm.recv(_raw(flat), peer, tag, async_op=True))
            if not tensor.is_contiguous():
                copies.append((tensor, flat))
        return _Work(requests, tensors, None, lambda: _write_back(copies))


def _write_back(copies: Sequence[Tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for tensor, flat in copies:
            tensor.copy_(flat.view(tensor.shape))


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> PrunexProcessGroup:
    return PrunexProcessGroup(store, rank, size, timeout)


def register_backend() -> None:
    """Makes "prunex" known to torch.distributed; done once, when this module is imported."""
    if hasattr(dist.Backend, "PRUNEX"):
        return
    try:
        dist.Backend.register_backend("prunex", _create, devices=["cpu", "cuda"])
    except TypeError:  # torch before 2.0 asks for no devices
        dist.Backend.register_backend("prunex", _create)


def use_masks(masks: Optional[MaskedParameters], group: Any = None) -> None:
    """Masks for DDP on the prunex backend without a hook: all-reduces of buckets with gradients
    of masked parameters send what the masks keep. None: no masks.

    Needs DDP(gradient_as_bucket_view=True): only then do gradients lie in the buckets, where they
    are found. Otherwise, and with find_unused_parameters, register prunex_hook. All ranks must do
    the same.
    """
    group = group or dist.distributed_c10d._get_default_group()
    if not isinstance(group, PrunexProcessGroup):
        raise InvalidArgument("use_masks needs a group of init_process_group('prunex')")
    if not isinstance(masks, (type(None), MaskedParameters)):
        raise InvalidArgument(f"masks is a {type(masks).__name__}; wanted a MaskedParameters")
    group.use_masks(masks)


add_lacking(PrunexProcessGroup)
register_backend()

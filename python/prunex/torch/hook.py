# SPDX-License-Identifier: Apache-2.0
"""The communication hook for DistributedDataParallel.

from prunex.torch import MaskedParameters, PrunexState, prunex_hook
state = PrunexState(masks=MaskedParameters(model).from_prune(model))
ddp.register_comm_hook(state, prunex_hook)
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

import torch
import torch.distributed as dist
from torch import nn

from ..communicator import Communicator
from ..errors import InvalidArgument
from ..layout import Layout
from ..masks import Mask
from ..stats import Stats
from .bucket_masks import Dropped, MaskCache
from .device import DevicePath
from .masked import MaskedParameters
from .world import Completer, communicator, completed, ddp_hook

__all__ = ["PrunexState", "prunex_hook", "checked"]

_log = logging.getLogger("prunex.torch")
_COMPRESS = (None, torch.float16, torch.bfloat16)


class PrunexState:
    """What :func:`prunex_hook` needs: a communicator, masks, and the layouts found so far.

    comm: None: made from torch.distributed's default group at the first use, on all ranks.
    masks: MaskedParameters, a module (no masks yet) or None (dense). compress: torch.float16 or
    torch.bfloat16: fp32 and fp64 gradients travel in that type, kept elements only. group: the
    process group, of the same ranks, that takes what PruneX does not carry: sparse gradients, and
    CUDA gradients where libprunex-cuda.so or NCCL is missing; None: the default group.

    One state serves one DDP model; several may share a communicator as long as all ranks run their
    backwards in the same order. Pickles with its masks, without communicator and model: after
    loading call :meth:`attach`, then register the hook on the new DDP wrapper.
    """

    def __init__(
        self,
        comm: Optional[Communicator] = None,
        masks: Union[None, MaskedParameters, nn.Module] = None,
        compress: Optional[torch.dtype] = None,
        group: Any = None,
    ) -> None:
        if compress not in _COMPRESS:
            raise InvalidArgument(f"compress {compress}: torch.float16, torch.bfloat16 or None")
        if comm is not None and not hasattr(comm, "all_reduce"):
            raise InvalidArgument(
                f"comm is a {type(comm).__name__}, not a Communicator; masks are passed by name: "
                "PrunexState(masks=...)"
            )
        if not isinstance(masks, (type(None), MaskedParameters, nn.Module)):
            raise InvalidArgument(
                f"masks is a {type(masks).__name__}; wanted a MaskedParameters: "
                "masks = MaskedParameters(model); masks.set_all({name: MaskSpec...})"
            )
        self.masks = MaskedParameters(masks) if isinstance(masks, nn.Module) else masks
        self.compress = compress
        self.group = group
        self._comm = comm
        self._device = DevicePath(lambda: self.comm)
        self._reset()

    def _reset(self) -> None:
        self._completer = Completer()
        self._cache = MaskCache()
        self._dropped = Dropped()
        self._said: Set[str] = set()

    @property
    def comm(self) -> Communicator:
        """The communicator, made now if need be (collective)."""
        if self._comm is None:
            self._comm = communicator(name="ddp")
        return self._comm

    def attach(
        self, model: Union[None, nn.Module] = None, comm: Optional[Communicator] = None
    ) -> "PrunexState":
        """Gives a loaded state its model and, unless the default will do, a communicator."""
        if model is not None and self.masks is not None:
            self.masks.bind(model)
        if comm is not None:
            self._comm = comm
            self._device = DevicePath(lambda: self.comm)
        return self

    def stats(self) -> Stats:
        """Counters of the communicator on this rank."""
        return self.comm.stats()

    def close(self) -> None:
        """Frees layouts, masks and the waiting thread; not the communicator. Reusable."""
        self._completer.close()
        self._cache.close()
        self._reset()

    def __getstate__(self) -> Dict[str, Any]:
        return {"masks": self.masks, "compress": self.compress}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.masks = state["masks"]
        self.compress = state["compress"]
        self.group = None
        self._comm = None
        self._device = DevicePath(lambda: self.comm)
        self._reset()

    # ---- layouts

    def _once(self, key: str, text: str, *arguments: Any) -> None:
        if key not in self._said:
            self._said.add(key)
            _log.warning("prunex: " + text, *arguments)

    def layout_of(self, bucket: Any, dtype: torch.dtype) -> Optional[Layout]:
        """The layout of a bucket, by content: which parameters, in which order and memory order.

        None: nothing in it is masked. Never by address: DDP reuses addresses for other layouts.
        """
        masks = self.masks
        if masks is None or not len(masks):
            return None
        self._cache.fresh(masks.version)
        parameters = bucket.parameters()
        count = bucket.buffer().numel()
        key = (dtype, count, tuple([(id(p), p.stride()) for p in parameters]))
        if key in self._cache:
            return self._cache.layout(key)
        return self._cache.keep(key, self._segments(masks, bucket, parameters, dtype), count)

    def _segments(
        self,
        masks: MaskedParameters,
        bucket: Any,
        parameters: List[torch.Tensor],
        dtype: torch.dtype,
    ) -> List[Tuple[int, int, Optional[Mask]]]:
        if not len(list(masks)):
            raise InvalidArgument("this PrunexState was loaded: call state.attach(model) first")
        base = bucket.buffer()
        segments: List[Tuple[int, int, Optional[Mask]]] = []
        end = 0
        for parameter, gradient in zip(parameters, bucket.gradients()):
            length = parameter.numel()
            offset = end
            if length:
                offset = (gradient.data_ptr() - base.data_ptr()) // base.element_size()
            end = offset + length
            name = masks.name_of(parameter)
            if name is None:
                self._once(
                    "unknown",
                    "a bucket holds a parameter of shape %s that the masks do not know; it is "
                    "reduced densely. Call masks.bind(model) after replacing parameters",
                    tuple(parameter.shape),
                )
                continue
            spec = masks.spec(name)
            if spec is not None:
                segments.append((offset, length, self._cache.mask(name, spec, parameter, dtype)))
        return segments


@ddp_hook
def prunex_hook(state: PrunexState, bucket: Any) -> Any:
    """Averages a bucket over all ranks, sending what the masks keep. For ``register_comm_hook``.

    Returns a torch.futures.Future of the bucket's own buffer, divided by the world size once. The
    call runs behind the rest of the backward; the last bucket, with nothing left to hide it, is
    waited for here. CUDA gradients are reduced on a stream beside that of the backward, and nobody
    waits on the host, save for masks whose zeros are checked (lossless, sampled when due). An error
    of the call is raised by ``backward()``.
    """
    if not isinstance(state, PrunexState):
        raise InvalidArgument(
            f"the hook's state is a {type(state).__name__}; register it as "
            "register_comm_hook(PrunexState(masks=...), prunex_hook)"
        )
    buffer = bucket.buffer()
    if buffer.layout != torch.strided:
        return _sparse(state, buffer)
    if buffer.is_complex():
        flat = torch.view_as_real(buffer).reshape(-1)
        return _reduce(state, bucket, flat, None, lambda: buffer)
    compress = state.compress
    if compress is not None and buffer.dtype in (torch.float32, torch.float64):
        layout = state.layout_of(bucket, compress)
        if compress == torch.float16:
            # A mean of fp16 travels half the way in fp32, lest sums overflow; divided first they
            # cannot, and all of it travels in fp16, as in PyTorch's fp16_compress_hook.
            small, op = (buffer / state.comm.size).to(compress), "sum"
        else:
            small, op = buffer.to(compress), "avg"
        return _reduce(state, bucket, small, layout, lambda: buffer.copy_(small), op)
    return _reduce(state, bucket, buffer, state.layout_of(bucket, buffer.dtype), lambda: buffer)


def _reduce(
    state: PrunexState,
    bucket: Any,
    flat: torch.Tensor,
    layout: Optional[Layout],
    finish: Callable[[], torch.Tensor],
    op: str = "avg",
) -> Any:
    if flat.is_cuda:
        return _reduce_cuda(state, bucket, flat, layout, finish, op)
    comm = state.comm
    if bucket.is_last():
        comm.all_reduce(flat, op=op, layout=layout)
        return completed(finish())
    request = comm.all_reduce(flat, op=op, layout=layout, async_op=True)
    return state._completer.future(request, finish)


def _reduce_cuda(
    state: PrunexState,
    bucket: Any,
    flat: torch.Tensor,
    layout: Optional[Layout],
    finish: Callable[[], torch.Tensor],
    op: str,
) -> Any:
    work = state._device.all_reduce(flat, op, layout, finish)
    if work is not None:
        return work.get_future()
    # Divided first, as PyTorch does it: sums of fp16 must not overflow.
    if op == "avg":
        flat.div_(state.comm.size)
    places = [] if state.masks is None else list(zip(bucket.parameters(), bucket.gradients()))

    def end(done: Any) -> torch.Tensor:
        done.value()
        result = finish()
        if state.masks is not None:
            state._dropped.clear(state.masks, places)
        return result

    return _all_reduce(state, flat).get_future().then(end)


def _all_reduce(state: PrunexState, tensor: torch.Tensor) -> Any:
    """A sum by torch.distributed itself, under way."""
    size = dist.get_world_size(state.group)
    if size != state.comm.size:
        raise InvalidArgument(
            f"the process group has {size} ranks, PruneX's communicator {state.comm.size}: pass "
            "PrunexState(group=...) of the communicator's ranks"
        )
    return dist.all_reduce(tensor, group=state.group, async_op=True)


def _sparse(state: PrunexState, tensor: torch.Tensor) -> Any:
    """Sparse gradients go through the process group's own all-reduce."""
    state._once(
        "sparse", "sparse gradients go through torch.distributed; PruneX carries dense ones"
    )
    size = state.comm.size
    return _all_reduce(state, tensor).get_future().then(lambda done: done.value()[0].div_(size))


def checked(hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The same hook, whose result is checked before DDP sees it.

    A future of a tensor of another length or dtype than the bucket ends the backward with an error
    that says so, where DDP would copy it over the gradients, or read past its end.
    """

    def checked_hook(state: Any, bucket: Any) -> Any:
        buffer = bucket.buffer()
        label = getattr(hook, "__name__", repr(hook))

        def check(done: Any) -> torch.Tensor:
            value = done.value()
            value = value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
            if not torch.is_tensor(value):
                raise InvalidArgument(f"{label} returned a {type(value).__name__}, not a tensor")
            if value.numel() != buffer.numel() or value.dtype != buffer.dtype:
                raise InvalidArgument(
                    f"{label} returned {value.numel()} elements of {value.dtype}; the bucket has "
                    f"{buffer.numel()} of {buffer.dtype}"
                )
            return value

        return hook(state, bucket).then(check)

    checked_hook.__name__ = f"checked_{getattr(hook, '__name__', 'hook')}"
    return ddp_hook(checked_hook)

# SPDX-License-Identifier: Apache-2.0
"""Other ways to make gradients smaller, as DDP hooks on the same communicator, for comparison.

ddp.register_comm_hook(DenseState(comm), dense_hook)
ddp.register_comm_hook(TopKState(comm, density=0.01), topk_hook)
state, hook = powersgd(rank=4); ddp.register_comm_hook(state, hook)
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Optional, Tuple

import torch

from ..communicator import Communicator
from ..errors import InvalidArgument
from .world import Completer, communicator, completed, ddp_hook

__all__ = ["DenseState", "dense_hook", "TopKState", "topk_hook", "powersgd"]


class DenseState:
    """What :func:`dense_hook` needs. comm None: of torch.distributed's default group."""

    def __init__(self, comm: Optional[Communicator] = None) -> None:
        self._comm = comm
        self.completer = Completer()

    @property
    def comm(self) -> Communicator:
        """The communicator, made now if need be (collective)."""
        if self._comm is None:
            self._comm = communicator(name="baseline")
        return self._comm

    def __getstate__(self) -> Dict[str, Any]:
        return {}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self._comm = None
        self.completer = Completer()


@ddp_hook
def dense_hook(state: DenseState, bucket: Any) -> Any:
    """The mean of whole buckets: PruneX's hierarchical all-reduce without masks."""
    buffer = bucket.buffer()
    if bucket.is_last():
        return completed(state.comm.all_reduce(buffer, op="avg"))
    request = state.comm.all_reduce(buffer, op="avg", async_op=True)
    return state.completer.future(request, lambda: buffer)


class TopKState(DenseState):
    """What :func:`topk_hook` needs.

    density: share of a bucket's elements that each rank sends, above 0 and up to 1. start: this
    many first iterations are dense. always: also where that takes more bytes than the dense buffer
    (values and indices of all ranks); otherwise such buckets go dense. Error feedback is kept per
    parameter, so that rebuilt buckets find theirs; it takes the memory of one gradient and is not
    pickled: a loaded state starts with none.
    """

    def __init__(
        self,
        comm: Optional[Communicator] = None,
        density: float = 0.01,
        start: int = 0,
        always: bool = False,
    ) -> None:
        super().__init__(comm)
        if not 0 < density <= 1:
            raise InvalidArgument(f"density {density}: a share above 0 and up to 1")
        self.density = float(density)
        self.start = int(start)
        self.always = bool(always)
        self.iteration = 0
        # By identity; the parameter is held, so that its identity stays its own.
        self._errors: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}

    def error_of(self, parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What this rank has not sent yet of a parameter's gradient, flat, in bucket order."""
        found = self._errors.get(id(parameter))
        if found is None or found[1].dtype != dtype or found[1].numel() != parameter.numel():
            found = (parameter, torch.zeros(parameter.numel(), dtype=dtype))
            self._errors[id(parameter)] = found
        return found[1]

    def __getstate__(self) -> Dict[str, Any]:
        keys = ("density", "start", "always", "iteration")
        return {key: getattr(self, key) for key in keys}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__({})
        self.__dict__.update(state)
        self._errors = {}


@ddp_hook
def topk_hook(state: TopKState, bucket: Any) -> Any:
    """Each rank's largest elements by magnitude, with error feedback; the mean of what was sent.

    Travels as an all-gather of k values and k indices per rank: k * (4 + element size) bytes each.
    Buckets whose k would not shrink that below the dense buffer go dense, unless the state says
    always.
    """
    buffer = bucket.buffer()
    iteration, last = state.iteration, bucket.is_last()
    if last:
        state.iteration += 1
    count = buffer.numel()
    k = max(1, math.ceil(state.density * count))
    pays = k * (4 + buffer.element_size()) * state.comm.size < 2 * count * buffer.element_size()
    pays = pays or state.always
    if iteration < state.start or count == 0 or count >= 2**31 or not pays:
        return dense_hook(state, bucket)
    errors = [state.error_of(p, buffer.dtype) for p in bucket.parameters()]
    buffer += torch.cat(errors)
    indices = torch.topk(buffer.abs(), k, sorted=False).indices
    values = buffer[indices]
    rest = buffer.clone()
    rest[indices] = 0
    for error, part in zip(errors, rest.split([e.numel() for e in errors])):
        error.copy_(part)
    # One message: indices, then values, as bytes.
    message = torch.cat([indices.to(torch.int32).view(torch.uint8), values.view(torch.uint8)])
    gathered = message.new_empty(state.comm.size * message.numel())

    def spread() -> torch.Tensor:
        buffer.zero_()
        # In rank order: the same sums, bit by bit, on all ranks.
        for part in gathered.split(message.numel()):
            at = part[: 4 * k].clone().view(torch.int32).long()
            buffer.index_add_(0, at, part[4 * k :].clone().view(buffer.dtype))
        return buffer.div_(state.comm.size)

    if last:
        state.comm.all_gather(message, gathered)
        return completed(spread())
    return state.completer.future(state.comm.all_gather(message, gathered, async_op=True), spread)


def powersgd(
    rank: int = 1,
    group: Any = None,
    start: int = 2,
    min_compression_rate: float = 2.0,
    seed: int = 0,
) -> Tuple[Any, Callable[[Any, Any], Any]]:
    """PyTorch's own PowerSGD: (state, hook) for ``register_comm_hook``.

    rank: of the approximation of each matrix. start: dense iterations before it, at least 2 (DDP
    rebuilds its buckets in the second). Runs on the process group, so its bytes go through PruneX
    only where the group's backend is "prunex".

    A bucket of CPU gradients is waited for before the next one starts: PowerSGD's later all-reduces
    are started by whichever thread completes the earlier ones, and with several buckets in flight
    two ranks would start them in different orders.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    if start < 2:
        raise InvalidArgument(
            f"start {start}: PowerSGD with warm start needs at least 2 iterations"
        )
    state = powerSGD_hook.PowerSGDState(
        process_group=group,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=start,
        min_compression_rate=min_compression_rate,
        random_seed=seed,
    )

    @ddp_hook
    def powersgd_hook(state: Any, bucket: Any) -> Any:
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        return future if bucket.buffer().is_cuda else completed(future.wait())

    return state, powersgd_hook

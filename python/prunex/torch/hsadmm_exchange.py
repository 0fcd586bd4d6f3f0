# SPDX-License-Identifier: Apache-2.0
"""What H-SADMM sends: means over a node, over leaders (compacted by masks) and over the world."""

from __future__ import annotations

import time
from typing import Any, Callable, Mapping

import numpy as np
import torch
import torch.distributed as dist

from prunex.torch.hsadmm_state import State
from prunex.torch.projection import Budget, choose, specs


def default_comm() -> Any:
    """The communicator of torch.distributed's default group, made now (collective); None where there
    is no such group, or it has one rank."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    from prunex.torch.world import communicator

    return communicator(name="hsadmm")


class Exchange:
    """One communicator's part in H-SADMM. comm None: one process, nothing is sent.

    comm is a prunex.Communicator; library, prunex itself, has register_mask and Layout. Masks of
    the exchange use the contract "project": dropped places of the result are +0. Buffers on a
    device are reduced there, by NCCL and the library's kernels; where a rank lacks what that takes,
    they go through host memory, and one line says so. seconds: time spent in calls, waiting
    included; of a device only what is enqueued.
    """

    def __init__(self, comm=None, library=None) -> None:
        self.comm = comm
        self.rank: int = comm.rank if comm else 0
        self.size: int = comm.size if comm else 1
        self.M = comm.num_nodes if comm else 1
        self.P = comm.local_size if comm else 1
        self.seconds = 0.0
        self._library = library
        self._masks: dict[str, Any] = {}
        self._layout = None
        self._device = None

    # ---- reductions

    def _reduce(self, send, recv, op: str, scope: str, layout=None) -> torch.Tensor:
        start = time.perf_counter()
        if recv.device.type == "cpu":
            self.comm.all_reduce(send, recv, op=op, scope=scope, layout=layout)
        elif (end := self._begin_on_device(send, recv, op, scope, layout)) is not None:
            end()
        else:
            host = send.cpu()
            self.comm.all_reduce(host, host, op=op, scope=scope, layout=layout)
            recv.copy_(host)
        self.seconds += time.perf_counter() - start
        return recv

    def _begin_on_device(self, send, recv, op: str, scope: str, layout) -> Any:
        """What makes the current stream wait for it; None: not possible, on no rank."""
        if self._device is None:
            from prunex.torch.device import DevicePath

            self._device = DevicePath(lambda: self.comm, instead="way of host memory")
        return self._device.reduce(send, recv, op, scope, layout)

    def node_mean(self, send: torch.Tensor, recv: torch.Tensor) -> torch.Tensor:
        """recv: mean of send over the ranks of this node, on all of them; send stays."""
        if self.size == 1:
            return recv.copy_(send)
        return self._reduce(send, recv, "avg", "node")

    def begin_leaders_mean(self, send: torch.Tensor, recv: torch.Tensor) -> Callable[[], None]:
        """Begins recv: the mean over nodes of the leaders' flat buffers, compacted, on every rank.
        Returns what waits for it; until then send is not to be written and recv not to be touched.

        What is computed meanwhile counts as seconds of the call if the call still goes on after it.
        """
        if self.size == 1:
            recv.copy_(send)
            return lambda: None
        start = time.perf_counter()
        on_host = send.device.type == "cpu"
        if not on_host:
            enqueued = self._begin_on_device(send, recv, "avg", "leaders", self._layout)
            if enqueued is not None:
                self.seconds += time.perf_counter() - start
                return enqueued
        from_, into = (send, recv) if on_host else (send.cpu(), torch.empty(recv.shape, dtype=recv.dtype))
        request = self.comm.all_reduce(
            from_, into, op="avg", scope="leaders", layout=self._layout, async_op=True
        )
        begun = time.perf_counter()

        def end() -> None:
            waited = time.perf_counter()
            if request.done():
                self.seconds += begun - start
            else:
                waited = start
            request.wait()
            if not on_host:
                recv.copy_(into)
            self.seconds += time.perf_counter() - waited

        return end

    def world_sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks, in place."""
        return self._reduce(tensor, tensor, "sum", "world") if self.size > 1 else tensor

    def world_mean_(self, tensor: torch.Tensor, masked: bool = False) -> torch.Tensor:
        """Mean over all ranks, in place; masked: of the flat buffer, compacted."""
        if self.size == 1:
            return tensor
        return self._reduce(tensor, tensor, "avg", "world", self._layout if masked else None)

    def from_rank_0_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's values on every rank."""
        if self.size > 1 and self.rank != 0:
            tensor.zero_()
        return self.world_sum_(tensor)

    # ---- masks

    def agree(
        self, scores: np.ndarray, limits: Budget, incumbents, hysteresis: float
    ) -> np.ndarray:
        """Step 3: the kept groups, chosen from the sum of the nodes' scores, equal on all ranks."""
        if self.comm is None:
            return choose(scores, limits, incumbents, hysteresis)
        start = time.perf_counter()
        keep = self.comm.agree_mask(
            scores,
            layer_groups=list(limits.layer_groups),
            layer_keep=list(limits.layer_keep),
            incumbents=incumbents,
            hysteresis=hysteresis,
        )
        self.seconds += time.perf_counter() - start
        return np.asarray(keep, bool)

    def use_masks(self, state: State, epoch: int) -> None:
        """Lays the state's masks over its flat buffer; the layout is made once."""
        if self.comm is None:
            return
        described = specs(state.families, state.masks, state.shapes, epoch=epoch)
        if self._layout is None:
            self._make_layout(state, described)
            return
        for name, mask in self._masks.items():
            mask.update(described[name])

    def _make_layout(self, state: State, described: Mapping) -> None:
        library = self._library
        if library is None:
            import prunex as library
        segments = []
        for i, name in enumerate(state.names):
            count = state.offsets[i + 1] - state.offsets[i]
            mask = None
            if name in described:
                mask = library.register_mask(
                    None,
                    described[name],
                    shape=state.shapes[name],
                    strides=state.strides[i],
                    dtype=state.dtype,
                    name=name,
                )
                self._masks[name] = mask
            if count:
                segments.append((state.offsets[i], count, mask))
        self._layout = library.Layout(segments, state.count)

    def close(self) -> None:
        """Gives layout and masks back; the communicator stays the caller's."""
        if self._layout is not None and hasattr(self._layout, "close"):
            self._layout.close()
        for mask in self._masks.values():
            mask.close()
        self._layout, self._masks = None, {}

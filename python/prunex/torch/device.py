# SPDX-License-Identifier: Apache-2.0
"""All-reduces of CUDA tensors by the library's device path, ordered as PyTorch orders NCCL's.

Everything that this package asks of CUDA through PyTorch is in :class:`TorchCuda`.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, Callable, Dict, Optional, Sequence

import numpy as np
import torch
from torch._C._distributed_c10d import Work

from .._library import check, optional
from ..communicator import Communicator
from ..errors import Unsupported
from ..layout import Layout
from .world import keep_alive

__all__ = ["TorchCuda", "DevicePath", "DeviceWork"]

_log = logging.getLogger("prunex.torch")


class TorchCuda:
    """PyTorch's streams, events and futures of a device; tests put others in their place."""

    def current_stream(self, device: torch.device) -> Any:
        return torch.cuda.current_stream(device)

    def new_stream(self, device: torch.device) -> Any:
        return torch.cuda.Stream(device)

    def use(self, stream: Any) -> Any:
        """A context in which the stream, and its device, are the current ones."""
        return torch.cuda.stream(stream)

    def keep_for(self, tensor: torch.Tensor, stream: Any) -> None:
        """Its memory is not used again before what the stream has to do by now is done."""
        tensor.record_stream(stream)

    def event_on(self, stream: Any) -> Any:
        return stream.record_event()

    def new_future(self, device: torch.device) -> Any:
        """Its set_result notes how far the current stream is; who waits makes his wait for that."""
        return torch.futures.Future(devices=[device])


class DeviceWork(Work):
    """A call on a stream: wait() makes the current stream wait, and not the host, as NCCL's."""

    def __init__(self, cuda: TorchCuda, event: Any, future: Any, device: torch.device) -> None:
        super().__init__()
        self._cuda, self._event, self._future, self._device = cuda, event, future, device
        keep_alive(self)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._cuda.current_stream(self._device).wait_event(self._event)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return bool(self._event.query())

    def is_success(self) -> bool:
        return self.is_completed()

    def result(self) -> Any:
        return self._future.value()

    def get_future(self) -> Any:
        return self._future


class DevicePath:
    """The device path of one communicator, and whether its ranks have it.

    Calls are enqueued on a stream of this object, behind what the current stream has to do by then,
    in the thread that asks: their order among other users of NCCL is the same on all ranks.
    """

    def __init__(
        self,
        comm: Callable[[], Communicator],
        cuda: Optional[TorchCuda] = None,
        instead: str = "torch.distributed's own backend, dense",
    ) -> None:
        """instead: who reduces where this cannot."""
        self._comm = comm
        self._instead = instead
        self.cuda = cuda or TorchCuda()
        self._streams: Dict[torch.device, Any] = {}
        self._has: Optional[bool] = None
        self._proved = False

    def available(self) -> bool:
        """Whether all ranks have what it takes; asked once, and then a call of all ranks.

        Where not, one line says which rank lacks what.
        """
        if self._has is None:
            comm = self._comm()
            missing = ""
            try:
                check(optional("prunex_device_ready")())
            except Unsupported as error:
                missing = str(error)
            # The first rank that lacks something; none: the size.
            first = np.array([comm.rank if missing else comm.size], dtype=np.int64)
            comm.all_reduce(first, op="min")
            self._has = int(first[0]) == comm.size
            if not self._has:
                self._tell(missing or f"rank {int(first[0])} lacks it")
        return self._has

    def _tell(self, why: str) -> None:
        _log.warning(
            "prunex: CUDA tensors are reduced by %s: %s",
            self._instead,
            why,
        )

    def all_reduce(
        self,
        flat: torch.Tensor,
        op: str,
        layout: Optional[Layout],
        finish: Callable[[], Any],
    ) -> Optional[DeviceWork]:
        """Enqueues the reduction of a contiguous CUDA tensor, in place, and then finish().

        finish runs on the stream of the reduction; its result is the future's. None: the ranks
        cannot do it, all alike, and nothing was done.
        """
        stream = self._behind(flat)
        if stream is None:
            return None
        with self.cuda.use(stream):
            if not self._enqueue(stream, flat, None, op, "world", layout):
                return None
            return self._done(stream, flat.device, finish)

    def reduce(
        self,
        send: torch.Tensor,
        recv: torch.Tensor,
        op: str,
        scope: str,
        layout: Optional[Layout] = None,
    ) -> Optional[Callable[[], None]]:
        """Enqueues the reduction of send into recv; what is returned makes the current stream wait
        for it. None: as above."""
        stream = self._behind(send, recv)
        if stream is None:
            return None
        with self.cuda.use(stream):
            if not self._enqueue(stream, send, recv, op, scope, layout):
                return None
            event = self.cuda.event_on(stream)
        return lambda: self.cuda.current_stream(recv.device).wait_event(event)

    def _behind(self, *tensors: torch.Tensor) -> Any:
        """The stream of this object, behind what the current one has to do; None: not available."""
        if not self.available():
            return None
        device = tensors[0].device
        stream = self._stream(device)
        stream.wait_stream(self.cuda.current_stream(device))
        for tensor in tensors:
            self.cuda.keep_for(tensor, stream)
        return stream

    def _enqueue(self, stream: Any, send: Any, recv: Any, op: str, scope: str, layout: Any) -> bool:
        try:
            self._comm().all_reduce(send, recv, op=op, scope=scope, layout=layout, stream=stream)
        except Unsupported as error:
            # What NCCL lacks is found in the first call, by all ranks alike.
            if self._proved:
                raise
            self._has = False
            self._tell(str(error))
            return False
        self._proved = True
        return True

    def follow(
        self, work: Any, tensors: Sequence[torch.Tensor], finish: Callable[[], Any]
    ) -> DeviceWork:
        """finish(), behind a work of NCCL's on these tensors."""
        device = tensors[0].device
        stream = self._stream(device)
        for tensor in tensors:
            self.cuda.keep_for(tensor, stream)
        with self.cuda.use(stream):
            work.wait()
            return self._done(stream, device, finish)

    def _stream(self, device: torch.device) -> Any:
        if device not in self._streams:
            self._streams[device] = self.cuda.new_stream(device)
        return self._streams[device]

    def _done(self, stream: Any, device: torch.device, finish: Callable[[], Any]) -> DeviceWork:
        future = self.cuda.new_future(device)
        future.set_result(finish())
        return DeviceWork(self.cuda, self.cuda.event_on(stream), future, device)

# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for CUDA and NCCL in this process: ranks are threads, device memory is the host's.

What the library opens as libcuda.so.1, libprunex-cuda.so and libnccl.so.2 are the files in
TEST_STANDINS, loaded here before it looks. Tensors of this module say that they lie on a device,
and do lie in what the stand-in for CUDA gave out as such.
"""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional, Sequence

import pytest
import torch
import torch.distributed as dist

from prunex import Communicator
from prunex.torch.device import TorchCuda

_files = os.environ.get("TEST_STANDINS", "")
if not _files:
    pytest.skip("TEST_STANDINS names no stand-ins; meson test does", allow_module_level=True)
_loaded = {os.path.basename(f): ctypes.CDLL(f) for f in _files.split(":")}
cuda = _loaded["libprunex-cuda.so"]
for _name in ("standin_allocate", "standin_stream", "standin_event"):
    getattr(cuda, _name).restype = ctypes.c_void_p
for _name, _types in {
    "standin_allocate": [ctypes.c_size_t],
    "standin_copy": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p],
    "standin_synchronize": [ctypes.c_void_p],
    "standin_event": [ctypes.c_void_p],
    "standin_event_done": [ctypes.c_void_p],
    "standin_wait_event": [ctypes.c_void_p, ctypes.c_void_p],
}.items():
    getattr(cuda, _name).argtypes = _types

DEVICE = torch.device("cuda", 0)


class OnDevice(torch.Tensor):
    """A tensor that says it lies on a device."""

    is_cuda = True
    device = DEVICE


def on_device(values: torch.Tensor) -> torch.Tensor:
    """A copy in the stand-in's device memory, which is never freed."""
    bytes_ = max(values.numel() * values.element_size(), 1)
    memory = (ctypes.c_char * bytes_).from_address(cuda.standin_allocate(bytes_))
    flat = torch.frombuffer(memory, dtype=values.dtype, count=values.numel())
    flat.copy_(values.reshape(-1))
    return flat.view(values.shape).as_subclass(OnDevice)


def host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)


class Event:
    def __init__(self, stream: "Stream") -> None:
        self.handle = cuda.standin_event(stream.cuda_stream)

    def query(self) -> bool:
        return cuda.standin_event_done(self.handle) == 1


class Stream:
    def __init__(self, log: Optional[List[Any]] = None, name: str = "stream") -> None:
        self.cuda_stream: int = cuda.standin_stream()
        self.log = [] if log is None else log
        self.name = name

    def wait_stream(self, other: "Stream") -> None:
        self.log.append((self.name, "waits for", other.name))
        cuda.standin_wait_event(self.cuda_stream, Event(other).handle)

    def wait_event(self, event: Event) -> None:
        self.log.append((self.name, "waits for an event"))
        cuda.standin_wait_event(self.cuda_stream, event.handle)

    def record_event(self) -> Event:
        self.log.append((self.name, "records an event"))
        return Event(self)

    def copy(self, to: torch.Tensor, values: torch.Tensor) -> None:
        """Enqueues a copy from host memory, which has to stay."""
        cuda.standin_copy(
            to.data_ptr(), values.data_ptr(), to.numel() * to.element_size(), self.cuda_stream
        )

    def synchronize(self) -> None:
        cuda.standin_synchronize(self.cuda_stream)


class Cuda(TorchCuda):
    """Of one rank: the current stream is a thread's own."""

    def __init__(self) -> None:
        self.log: List[Any] = []
        self.main = Stream(self.log, "current")
        self.current = self.main

    def current_stream(self, device: torch.device) -> Stream:
        assert device == DEVICE
        return self.current

    def new_stream(self, device: torch.device) -> Stream:
        return Stream(self.log, "side")

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:  # type: ignore[override]
        before, self.current = self.current, stream
        self.log.append(("use", stream.name))
        try:
            yield
        finally:
            self.current = before
            self.log.append(("use", before.name))

    def keep_for(self, tensor: torch.Tensor, stream: Stream) -> None:
        self.log.append(("keep for", stream.name))

    def event_on(self, stream: Stream) -> Event:
        return stream.record_event()

    def new_future(self, device: torch.device) -> Any:
        outer = self

        class Future(torch.futures.Future):
            def set_result(self, value: Any) -> None:
                outer.log.append(("result on", outer.current.name))
                super().set_result(value)

        return Future()


class Rank:
    def __init__(self, rank: int, comm: Communicator, barrier: threading.Barrier) -> None:
        self.rank, self.comm, self.cuda = rank, comm, Cuda()
        self.barrier = barrier


def run_threads(nodes: Sequence[int], body: Callable[[Rank], Any]) -> List[Any]:
    """body in a thread per rank; the first exception is raised here. Results by rank."""
    store = dist.HashStore()
    barrier = threading.Barrier(len(nodes), timeout=60)
    results: List[Any] = [None] * len(nodes)
    errors: List[BaseException] = []

    def run(rank: int) -> None:
        try:
            with Communicator(
                rank, len(nodes), store=store, node_id=f"node{nodes[rank]}", timeout=30
            ) as comm:
                results[rank] = body(Rank(rank, comm, barrier))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(len(nodes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive(), "a rank hangs"
    real = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
    if real or errors:
        raise (real or errors)[0]
    return results

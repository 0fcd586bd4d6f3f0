# SPDX-License-Identifier: Apache-2.0
"""Communicators over torch.distributed's process groups, and futures completed by requests."""

from __future__ import annotations

import queue
import threading
from collections import deque
from datetime import timedelta
from typing import Any, Callable, Optional, Tuple, Union

import torch
import torch.distributed as dist

from ..communicator import Communicator, Request
from ..errors import InvalidArgument

__all__ = ["communicator", "Completer", "keep_alive"]


def communicator(
    group: Any = None,
    name: Optional[str] = None,
    timeout: Union[None, float, timedelta] = None,
    node_id: Optional[str] = None,
) -> Communicator:
    """A Communicator of the ranks of a process group (None: all), through its store. Collective.

    Rank and size are those in the group. Call init_process_group first; any backend will do.
    """
    if not dist.is_initialized():
        raise InvalidArgument("call torch.distributed.init_process_group first, or pass a comm")
    store = dist.distributed_c10d._get_default_store()
    label = name or "torch"
    if group is not None and group is not dist.group.WORLD:
        ranks = dist.get_process_group_ranks(group)
        label += "-" + "-".join(str(r) for r in ranks)
    return Communicator(
        rank=dist.get_rank(group),
        size=dist.get_world_size(group),
        store=store,
        name=label,
        timeout=timeout,
        node_id=node_id,
    )


class Completer:
    """Completes torch futures when requests end, in the order they were given.

    One thread, which sleeps in the library and exists only once it is needed.
    """

    def __init__(self) -> None:
        self._queue: "queue.SimpleQueue[Optional[Tuple[Request, Any]]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None

    def future(self, request: Request, finish: Callable[[], Any]) -> Any:
        """A torch.futures.Future of finish(), which runs after the request has ended well.

        The future gets the request's error, with its text, otherwise.
        """
        ended: Any = torch.futures.Future()

        # An error raised in a then() reaches DDP's C++ waiter as an error; one passed to
        # set_exception would reach it as a value.
        def end(done: Any) -> Any:
            error = done.value()
            if error is not None:
                raise error
            return finish()

        result = ended.then(end)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="prunex-futures", daemon=True)
            self._thread.start()
        self._queue.put((request, ended))
        return result

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            request, ended = item
            del item
            error: Optional[BaseException] = None
            try:
                request.wait()
            except BaseException as caught:
                error = caught
            ended.set_result(error)
            del request, ended, error

    def end(self) -> None:
        """Lets the thread end after what was given to it, without waiting for that."""
        if self._thread is not None:
            self._thread = None
            self._queue.put(None)

    def close(self) -> None:
        """Ends the thread once everything given to it has ended."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join()


def completed(value: Any) -> Any:
    """A future that has ended already."""
    future: Any = torch.futures.Future()
    future.set_result(value)
    return future


def ddp_hook(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Gives a hook the annotations that DDP compares with its own, as objects and not as text."""
    function.__annotations__ = {
        "bucket": dist.GradBucket,
        "return": torch.futures.Future[torch.Tensor],
    }
    return function


# Old torch (2.0 for one; 2.13 does not) forgets the Python half of a Work that only C++ holds: wait()
# is the base class's then, and never ends.
_FORGETS = tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 6)
_kept: "deque[Any]" = deque()


def keep_alive(work: Any) -> None:
    """Keeps the latest works, where torch needs that."""
    if _FORGETS:
        _kept.append(work)
        while len(_kept) > 16 and _kept[0].is_completed():
            _kept.popleft()

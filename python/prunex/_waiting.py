# SPDX-License-Identifier: Apache-2.0
"""Waiting for the library so that Python's signal handlers run meanwhile, Ctrl-C's above all.

Python runs them on the main thread only, and not while it is inside a C function.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Callable, Dict, List, Optional, Set

from ._library import check, library

_PAUSE_MS = 100  # a person does not notice; ten calls a second cost nothing


class InFlight:
    """Calls of one communicator that have not ended: what they use, and whose wait was broken off."""

    def __init__(self) -> None:
        self.buffers: Dict[Any, Any] = {}
        self.interrupted: Set[int] = set()

    def ended(self, handle: int) -> None:
        self.buffers.pop(handle, None)
        self.interrupted.discard(handle)


def on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def wait_for_request(handle: int, flight: InFlight) -> int:
    """The result code of a request's call. An exception of a signal handler, such as
    KeyboardInterrupt, leaves it under way."""
    if not on_main_thread():
        return library().prunex_request_wait(handle)
    function, done, code = library().prunex_request_wait_for, ctypes.c_int(), 0
    try:
        while code == 0 and not done.value:
            code = function(handle, _PAUSE_MS, ctypes.byref(done))
    except BaseException:
        flight.interrupted.add(handle)
        raise
    return code


def run(function: Callable[[], int], undo: Optional[Callable[[], Any]] = None) -> None:
    """Calls a function of the library that has no request, and raises its error.

    On the main thread it gets a thread of its own. Broken off by a signal handler's exception it goes
    on there to its end, at the latest the deadline; undo then runs if it has ended well.
    """
    if not on_main_thread():
        check(function())
        return
    errors: List[BaseException] = []
    ended = threading.Event()
    lock, given_up = threading.Lock(), [False]

    def call() -> None:
        try:
            check(function())
        except BaseException as error:
            errors.append(error)
        with lock:
            ended.set()
            late = given_up[0]
        if late and not errors and undo is not None:
            undo()

    threading.Thread(target=call, name="prunex-call", daemon=True).start()
    try:
        ended.wait()
    except BaseException:
        with lock:
            given_up[0] = True
            over = ended.is_set()
        if over and not errors and undo is not None:
            undo()
        raise
    if errors:
        raise errors[0]

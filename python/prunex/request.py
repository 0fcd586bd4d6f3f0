# SPDX-License-Identifier: Apache-2.0
"""Calls in flight."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NoReturn, Optional, Tuple

from ._library import check, library
from ._waiting import InFlight, wait_for_request

__all__ = ["Request"]


class Request:
    """A call in flight. Its buffers belong to the library until it is done, and are kept alive.

    Any thread may wait. The first that learns the end gets it from the library; later calls of
    ``wait`` and ``done`` repeat it.
    """

    def __init__(
        self,
        in_flight: InFlight,
        handle: int,
        buffers: Tuple[Any, ...],
        result: Any,
    ) -> None:
        self._in_flight = in_flight
        self._handle = handle
        self._result = result
        self._lock = threading.Lock()
        self._ended = False
        self._error: Optional[BaseException] = None
        in_flight.buffers[handle] = buffers

    def _end(self, code: int) -> None:
        try:
            check(code)
        except Exception as error:
            self._error = error
        self._ended = True
        self._in_flight.ended(self._handle)

    def wait(self) -> Any:
        """Waits for the end, at most the communicator's timeout, and returns the receive buffer.

        Raises what the call raised: Mismatch, Timeout, PeerLost, ... On the main thread signal
        handlers run meanwhile; after one that raises (Ctrl-C) the call goes on, and wait() can be
        called again.
        """
        with self._lock:
            if not self._ended:
                self._end(wait_for_request(self._handle, self._in_flight))
        if self._error is not None:
            raise self._error
        return self._result

    def done(self) -> bool:
        """Whether it has ended, well or not; never waits, and does not raise the call's error."""
        if self._ended:
            return True
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if not self._ended:
                flag = ctypes.c_int()
                code = library().prunex_request_test(self._handle, ctypes.byref(flag))
                if flag.value or code != 0:
                    self._end(code)
            return self._ended
        finally:
            self._lock.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Request is a call in flight of this process and cannot be pickled: wait() for it, and "
            "pickle what it returns"
        )

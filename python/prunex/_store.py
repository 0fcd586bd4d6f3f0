# SPDX-License-Identifier: Apache-2.0
"""A torch.distributed Store, or anything like one, as the library's store callbacks."""

from __future__ import annotations

import ctypes
from datetime import timedelta
from typing import Any, Optional

from . import _api


class StoreAdapter:
    """Callbacks over ``store``; used only while a communicator is made.

    Every creation of a communicator of one name on one store gets a key space of its own, counted
    per rank where the store can add: what an earlier communicator left there is not found again.
    """

    def __init__(self, store: Any, name: str, rank: Optional[int]) -> None:
        self._store = store
        self.error: Optional[BaseException] = None
        self._prefix = "prunex/"
        if rank is not None and hasattr(store, "add"):
            made = int(store.add(f"prunex/made/{name}/{rank}", 1))
            self._prefix = f"prunex/{made}/"
        self._set = _api.STORE_SET(self._on_set)
        self._get = _api.STORE_GET(self._on_get)
        self.table = _api.Store(set=self._set, get=self._get, context=None)

    def _on_set(self, _context: Any, key: bytes, value: int, length: int) -> int:
        try:
            self._store.set(self._prefix + key.decode(), ctypes.string_at(value, length))
            return 0
        except BaseException as error:  # an exception must not cross the C frames
            self.error = error
            return 1

    def _on_get(
        self, _context: Any, key: bytes, value: int, capacity: int, length: Any, timeout_s: float
    ) -> int:
        try:
            name = self._prefix + key.decode()
            if hasattr(self._store, "wait"):
                self._store.wait([name], timedelta(seconds=max(timeout_s, 0.001)))
            found = self._store.get(name)
            data = found.encode() if isinstance(found, str) else bytes(found)
            length[0] = len(data)
            if len(data) > capacity:
                return 2
            ctypes.memmove(value, data, len(data))
            return 0
        except BaseException as error:  # an exception must not cross the C frames
            self.error = error
            return 1

# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class per result code, each also what Python calls such a failure."""

from __future__ import annotations

from typing import Dict, Type

__all__ = [
    "Error",
    "InvalidArgument",
    "InvalidHandle",
    "ConfigError",
    "Mismatch",
    "Timeout",
    "PeerLost",
    "SystemFailure",
    "OutOfMemory",
    "Unsupported",
    "Busy",
    "InternalError",
]


class Error(RuntimeError):
    """A call failed. ``code`` is its prunex_result_t; the text names value and remedy."""

    code: int = -1


class InvalidArgument(Error, ValueError):
    """Fix the call."""

    code = 1


class InvalidHandle(Error):
    """A mask, layout, communicator or request that is unknown or already closed."""

    code = 2


class ConfigError(Error, ValueError):
    """A PRUNEX_* variable cannot be understood."""

    code = 3


class Mismatch(Error):
    """Ranks disagree about a call. Buffers are untouched and the communicator is usable."""

    code = 4


class Timeout(Error, TimeoutError):
    """A rank did not come in time. The communicator is dead; the text names the rank."""

    code = 5


class PeerLost(Error, ConnectionError):
    """A rank died. The communicator is dead; the text names the rank."""

    code = 6


class SystemFailure(Error, OSError):
    """The operating system refused something."""

    code = 7


class OutOfMemory(Error, MemoryError):
    """Memory ran out."""

    code = 8


class Unsupported(Error, NotImplementedError):
    """This build, or this version of the library, cannot do that."""

    code = 9


class Busy(Error):
    """Something is still in use."""

    code = 10


class InternalError(Error):
    """A bug in PruneX."""

    code = 11


_BY_CODE: Dict[int, Type[Error]] = {
    cls.code: cls
    for cls in (
        InvalidArgument,
        InvalidHandle,
        ConfigError,
        Mismatch,
        Timeout,
        PeerLost,
        SystemFailure,
        OutOfMemory,
        Unsupported,
        Busy,
        InternalError,
    )
}


def error_of(code: int, text: str) -> Error:
    """The exception for a result code other than 0."""
    cls = _BY_CODE.get(code, Error)
    error = cls(text or f"result {code}")
    error.code = code
    return error

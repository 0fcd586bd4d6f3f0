# SPDX-License-Identifier: Apache-2.0
"""Arguments of calls, as the library wants them; InvalidArgument for those that it cannot have."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any, Dict, Optional, Union

from . import _api
from ._memory import Memory, is_bool, is_cuda
from .errors import InvalidArgument


def choice(value: str, choices: Dict[str, int], what: str) -> int:
    try:
        return choices[value]
    except (KeyError, TypeError):
        raise InvalidArgument(f"{what} {value!r}: one of {', '.join(choices)}") from None


def seconds_of(timeout: Union[None, float, timedelta]) -> float:
    if timeout is None:
        return 0.0
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if not seconds > 0:
        raise InvalidArgument(f"timeout {timeout}: a time above 0 seconds, or None")
    return seconds


def op_code(op: str, value: Any) -> int:
    """prunex_op_t; a byte that counts ranks would be no boolean, and 256 of them would be false."""
    if is_bool(value):
        if op == "avg":
            raise InvalidArgument("op 'avg' of booleans: convert them to floats first")
        op = {"sum": "max", "prod": "min"}.get(op, op)
    return choice(op, _api.OPS, "op")


def bytes_of(memory: Memory) -> int:
    return memory.count * _api.ITEM_SIZE[memory.dtype]


def whole(value: int, what: str) -> int:
    if int(value) != value or value < 0:
        raise InvalidArgument(f"{what} holds {value}; whole numbers of 0 or more are needed")
    return int(value)


def stream_of(stream: Any, target: Any) -> Optional[int]:
    """The number of a CUDA stream; None: the default stream, or host memory."""
    if stream is None and is_cuda(target):
        stream = sys.modules["torch"].cuda.current_stream(target.device)
    number = getattr(stream, "cuda_stream", stream)
    return None if number is None else int(number)

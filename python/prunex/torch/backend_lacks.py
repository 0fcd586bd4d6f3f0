# SPDX-License-Identifier: Apache-2.0
"""The calls that the backend does not have: NCCL's for CUDA tensors, refused by name for others."""

from __future__ import annotations

from typing import Any, Callable

import torch

from ..errors import Unsupported

__all__ = ["add_lacking"]

_LACKING = (
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("alltoall", "all_to_all"),
    ("alltoall_base", "all_to_all_single"),
    ("all_to_all_single", "all_to_all_single"),
    ("recv_anysource", "recv from any source"),
)


def _on_cuda(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_on_cuda(item) for item in value)
    return torch.is_tensor(value) and value.is_cuda


def _call(method: str, name: str) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if _on_cuda(arguments):
            return getattr(self._nccl(), method)(*arguments, **options)
        raise Unsupported(
            f"the prunex backend has no {name} of CPU tensors; make a group for such calls: "
            "torch.distributed.new_group(backend='gloo')"
        )

    return call


def add_lacking(group: type) -> None:
    """Gives a process group class these methods; torch itself says no more than that there is no
    backend for the device."""
    for method, name in _LACKING:
        setattr(group, method, _call(method, name))

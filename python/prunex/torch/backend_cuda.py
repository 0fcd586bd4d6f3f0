# SPDX-License-Identifier: Apache-2.0
"""The backend's all-reduces of CUDA tensors."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

import torch
import torch.distributed as dist

from .._memory import dtype_code
from ..communicator import Communicator
from ..errors import InvalidArgument, Unsupported
from .bucket_masks import BucketMasks
from .device import DevicePath, DeviceWork

__all__ = ["CudaReducer", "op_name"]


def _ops() -> Tuple[Tuple[Any, str], ...]:
    op = dist.ReduceOp
    return (
        (op.SUM, "sum"),
        (op.AVG, "avg"),
        (op.MAX, "max"),
        (op.MIN, "min"),
        (op.PRODUCT, "prod"),
    )


def op_name(op: Any, dtype: torch.dtype) -> str:
    """The library's name of a torch.distributed.ReduceOp; Unsupported if it has none."""
    for known, name in _ops():
        if op == known:
            # Sums and products of booleans are "any" and "all".
            return {"sum": "max", "prod": "min"}.get(name, name) if dtype == torch.bool else name
    name = next((n for n in ("BAND", "BOR", "BXOR") if op == getattr(dist.ReduceOp, n)), str(op))
    raise Unsupported(
        f"ReduceOp {name} is not supported by the prunex backend; use SUM, AVG, MAX, MIN or PRODUCT"
    )


def _carried(tensor: torch.Tensor, op: Any) -> bool:
    """Whether the library could reduce this tensor, where there is a device path."""
    if tensor.is_sparse or not tensor.is_contiguous():
        return False
    try:
        op_name(op, tensor.dtype)
        dtype_code(torch.view_as_real(tensor).dtype if tensor.is_complex() else tensor.dtype)
    except (Unsupported, InvalidArgument):
        return False
    return True


class CudaReducer:
    """The device path, and NCCL's group for what it does not take.

    What it takes depends on the call alone, and on what all ranks have: they choose alike.
    """

    def __init__(self, comm: Callable[[], Communicator], nccl: Callable[[], Any]) -> None:
        self.path = DevicePath(comm)
        self._nccl = nccl

    def allreduce(self, tensors: List[torch.Tensor], opts: Any, masks: Optional[BucketMasks]) -> Any:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        # Not by `in`: only a ReduceOp on the left knows the constants for its equals.
        summed = any(op == known for known in (dist.ReduceOp.SUM, dist.ReduceOp.AVG))
        if all(_carried(tensor, op) for tensor in tensors) and self.path.available():
            work: Optional[DeviceWork] = None
            for tensor in tensors:
                layout = masks.layout_of(tensor) if masks is not None and summed else None
                flat = tensor.detach()
                flat = torch.view_as_real(flat) if flat.is_complex() else flat
                work = self.path.all_reduce(
                    flat.view(-1), op_name(op, tensor.dtype), layout, lambda: tensors
                )
                if work is None:  # of the first only, on all ranks
                    break
            if work is not None:
                return work
        reduced = self._nccl().allreduce(tensors, opts)
        if masks is None or not summed:
            return reduced

        def clear() -> List[torch.Tensor]:
            for tensor in tensors:
                masks.clear(tensor)
            return tensors

        return self.path.follow(reduced, tensors, clear)

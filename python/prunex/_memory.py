# SPDX-License-Identifier: Apache-2.0
"""The memory of numpy arrays and torch tensors, without importing torch."""

from __future__ import annotations

import sys
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import _api
from .errors import InvalidArgument, Unsupported

_NUMPY: Dict[str, int] = {
    "float32": _api.FLOAT32,
    "float64": _api.FLOAT64,
    "float16": _api.FLOAT16,
    "bfloat16": _api.BFLOAT16,  # of ml_dtypes
    "int8": _api.INT8,
    "uint8": _api.UINT8,
    "bool": _api.UINT8,
    "int32": _api.INT32,
    "int64": _api.INT64,
    "uint32": _api.UINT32,
    "uint64": _api.UINT64,
}


class Memory(NamedTuple):
    """Where an array lies. address: of its first element; count: elements; strides: in elements."""

    address: int
    count: int  # type: ignore[assignment]  # tuple.count is not wanted here
    dtype: int
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]


def is_torch(value: Any) -> bool:
    """Whether value is a torch.Tensor; false where nobody has imported torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def dtype_code(dtype: Any) -> int:
    """prunex_dtype_t of a numpy or torch dtype, or of its name."""
    name = str(dtype)
    if name.startswith("torch."):
        name = name[len("torch.") :]
        if name == "half":
            name = "float16"
    elif not isinstance(dtype, str):
        numpy_dtype = np.dtype(dtype)
        if not numpy_dtype.isnative:
            raise InvalidArgument(
                f"dtype {numpy_dtype.str} is not of this machine's byte order; convert it first: "
                ".astype(array.dtype.newbyteorder('='))"
            )
        name = numpy_dtype.name
    code = _NUMPY.get(name)
    if code is None:
        raise InvalidArgument(f"dtype {dtype} is not supported; use one of {', '.join(_NUMPY)}")
    return code


def dtype_name(code: int) -> str:
    """The name of a prunex_dtype_t."""
    return next((name for name, known in _NUMPY.items() if known == code), str(code))


def is_bool(value: Any) -> bool:
    """Whether value holds booleans, which the library knows as bytes only."""
    return str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def dense_strides(shape: Sequence[int], strides: Sequence[int]) -> Optional[Tuple[int, ...]]:
    """The strides as the library wants them, if they are a permutation of the row-major ones.

    Dimensions of one element have arbitrary strides in torch; here they get the packed ones. None:
    the tensor has gaps, overlaps or is read backwards.
    """
    if 0 in shape:
        return row_major(shape)
    order = sorted((d for d in range(len(shape)) if shape[d] != 1), key=lambda d: (strides[d], -d))
    out = [1] * len(shape)
    packed = 1
    for d in order:
        if strides[d] != packed:
            return None
        out[d] = packed
        packed *= shape[d]
    return tuple(out)


def row_major(shape: Sequence[int]) -> Tuple[int, ...]:
    """Strides of a C-ordered array, in elements, with those of one-element dimensions set to 1."""
    out, packed = [1] * len(shape), 1
    for d in range(len(shape) - 1, -1, -1):
        if shape[d] != 1:
            out[d] = packed
            packed *= shape[d]
    return tuple(out)


def is_cuda(value: Any) -> bool:
    """Whether value is a torch.Tensor in CUDA memory."""
    return is_torch(value) and bool(value.is_cuda)


def memory_of(value: Any, what: str, cuda: bool = False) -> Memory:
    """Address, length and type of a numpy array or a CPU tensor, or, with cuda, a CUDA tensor.

    InvalidArgument for anything else; Unsupported for tensors of another device or sparse ones.
    """
    if isinstance(value, np.ndarray):
        strides = tuple(
            s // value.itemsize if n > 1 else 1 for n, s in zip(value.shape, value.strides)
        )
        if any(n > 1 and s % value.itemsize for n, s in zip(value.shape, value.strides)):
            strides = tuple(-1 for _ in value.shape)
        return Memory(
            value.ctypes.data, value.size, dtype_code(value.dtype), tuple(value.shape), strides
        )
    if is_torch(value):
        if str(value.layout) != "torch.strided":
            raise Unsupported(
                f"{what} is a sparse tensor ({value.layout}); PruneX reduces dense memory: use "
                ".to_dense(), or the default communication for this tensor"
            )
        if not (cuda and is_cuda(value)) and value.device.type != "cpu":
            raise Unsupported(f"{what} lies on {value.device}; host memory is needed: use .cpu()")
        if value.is_neg():
            raise InvalidArgument(
                f"{what} is a lazily negated view, whose memory holds the opposite values: use "
                ".resolve_neg()"
            )
        return Memory(
            value.data_ptr(),
            value.numel(),
            dtype_code(value.dtype),
            tuple(value.shape),
            tuple(value.stride()),
        )
    raise InvalidArgument(
        f"{what} is a {type(value).__name__}; a numpy array or a CPU torch tensor is needed"
    )


def contiguous_memory(value: Any, what: str, writable: bool, cuda: bool = False) -> Memory:
    """:func:`memory_of` for a call: row-major without gaps, or InvalidArgument naming the strides.

    Another order would be one memory to this rank and another to the next, and sum the wrong pairs.
    """
    memory = memory_of(value, what, cuda)
    if 0 not in memory.shape:
        packed = dense_strides(memory.shape, memory.strides)
        if packed != row_major(memory.shape):
            raise InvalidArgument(
                f"{what} must be contiguous: shape {memory.shape} has strides {memory.strides} (in "
                "elements); make it so first (.contiguous(), numpy.ascontiguousarray) and copy "
                "the result back"
            )
    if writable and isinstance(value, np.ndarray) and not value.flags.writeable:
        raise InvalidArgument(f"{what} is a read-only array")
    return memory


def as_bytes(value: Any, what: str) -> np.ndarray:
    """A boolean (or 0/1) array as a read-only copy of uint8 zeros and ones of the same shape."""
    if is_torch(value):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype != np.bool_:
        if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
            raise InvalidArgument(f"{what} must hold booleans, or zeros and ones")
    out = np.array(array != 0, dtype=np.uint8, order="C")
    out.flags.writeable = False
    return out

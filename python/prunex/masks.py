# SPDX-License-Identifier: Apache-2.0
"""Masks: what a tensor keeps, in its logical shape, and their registration with the library."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import _api
from ._closing import Closing
from ._library import check, library
from ._memory import as_bytes, dense_strides, dtype_code, memory_of, row_major
from .errors import InvalidArgument

__all__ = ["MaskSpec", "Mask", "MaskInfo", "register_mask"]

_CONTRACT = "lossless"


def _wrong(text: str) -> InvalidArgument:
    return InvalidArgument(text)


@dataclasses.dataclass(frozen=True, eq=False)
class MaskSpec:
    """What a tensor keeps, in its logical shape (OIHW for a convolution). Immutable, picklable.

    Use the constructors: :meth:`dims`, :meth:`blocks`, :meth:`nm`, :meth:`elements`,
    :meth:`ranges`, :meth:`infer`. Arrays may be numpy arrays, torch tensors or lists of booleans
    (or of zeros and ones); they are copied.

    contract: what holds for dropped elements. "lossless": all of them are checked in every call,
    and a call in which one is not zero is dense; "project": the result there is +0, whatever was
    there; "sampled": lossless checked now and then. epoch: a number for messages.
    """

    kind: str
    contract: str = _CONTRACT
    epoch: int = 0
    keep: Tuple[Tuple[int, np.ndarray], ...] = ()
    block: Tuple[int, ...] = ()
    cells: Optional[np.ndarray] = None
    n: int = 0
    m: int = 0
    dim: int = 0
    spans: Tuple[Tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in _api.MASK_KINDS:
            raise _wrong(f"mask kind {self.kind!r}: one of {', '.join(_api.MASK_KINDS)}")
        if self.contract not in _api.CONTRACTS:
            raise _wrong(f"contract {self.contract!r}: one of {', '.join(_api.CONTRACTS)}")
        if not 0 <= int(self.epoch) < 2**64:
            raise _wrong(f"epoch {self.epoch} is not a number of 64 bits")

    # ---- constructors

    @classmethod
    def dims(cls, keep: Mapping[int, Any], contract: str = _CONTRACT, epoch: int = 0) -> "MaskSpec":
        """Keeps the product of one vector per dimension; a dimension not named is kept whole.

        keep: {dimension: booleans, one per index}. Filters of a convolution are dimension 0 (1 of a
        transposed one), its channels 1; rows and columns of a Linear weight 0 and 1.
        """
        vectors: List[Tuple[int, np.ndarray]] = []
        for d in sorted(keep):
            if not 0 <= int(d) < _api.MAX_DIMS:
                raise _wrong(f"keep: dimension {d} is not in 0 to {_api.MAX_DIMS - 1}")
            vector = as_bytes(keep[d], f"keep[{d}]")
            if vector.ndim != 1:
                raise _wrong(f"keep[{d}] has shape {vector.shape}; one boolean per index is needed")
            vectors.append((int(d), vector))
        return cls("dims", contract, epoch, keep=tuple(vectors))

    @classmethod
    def blocks(
        cls, block: Sequence[int], cells: Any, contract: str = _CONTRACT, epoch: int = 0
    ) -> "MaskSpec":
        """Keeps tiles of block[0] x block[1] x ...; 0: the whole dimension; edges may be partial.

        cells: one boolean per tile, row-major over the grid of tiles (any shape of that length).
        """
        sizes = tuple(int(b) for b in block)
        if len(sizes) > _api.MAX_DIMS or any(b < 0 for b in sizes):
            raise _wrong(f"block {sizes}: up to {_api.MAX_DIMS} sizes of 0 or more")
        return cls("blocks", contract, epoch, block=sizes, cells=as_bytes(cells, "cells"))

    @classmethod
    def nm(
        cls, n: int, m: int, dim: int, cells: Any, contract: str = _CONTRACT, epoch: int = 0
    ) -> "MaskSpec":
        """Keeps n of every m consecutive elements along dim. cells: booleans of its shape."""
        return cls("nm", contract, epoch, cells=as_bytes(cells, "cells"), n=n, m=m, dim=dim)

    @classmethod
    def elements(cls, array: Any, contract: str = _CONTRACT, epoch: int = 0) -> "MaskSpec":
        """Keeps single elements. array: booleans of the tensor's shape."""
        return cls("elements", contract, epoch, cells=as_bytes(array, "array"))

    @classmethod
    def ranges(
        cls, spans: Sequence[Tuple[int, int]], contract: str = _CONTRACT, epoch: int = 0
    ) -> "MaskSpec":
        """Keeps ranges (begin, count) in logical row-major order, ascending, disjoint."""
        pairs = tuple((int(begin), int(count)) for begin, count in spans)
        end = 0
        for begin, count in pairs:
            if begin < end or count < 0:
                raise _wrong(f"range ({begin}, {count}): ranges must ascend and not overlap")
            end = begin + count
        return cls("ranges", contract, epoch, spans=pairs)

    @classmethod
    def infer(cls, array: Any, contract: str = _CONTRACT, epoch: int = 0) -> "MaskSpec":
        """The cheapest description of a mask array: the product of dimensions if it is one.

        array: booleans (or zeros and ones) of the tensor's shape, such as a ``weight_mask`` of
        torch.nn.utils.prune.
        """
        cells = as_bytes(array, "array")
        if cells.ndim > 0 and cells.size > 0:
            axes = range(cells.ndim)
            keep = [cells.any(axis=tuple(a for a in axes if a != d)) for d in axes]
            product = np.ones((), dtype=bool)
            for d in axes:
                product = product & keep[d].reshape([-1 if a == d else 1 for a in axes])
            if np.array_equal(product, cells != 0):
                return cls.dims({d: k for d, k in enumerate(keep) if not k.all()}, contract, epoch)
        return cls("elements", contract, epoch, cells=cells)

    def replace(self, **changes: Any) -> "MaskSpec":
        """The same mask with another contract or epoch."""
        return dataclasses.replace(self, **changes)

    # ---- what it says

    def to_array(self, shape: Sequence[int]) -> np.ndarray:
        """The mask as booleans of the given shape. InvalidArgument if it does not fit the shape."""
        shape = tuple(int(s) for s in shape)
        if self.kind == "dims":
            out = np.ones(shape, dtype=bool)
            for d, vector in self.keep:
                if d >= len(shape) or len(vector) != shape[d]:
                    size = shape[d] if d < len(shape) else "none"
                    raise _wrong(
                        f"keep[{d}] has {len(vector)} entries; dimension {d} of {shape} has {size}"
                    )
                out &= (vector != 0).reshape([-1 if a == d else 1 for a in range(len(shape))])
            return out
        if self.kind == "blocks":
            return self._tiles(shape)
        if self.kind == "ranges":
            flat = np.zeros(int(np.prod(shape, dtype=np.int64)), dtype=bool)
            for begin, count in self.spans:
                if begin + count > flat.size:
                    raise _wrong(f"range ({begin}, {count}) leaves a tensor of {flat.size}")
                flat[begin : begin + count] = True
            return flat.reshape(shape)
        assert self.cells is not None
        count = int(np.prod(shape, dtype=np.int64))
        if self.cells.size != count or (self.cells.ndim > 1 and self.cells.shape != shape):
            raise _wrong(f"the mask has shape {self.cells.shape}, the tensor {shape}")
        return self.cells.reshape(shape) != 0

    def _tiles(self, shape: Tuple[int, ...]) -> np.ndarray:
        assert self.cells is not None
        if len(self.block) != len(shape):
            raise _wrong(f"block {self.block} does not have the dimensions of {shape}")
        extents = [b or max(s, 1) for b, s in zip(self.block, shape)]
        grid = [-(-s // e) for s, e in zip(shape, extents)]
        if self.cells.size != int(np.prod(grid, dtype=np.int64)):
            raise _wrong(f"cells has {self.cells.size} entries; the grid of tiles is {tuple(grid)}")
        out = self.cells.reshape(grid) != 0
        for d, extent in enumerate(extents):
            out = np.repeat(out, extent, axis=d)
            out = out[(slice(None),) * d + (slice(0, shape[d]),)]
        return out

    def kept(self, shape: Sequence[int]) -> int:
        """Number of kept elements of a tensor of the given shape."""
        if self.kind == "dims":
            counts = [int(s) for s in shape]
            for d, vector in self.keep:
                if d >= len(counts) or len(vector) != counts[d]:
                    return int(self.to_array(shape).sum())  # raises, saying what does not fit
                counts[d] = int((vector != 0).sum())
            return int(np.prod(counts, dtype=np.int64))
        return int(self.to_array(shape).sum())

    def digest(self) -> str:
        """Of everything but the epoch; equal specs have equal digests, on all machines."""
        cached = self.__dict__.get("_digest")
        if cached is None:
            h = hashlib.blake2b(digest_size=16)
            numbers = (self.kind, self.contract, self.block, self.n, self.m, self.dim, self.spans)
            h.update(repr(numbers).encode())
            for d, vector in self.keep:
                h.update(b"%d:%d:" % (d, len(vector)) + vector.tobytes())
            if self.cells is not None:
                h.update(repr(self.cells.shape).encode() + self.cells.tobytes())
            cached = h.hexdigest()
            object.__setattr__(self, "_digest", cached)
        return cached

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MaskSpec):
            return NotImplemented
        return self.digest() == other.digest() and self.epoch == other.epoch

    def __hash__(self) -> int:
        return hash((self.digest(), self.epoch))


class MaskInfo(NamedTuple):
    """count, kept: elements; hits and misses_stale: calls by address, served and refused."""

    count: int  # type: ignore[assignment]  # tuple.count is not wanted here
    kept: int
    digest: int
    epoch: int
    hits: int
    misses_stale: int
    violations: int


def _pointer(array: np.ndarray) -> int:
    return array.ctypes.data


def _describe(
    spec: MaskSpec, shape: Tuple[int, ...], strides: Tuple[int, ...], name: str
) -> Tuple[_api.MaskDesc, List[Any]]:
    """The C description, and what must live as long as it is used."""
    if spec.kind == "ranges" and strides != row_major(shape):
        # The library's ranges are in memory order.
        spec = MaskSpec.elements(spec.to_array(shape), spec.contract, spec.epoch)
    held: List[Any] = [spec]
    desc = _api.MaskDesc(
        kind=_api.MASK_KINDS[spec.kind],
        contract=_api.CONTRACTS[spec.contract],
        epoch=int(spec.epoch),
        name=name.encode() if name else None,
        declared_kept=-1,
    )
    for d, vector in spec.keep:
        desc.keep[d] = _pointer(vector)
        desc.keep_len[d] = len(vector)
    for d, size in enumerate(spec.block):
        desc.block[d] = size
    if spec.cells is not None:
        desc.cells = _pointer(spec.cells)
        desc.cells_len = spec.cells.size
    desc.nm_n, desc.nm_m, desc.nm_dim = int(spec.n), int(spec.m), int(spec.dim)
    if spec.spans:
        ranges = (_api.Range * len(spec.spans))(*(_api.Range(b, n) for b, n in spec.spans))
        held.append(ranges)
        desc.ranges = ctypes.cast(ranges, ctypes.POINTER(_api.Range))
        desc.num_ranges = len(spec.spans)
    if spec.kind == "blocks" and len(spec.block) != len(shape):
        raise _wrong(
            f"mask of {name!r}: block {spec.block} does not have the dimensions of {shape}"
        )
    if spec.kind in ("nm", "elements"):
        spec.to_array(shape)  # says what does not fit
    return desc, held


class Mask(Closing):
    """A registered mask. Keeps the array it was registered for alive until :meth:`close`."""

    def __init__(
        self, handle: int, shape: Tuple[int, ...], strides: Tuple[int, ...], name: str, array: Any
    ) -> None:
        self.handle = handle
        self.shape = shape
        self.name = name
        self._strides = strides
        self._array = array

    def update(self, spec: MaskSpec) -> None:
        """Another mask for the same tensor, from the next call on, on every layout that has it."""
        desc, _held = _describe(spec, self.shape, self._strides, self.name)
        check(library().prunex_update_mask(self.handle, ctypes.byref(desc)))

    def info(self) -> MaskInfo:
        """Counters of the mask."""
        info = _api.MaskInfo()
        check(library().prunex_mask_info(self.handle, ctypes.byref(info)))
        return MaskInfo(*(getattr(info, field) for field in MaskInfo._fields))

    def close(self) -> None:
        """Forgets the registration; layouts that hold the mask keep it. May be called again."""
        handle, self.handle, self._array = self.handle, 0, None
        if handle:
            check(library().prunex_unregister_mask(handle))


def register_mask(
    array: Any,
    spec: MaskSpec,
    shape: Optional[Sequence[int]] = None,
    strides: Optional[Sequence[int]] = None,
    dtype: Any = None,
    name: str = "",
) -> Mask:
    """Publishes a mask.

    array: the buffer it belongs to, so that calls without a layout find it by address; its shape,
    strides and dtype are used. None: only layouts use the mask; shape and dtype are then needed,
    strides (in elements) where it is not row-major. name: of the parameter, for messages.

    InvalidArgument if the mask does not fit the shape, or the buffer overlaps one registered
    already with another length.
    """
    address = 0
    if array is not None:
        memory = memory_of(array, "array", cuda=True)
        address, code = memory.address, memory.dtype
        if shape is None:
            shape, strides = memory.shape, memory.strides
        if int(np.prod(shape, dtype=np.int64)) != memory.count:
            raise _wrong(f"shape {tuple(shape)} does not hold the array's {memory.count} elements")
    else:
        if shape is None or dtype is None:
            raise _wrong("a mask without an array needs shape and dtype")
        code = dtype_code(dtype)
    shape = tuple(int(s) for s in shape)
    if len(shape) > _api.MAX_DIMS:
        raise _wrong(
            f"mask of {name!r}: {len(shape)} dimensions; up to {_api.MAX_DIMS} are supported"
        )
    packed = row_major(shape) if strides is None else dense_strides(shape, tuple(strides))
    if packed is None:
        raise _wrong(
            f"mask of {name!r}: strides {tuple(strides or ())} are not those of a dense tensor of "
            f"shape {shape}"
        )
    desc, _held = _describe(spec, shape, packed, name)
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    order = (ctypes.c_int64 * max(len(shape), 1))(*packed)
    tensor = _api.Tensor(
        dtype=code,
        ndim=len(shape),
        sizes=ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64)),
        strides=(
            None
            if packed == row_major(shape)
            else ctypes.cast(order, ctypes.POINTER(ctypes.c_int64))
        ),
    )
    out = ctypes.c_uint64()
    check(
        library().prunex_register_mask(
            address or None, ctypes.byref(tensor), ctypes.byref(desc), ctypes.byref(out)
        )
    )
    return Mask(out.value, shape, packed, name, array)

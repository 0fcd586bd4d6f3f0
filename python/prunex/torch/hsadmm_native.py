# SPDX-License-Identifier: Apache-2.0
"""H-SADMM's passes over the flat buffers in libprunex (kernels/admm.h): float32 in host memory.

Each step of the algorithm is one pass where torch's operations need several. Everything else, and a
library without these functions, goes through torch (hsadmm_state.py, hsadmm_round.py).
"""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np
import torch

from prunex.torch.projection import cell_places, keep_vectors

if TYPE_CHECKING:
    from prunex.torch.groups import Family, Member
    from prunex.torch.hsadmm_state import State

VERSION = 1
_P, _N = c.c_void_p, c.c_uint64


class _Model(c.Structure):
    _fields_ = [
        ("parameters", _N),
        ("offsets", _P),
        ("first_run", _P),
        ("runs", _P),
        ("theta", _P),
    ]


_M = c.POINTER(_Model)


class _Calls(c.Structure):
    _fields_ = [
        ("bytes", c.c_uint32),
        ("version", c.c_uint32),
        ("pull", c.CFUNCTYPE(None, _M, c.c_bool, c.c_bool, _P, _P, _P, _P, _P)),
        ("gather", c.CFUNCTYPE(None, _M, c.c_bool, _P, _P)),
        ("consensus", c.CFUNCTYPE(None, _M, _P, _P, _P, _P, _P, _P)),
        ("duals", c.CFUNCTYPE(None, _M, c.c_bool, c.c_bool, _P, _P, _P, _P, _P)),
        ("globals", c.CFUNCTYPE(None, _M, c.c_bool, _P, _P, _P, _P)),
        ("squares", c.CFUNCTYPE(None, _P, _P, c.c_float, _N, _N, _N, _P)),
        ("kept_runs", c.CFUNCTYPE(_N, _N, _P, _P, _N, _P, _N)),
    ]


def _calls() -> Any:
    """The library's functions; None where it has none that fit."""
    from prunex._library import library
    from prunex.errors import Error

    try:
        door = getattr(library(), "prunex_internal_admm", None)
    except Error:  # no library: H-SADMM in one process needs none
        return None
    if door is None:
        return None
    door.argtypes, door.restype = (), c.POINTER(_Calls)
    calls = door().contents
    fits = calls.version == VERSION and calls.bytes == c.sizeof(_Calls)
    return calls if fits else None


def _at(array: Any) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()


def _floats(values: Any) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32)


class Native:
    """The passes over one State's buffers. Ranks of a world must all have it or all not have it."""

    @staticmethod
    def of(state: State) -> Native | None:
        """None where the buffers or the parameters are of another kind."""
        if state.device.type != "cpu" or any(p.dtype != torch.float32 for p in state.thetas):
            return None
        calls = _calls()
        return None if calls is None else Native(state, calls)

    def __init__(self, state: State, calls: Any) -> None:
        self.state, self.calls = state, calls
        self.count = len(state.names)
        self._offsets = np.array(state.offsets, np.uint64)
        self._pointers = np.zeros(self.count, np.uint64)
        self._grads = np.zeros(self.count, np.uint64)
        self._runs = np.zeros((1 << 10, 2), np.uint64)
        self._first = np.zeros(self.count + 1, np.uint64)
        self._model = _Model(
            self.count,
            _at(self._offsets),
            _at(self._first),
            _at(self._runs),
            _at(self._pointers),
        )

    # ---- memory

    def _same(self, i: int, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` in parameter i's own memory order, itself if it is."""
        shape, wanted = tensor.shape, self.state.strides[i]
        if tensor.dtype == torch.float32 and (
            tensor.stride() == wanted
            or all(a == b for n, a, b in zip(shape, tensor.stride(), wanted) if n != 1)
        ):
            return tensor
        return torch.empty_strided(shape, wanted, dtype=torch.float32).copy_(tensor)

    def _thetas(self) -> list[torch.Tensor]:
        """Fills the table of pointers; what is returned keeps them valid."""
        held = [self._same(i, p.detach()) for i, p in enumerate(self.state.thetas)]
        self._pointers[:] = [p.data_ptr() for p in held]
        return held

    def _flat(self, *names: str) -> list[int]:
        return [self.state.flat[name].data_ptr() for name in names]

    def _factors(self, name: str) -> np.ndarray:
        return _floats(self.state.pending[name])

    # ---- masks

    def set_masks(self) -> None:
        """The kept runs of the state's masks."""
        state = self.state
        keeps: dict[str, dict[int, np.ndarray]] = keep_vectors(state.families, state.masks)
        places = cell_places(state.families, state.masks, state.shapes)
        at = 0
        for i, name in enumerate(state.names):
            self._first[i] = at
            begin, end = state.offsets[i], state.offsets[i + 1]
            if name in places:
                order = self._memory_order(i, range(places[name].ndim))
                flat = np.ascontiguousarray(places[name].transpose(order)).reshape(-1)
                at += self._kept_runs([flat.size], [flat], begin, at)
            elif name in keeps:
                shape, keep = state.shapes[name], keeps[name]
                order = self._memory_order(i, range(len(shape)))
                at += self._kept_runs(
                    [shape[d] for d in order], [keep.get(d) for d in order], begin, at
                )
            elif begin < end:
                self._grow(at + 1)
                self._runs[at] = begin, end
                at += 1
        self._first[self.count] = at

    def _memory_order(self, i: int, dims: Sequence[int]) -> list[int]:
        """Dimensions from the outermost to the innermost."""
        return sorted(dims, key=lambda d: -self.state.strides[i][d])

    def _grow(self, room: int) -> None:
        if room > len(self._runs):
            more = np.zeros((2 * room, 2), np.uint64)
            more[: len(self._runs)] = self._runs
            self._runs = more
            self._model.runs = _at(more)

    def _kept_runs(self, sizes: list, keep: list, base: int, at: int) -> int:
        """Writes runs from place `at` of the table on; returns their number."""
        held = [None if k is None else np.ascontiguousarray(k, np.uint8) for k in keep]
        lengths = np.array(sizes, np.uint64)
        tables = np.array([0 if k is None else _at(k) for k in held], np.uint64)
        while True:
            room = len(self._runs) - at
            to = _at(self._runs) + 16 * at
            count = self.calls.kept_runs(len(sizes), _at(lengths), _at(tables), base, to, room)
            if count <= room:
                return count
            self._grow(at + count)

    # ---- the steps

    def pull(
        self, grads: Sequence[torch.Tensor], times: int, decayed: bool, frozen: bool
    ) -> None:
        """Step 1. frozen: dropped places become +0."""
        thetas = self._thetas()
        held = [self._same(i, g) for i, g in enumerate(grads)]
        self._grads[:] = [g.data_ptr() for g in held]
        rho, scale = _floats(times * self.state.rho1), self._factors("u")
        z_i, u = self._flat("z_i", "u")
        self.calls.pull(
            self._model, frozen, decayed, _at(self._grads), _at(rho), z_i, u, _at(scale)
        )
        del thetas
        for g, other in zip(grads, held):
            if other is not g:
                g.copy_(other)

    def gather(self, frozen: bool) -> None:
        """u += theta."""
        thetas, scale = self._thetas(), self._factors("u")
        self.calls.gather(self._model, frozen, *self._flat("u"), _at(scale))
        self.state.settled("u")
        del thetas

    def scores(self, family: Family) -> np.ndarray | None:
        """||mean_j theta_ij||^2 by group; None for families of single cells."""
        if family.tile is not None or family.nm is not None:
            return None
        out = np.zeros(family.groups)
        for member in family.members:
            if member.scored:
                inside = member.index >= 0
                sums = self._place_sums(member)
                out += np.bincount(member.index[inside], sums[inside], minlength=family.groups)
        return out

    def _place_sums(self, member: Member) -> np.ndarray:
        """Sums of squares by place of the member's dimension."""
        state = self.state
        i = state.number[member.name]
        places = state.shapes[member.name][member.dim]
        count = state.offsets[i + 1] - state.offsets[i]
        inner = count // max(places, 1) if places <= 1 else state.strides[i][member.dim]
        sums = np.zeros(places)
        if count:
            self.calls.squares(
                state.views["a"][i].data_ptr(),
                state.views["u_mean"][i].data_ptr(),
                float(state.pending["u_mean"][i]),
                count // (places * inner),
                places,
                inner,
                _at(sums),
            )
        return sums

    def consensus(self, P: int) -> None:
        """Steps 4 and 5: b = z_i from a = s_i, y = z_i + v_i. The old u_mean is not needed any
        more: s_i takes its name, to become the next one, and a is free."""
        state = self.state
        near = P * state.rho1
        rest, scale = _floats(state.rho2 / (near + state.rho2)), self._factors("v")
        s, z, y, z_i = self._flat("a", "z", "y", "b")
        self.calls.consensus(self._model, _at(rest), s, z, y, _at(scale), z_i)
        state.settled("v")
        state.swap("a", "u_mean")
        state.settled("u_mean")

    def duals(self, frozen: bool, cut: bool) -> dict[str, torch.Tensor]:
        """Step 7 of u, with u_mean and squared norms. The new z_i is in b."""
        thetas, norms = self._thetas(), np.zeros((4, self.count))
        flats = self._flat("z_i", "b", "u", "u_mean")
        self.calls.duals(self._model, frozen, cut, *flats, _at(norms))
        del thetas
        return dict(zip(("r1", "dz_i", "z_i", "u"), torch.from_numpy(norms).unbind()))

    def globals(self, cut: bool) -> dict[str, torch.Tensor]:
        """Squared norms of the second level. The new z is in a."""
        norms = np.zeros((2, self.count))
        self.calls.globals(self._model, cut, *self._flat("z", "a", "z_i"), _at(norms))
        return dict(zip(("dz", "r2"), torch.from_numpy(norms).unbind()))

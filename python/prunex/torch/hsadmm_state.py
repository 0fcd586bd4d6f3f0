# SPDX-License-Identifier: Apache-2.0
"""The variables of H-SADMM as flat buffers, one place per element of every trained parameter.

N elements in parameter order, each parameter in its own memory order (channels_last stays), so that
a flat buffer and one layout of masks serve the exchange. Memory: seven buffers of N (u, z_i + v, z_i,
z, the node's mean dual, two scratch) in float32, or float64 if any parameter is.
"""

from __future__ import annotations

import mmap
from typing import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from prunex.torch.groups import Family, tensors_of
from prunex.torch.hsadmm_native import Native
from prunex.torch.projection import Dropped, Masks

HUGE = 2 << 20  # bytes of a huge page
CACHED = 1 << 16  # elements: what one operation wrote is in a core's own cache for the next


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The tensor's strides if it is dense in some order of dimensions, else row-major ones."""
    packed = 1
    for d in sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), -d)):
        if tensor.shape[d] != 1 and tensor.stride(d) != packed:
            return tuple(torch.empty(tensor.shape, device="meta").stride())
        packed *= tensor.shape[d]
    return tuple(tensor.stride())


FLATS = ("u", "y", "z_i", "z", "u_mean", "a", "b")


def zeros(
    number: int, count: int, dtype: torch.dtype, device: torch.device
) -> Sequence[torch.Tensor]:
    """`number` flat buffers. Large ones in host memory lie in huge pages where the kernel gives any:
    passes over several of them at once are twice as fast."""
    size = torch.empty(0, dtype=dtype).element_size()
    each = -(-count * size // 64) * 64 + 64  # no two begin at the same place of a page
    wanted = number * each + HUGE
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if device.type != "cpu" or advice is None or count * size < HUGE:
        return [torch.zeros(count, dtype=dtype, device=device) for _ in range(number)]
    memory = mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(advice)
    except OSError:  # a kernel without them
        pass
    first = -torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr() % HUGE
    return [
        torch.frombuffer(memory, dtype=dtype, count=count, offset=first + i * each).zero_()
        for i in range(number)  # zero_: the pages are fetched now, not in the first round
    ]


class State:
    """theta_ij are the parameters themselves; u_ij, v_i, z_i, z as in the paper, flat.

    v, z_i and u_mean are the node's, the same bits on all its ranks; z is the same everywhere.
    u_mean = mean over the node of u_ij, known without an exchange: it is s_i - z_i after a round.

    v_i is kept as y = z_i + v_i, what the node has sent last: v_i is y - z, with no pass that
    writes it. The duals u, v and u_mean are `pending` (a factor per parameter) times what the
    buffers say: a new penalty costs no pass over them. The properties settle that first; `flat`,
    `views` and the pieces are the buffers as they lie.
    """

    def __init__(self, model: nn.Module, families: Sequence[Family], rho1: float, rho2: float):
        tensors, alias = tensors_of(model)
        trained = {n: t for n, t in tensors.items() if isinstance(t, nn.Parameter)}
        trained = {n: p for n, p in trained.items() if p.requires_grad}
        if not trained:
            raise ValueError("the model has no parameter that requires a gradient")
        devices = {p.device for p in trained.values()}
        if len(devices) > 1:
            raise ValueError(f"parameters lie on {sorted(map(str, devices))}; wanted one device")
        for name, p in trained.items():
            if not p.dtype.is_floating_point:
                raise TypeError(f"parameter {name} has type {p.dtype}; H-SADMM needs real numbers")
        self.model = model
        self.names = list(trained)
        self.thetas = list(trained.values())
        self.ids = {id(p) for p in self.thetas}
        self.number = {n: i for i, n in enumerate(self.names)}
        self.alias = alias
        self.shapes = {n: tuple(p.shape) for n, p in trained.items()}
        self.strides = [dense_strides(p) for p in self.thetas]
        self.offsets = np.cumsum([0] + [p.numel() for p in self.thetas]).tolist()
        self.count = self.offsets[-1]
        wide = any(p.dtype == torch.float64 for p in self.thetas)
        self.dtype = torch.float64 if wide else torch.float32
        self.device = self.thetas[0].device
        self.low = [
            p.dtype.itemsize < 4 if hasattr(p.dtype, "itemsize") else p.element_size() < 4
            for p in self.thetas
        ]
        self.families = self._checked(families)
        self.pieces = self._pieces(CACHED if self.device.type == "cpu" else self.count)
        self.flat = dict(zip(FLATS, zeros(len(FLATS), self.count, self.dtype, self.device)))
        self.pending = {k: np.ones(len(self.names)) for k in ("u", "v", "u_mean")}
        self.rho1 = np.full(len(self.names), float(rho1))
        self.rho2 = np.full(len(self.names), float(rho2))
        self.views = {k: self.views_of(flat) for k, flat in self.flat.items()}
        sizes = [size for _, size in self.pieces]
        self._parts = {k: flat.split(sizes) for k, flat in self.flat.items()}
        owners = [i for i, _ in self.pieces]
        self._first = np.searchsorted(owners, np.arange(len(self.names) + 1)).tolist()
        self.scratch = self.a.new_empty(max(sizes, default=0))
        self.native = Native.of(self)
        self.set_masks({f.name: np.ones(f.groups, bool) for f in self.families})

    def _pieces(self, most: int) -> list[tuple[int, int]]:
        """(parameter, elements) of the pieces of the flat buffers, each in a parameter."""
        return [
            (i, min(most, p.numel() - at))
            for i, p in enumerate(self.thetas)
            for at in range(0, p.numel(), max(most, 1))
        ]

    def split(self, *names: str) -> Iterator[tuple[torch.Tensor, ...]]:
        """The named buffers ("theta": the parameters), piece by piece: several operations on a
        piece find it in the cache."""
        return zip(*(self._theta_pieces() if n == "theta" else self._parts[n] for n in names))

    def split_one(self, i: int, *names: str) -> Iterator[tuple[torch.Tensor, ...]]:
        """The pieces of parameter i in the named buffers."""
        part = slice(self._first[i], self._first[i + 1])
        return zip(*(self._parts[n][part] for n in names))

    def _theta_pieces(self) -> Iterator[torch.Tensor]:
        for parameter, stride in zip(self.thetas, self.strides):
            p = parameter.detach()
            dense = tuple(p.stride()) == stride
            flat = p.as_strided((p.numel(),), (1,)) if dense else p.reshape(-1)
            if p.numel():
                yield from flat.split(CACHED if self.device.type == "cpu" else p.numel())

    def _checked(self, families: Sequence[Family]) -> list[Family]:
        seen: set[str] = set()
        for family in families:
            if family.name in seen:
                raise ValueError(f"two families are named {family.name!r}")
            seen.add(family.name)
            for name in family.parameters():
                if name not in self.number:
                    raise ValueError(
                        f"family {family.name}: {name} is not a trained parameter of the model"
                    )
        return list(families)

    def views_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """One view per parameter, in the parameter's shape and strides."""
        return [
            flat.as_strided(p.shape, stride, flat.storage_offset() + offset)
            for p, stride, offset in zip(self.thetas, self.strides, self.offsets)
        ]

    def swap(self, one: str, other: str) -> None:
        """Exchanges two buffers by name: a copy saved."""
        for held in (self.flat, self.views, self._parts):
            held[one], held[other] = held[other], held[one]

    def scaled_(self, name: str, flat: torch.Tensor) -> torch.Tensor:
        """flat times the pending factors of the named dual, in place."""
        factors = self.pending[name]
        if (factors == factors[0]).all():
            return flat if factors[0] == 1.0 else flat.mul_(float(factors[0]))
        for i, f in enumerate(factors.tolist()):
            flat[self.offsets[i] : self.offsets[i + 1]].mul_(f)
        return flat

    def settled(self, name: str) -> None:
        """The named dual's buffer holds its values as they are."""
        self.pending[name] = np.ones(len(self.names))

    def settle(self, name: str) -> torch.Tensor:
        """Multiplies the pending factors into u or u_mean."""
        self.scaled_(name, self.flat[name])
        self.settled(name)
        return self.flat[name]

    def load_v(self, v: torch.Tensor) -> None:
        """v_i <- v, with the z that is there."""
        torch.add(self.z, v, out=self.flat["y"])
        self.settled("v")

    u = property(lambda self: self.settle("u"))
    v = property(lambda self: self.scaled_("v", self.flat["y"] - self.flat["z"]))
    u_mean = property(lambda self: self.settle("u_mean"))
    z_i = property(lambda self: self.flat["z_i"])
    z = property(lambda self: self.flat["z"])
    a = property(lambda self: self.flat["a"])
    b = property(lambda self: self.flat["b"])

    def set_masks(self, masks: Masks) -> None:
        self.masks = {f.name: np.asarray(masks[f.name], bool) for f in self.families}
        self.dropped = Dropped(self.families, self.masks, self.shapes, self.device)
        self._cut = {self.number[n]: n for n in self.dropped.names()}
        if self.native is not None:
            self.native.set_masks()

    def kept(self) -> int:
        """Elements a leader sends: kept ones of masked parameters, all of the others."""
        lost = sum(self.thetas[self.number[n]].numel() - k for n, k in self.dropped.kept.items())
        return self.count - lost

    def zero_dropped_(self, views: Sequence[torch.Tensor]) -> None:
        """m * x by selection, in place, for one tensor per parameter (None: left out)."""
        for i, name in self._cut.items():
            if views[i] is not None:
                self.dropped.zero_(name, views[i])

    def zero_dropped_of_(self, i: int, views: Sequence[torch.Tensor]) -> None:
        """The same for parameter i alone."""
        if i in self._cut:
            self.dropped.zero_(self._cut[i], views[i])

    def load_thetas_(self, views: Sequence[torch.Tensor]) -> None:
        """views <- theta."""
        copy_all(views, [p.detach() for p in self.thetas])

    def store_thetas(self, views: Sequence[torch.Tensor]) -> None:
        """theta <- views."""
        copy_all([p.detach() for p in self.thetas], views)

    def add_thetas_(self, views: Sequence[torch.Tensor]) -> None:
        """views += theta."""
        torch._foreach_add_(list(views), [p.detach() for p in self.thetas])


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """targets[i] <- sources[i], converting types."""
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(list(targets), list(sources))
    else:  # torch before 2.1
        for target, source in zip(targets, sources):
            target.copy_(source)


def add_proximal(
    state: State,
    grads: Sequence[torch.Tensor],
    times: int = 1,
    decayed: bool = False,
    frozen: bool = False,
) -> bool:
    """Step 1: g += times * rho1 * (theta - z_i + u_ij), in place.

    decayed: the optimizer adds the part of theta itself (DecayPull). In 16-bit parameters the
    difference is taken in float32 first, for it is far smaller than either term. frozen: dropped
    places are to be zeroed. Returns whether that is done, too.
    """
    if state.native is not None:
        state.native.pull(grads, times, decayed, frozen)
        return frozen
    state.settle("u")
    for i, g in enumerate(grads):
        rho, theta = times * float(state.rho1[i]), state.thetas[i].detach()
        z_i, u = state.views["z_i"][i], state.views["u"][i]
        if state.low[i]:
            g.add_(torch.sub(z_i, u).sub_(theta).mul_(-rho))
            continue
        if not decayed:
            g.add_(theta, alpha=rho)
        g.add_(z_i, alpha=-rho).add_(u, alpha=rho)
    return False


class DecayPull:
    """Lets SGD add rho1 * theta in the pass over the elements in which it adds weight_decay * theta.

    Only plain torch.optim.SGD that holds the state's parameters and no others, whose groups all have
    a weight decay, and one rho1: elsewhere the sum would be another one, or a pass more. usable is
    asked in every step: users change groups.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.groups = optimizer.param_groups if type(optimizer) is torch.optim.SGD else []
        self.saved: list[float] = []

    def usable(self, state: State) -> bool:
        rho = state.rho1
        return (
            bool(self.groups)
            and all(g["weight_decay"] and not g.get("maximize") for g in self.groups)
            and not any(state.low)
            and bool((rho == rho[0]).all())
            and {id(p) for g in self.groups for p in g["params"]} == state.ids
        )

    def begin(self, rho: float) -> None:
        self.saved = [g["weight_decay"] for g in self.groups]
        for group, decay in zip(self.groups, self.saved):
            group["weight_decay"] = decay + rho

    def end(self) -> None:
        for group, decay in zip(self.groups, self.saved):
            group["weight_decay"] = decay
        self.saved = []

# SPDX-License-Identifier: Apache-2.0
"""Scores, budgets and the exact projection onto masks: pure functions on tensors.

For a fixed number of kept groups the projection of all nodes' z~_i onto one shared support keeps
the groups with the largest sum over nodes of ||z~_i[g]||^2 (the loss of a support is what lies
outside it). So scores are squared norms, nodes add them, and the best are kept: that is the exact
projection, where union and intersection of per-node masks are heuristics.

A mask here is {family name: bool array of its groups}; True is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping, Sequence

import numpy as np
import torch

from prunex.masks import MaskSpec
from prunex.torch.groups import BUFFER, Family, Member

Masks = dict[str, np.ndarray]


# ---- scores


def squares_of(tensor: torch.Tensor) -> torch.Tensor:
    """In float32 (float64 for float64)."""
    return (tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()).square()


def member_norms(member: Member, groups: int, places: torch.Tensor) -> torch.Tensor:
    """Sums by group of one member's squares, shape [groups]."""
    others = [d for d in range(places.dim()) if d != member.dim]
    if member.dim == 0 and len(others) > 1 and places.is_contiguous():
        places = places.reshape(len(places), -1).sum(1)
    elif others:
        places = places.sum(others)
    index = member.index
    if len(index) == groups and np.array_equal(index, np.arange(groups)):
        return places
    where = np.flatnonzero(index >= 0)
    out = torch.zeros(groups, dtype=places.dtype, device=places.device)
    where_t = torch.from_numpy(where).to(places.device)
    return out.index_add_(0, torch.from_numpy(index[where]).to(places.device), places[where_t])


@torch.no_grad()
def family_scores(
    family: Family,
    tensors: Mapping[str, torch.Tensor],
    weights: Mapping[str, float] | None = None,
    squared: bool = False,
) -> torch.Tensor:
    """Score of every group: the sum of squares of its scored members (filters and channels; bias
    and BatchNorm follow unscored), shape [family.groups]. weights: a factor per parameter, w_i =
    P rho1 + rho2 for the exact projection with penalties per layer. Partial tiles at an edge are
    scored by their mean, scaled to a whole tile, so that the edge does not lose by its size.
    squared: tensors holds the elements' squares."""
    weights = weights or {}

    def squares(name: str) -> torch.Tensor:
        return tensors[name] if squared else squares_of(tensors[name])

    if family.tile is not None:
        name = family.members[0].name
        cells = _cell_sums(squares(name), family.tile).reshape(-1)
        full = int(family.sizes.max())
        if int(family.sizes.min()) != full:
            scale = torch.from_numpy(full / family.sizes).to(cells)
            cells = cells * scale
        return cells * weights.get(name, 1.0)
    if family.nm is not None:
        name = family.members[0].name
        moved = squares(name).movedim(family.nm[2], -1)
        return moved.reshape(-1) * weights.get(name, 1.0)
    total = None
    for member in family.members:
        if not member.scored:
            continue
        part = member_norms(member, family.groups, squares(member.name))
        part = part * weights[member.name] if member.name in weights else part
        total = part if total is None else total + part.to(total)
    if total is None:
        raise ValueError(f"family {family.name} has no scored member")
    return total


def _cell_sums(out: torch.Tensor, tile: Sequence[int]) -> torch.Tensor:
    """Sums of squares over the tile grid; edge tiles may be partial."""
    for d, edge in enumerate(tile):
        size = out.shape[d]
        if edge == 0 or edge >= size:
            out = out.sum(d, keepdim=True)
        elif edge > 1:
            cells = -(-size // edge)
            index = torch.arange(size, device=out.device) // edge
            shape = list(out.shape)
            shape[d] = cells
            out = torch.zeros(shape, dtype=out.dtype, device=out.device).index_add_(d, index, out)
    return out


@torch.no_grad()
def all_scores(
    families: Sequence[Family],
    tensors: Mapping[str, torch.Tensor],
    *,
    mean: bool = False,
    weights: Mapping[str, float] | None = None,
    squared: bool = False,
    known: Mapping[str, torch.Tensor] | None = None,
) -> np.ndarray:
    """Scores of all families, one after another, float32. mean: per element instead of the sum, so
    that groups of different sizes can share one budget. squared: as in family_scores. known: sums
    of families that need no tensors, by name."""
    known = known or {}
    parts = [
        known[f.name] if f.name in known else family_scores(f, tensors, weights, squared)
        for f in families
    ]
    if mean:
        parts = [
            p / torch.from_numpy(np.maximum(f.sizes, 1)).to(p) for p, f in zip(parts, families)
        ]
    if not parts:
        return np.zeros(0, np.float32)
    return torch.cat([p.reshape(-1).float() for p in parts]).cpu().numpy()


# ---- budgets and choice


@dataclass(frozen=True)
class Budget:
    """Groups of each layer and how many are kept, in the order of all_scores (agree_mask's)."""

    layer_groups: tuple[int, ...]
    layer_keep: tuple[int, ...]

    @property
    def full(self) -> bool:
        return self.layer_groups == self.layer_keep


def budget(families: Sequence[Family], density: float, scope: str = "layer") -> Budget:
    """scope "layer": every family keeps round(density * groups), at least one; "global": one
    budget over all. N:M families keep n of every m (all while density is 1), in either scope."""
    if scope not in ("layer", "global"):
        raise ValueError(f"budget scope is {scope!r}; known: layer, global")
    groups: list[int] = []
    keep: list[int] = []
    shared = [f for f in families if f.nm is None]
    if scope == "global" and len(shared) != len(families):
        raise ValueError("N:M families keep n of every m; they have no part in a global budget")
    if scope == "global" and families:
        total = sum(f.groups for f in families)
        return Budget((total,), (max(len(families), round(density * total)),))
    for family in families:
        if family.nm is not None:
            n, m, _ = family.nm
            windows = family.groups // m
            groups += [m] * windows
            keep += [m if density >= 1.0 else n] * windows
        else:
            groups.append(family.groups)
            keep.append(max(1, round(density * family.groups)))
    return Budget(tuple(groups), tuple(keep))


def top_k(scores, keep: int, incumbents=None, hysteresis: float = 0.0) -> np.ndarray:
    """The `keep` best of `scores` as a bool array; ties go to the lower index. Incumbents' scores
    count 1 + hysteresis times (masks then settle instead of swapping near-equal groups)."""
    values = np.array(scores, np.float64)
    if incumbents is not None and hysteresis:
        values[np.asarray(incumbents, bool)] *= 1.0 + hysteresis
    out = np.zeros(len(values), bool)
    out[np.argsort(-values, kind="stable")[:keep]] = True
    return out


def choose(scores, limits: Budget, incumbents=None, hysteresis: float = 0.0) -> np.ndarray:
    """top_k of every layer: what agree_mask does with the summed scores of all nodes."""
    out, at = [], 0
    for groups, keep in zip(limits.layer_groups, limits.layer_keep):
        before = None if incumbents is None else incumbents[at : at + groups]
        out.append(top_k(scores[at : at + groups], keep, before, hysteresis))
        at += groups
    return np.concatenate(out) if out else np.zeros(0, bool)


def with_floor(families: Sequence[Family], keep: np.ndarray) -> Budget | None:
    """After a global choice that emptied a family: budgets per family with at least one group each,
    the surplus taken from the largest. None when no family is empty. The same on every rank."""
    masks = split(families, keep)
    counts = [int(masks[f.name].sum()) for f in families]
    if all(counts):
        return None
    for i, count in enumerate(counts):
        if count == 0:
            counts[counts.index(max(counts))] -= 1
            counts[i] = 1
    return Budget(tuple(f.groups for f in families), tuple(counts))


def split(families: Sequence[Family], keep: np.ndarray) -> Masks:
    """One bool array over all groups -> {family name: its part}."""
    out, at = {}, 0
    for f in families:
        out[f.name] = np.asarray(keep[at : at + f.groups], bool)
        at += f.groups
    return out


def joined(families: Sequence[Family], masks: Masks) -> np.ndarray:
    """The inverse of split."""
    return np.concatenate([masks[f.name] for f in families]) if families else np.zeros(0, bool)


# ---- masks on tensors


def keep_vectors(families: Iterable[Family], masks: Masks, *, buffers: bool = False) -> dict:
    """{parameter: {dim: bool array}} of the families that cut whole dimensions. buffers: also of
    members that the structure does not mask (what shrinking cuts)."""
    out: dict[str, dict[int, np.ndarray]] = {}
    for family in families:
        if family.tile is not None or family.nm is not None:
            continue
        kept = np.append(masks[family.name], True)  # index -1, of no group, stays
        for m in family.members:
            if not buffers and (not m.masked or m.role == BUFFER):
                continue
            vector = kept[m.index]
            dims = out.setdefault(m.name, {})
            dims[m.dim] = dims[m.dim] & vector if m.dim in dims else vector
    return out


def cell_mask(family: Family, mask: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """A tile family's mask on its tile grid, or an N:M family's on its tensor (row-major)."""
    if family.tile is not None:
        grid = [-(-s // (t or s)) for s, t in zip(shape, family.tile)]
        return mask.reshape(grid)
    assert family.nm is not None
    dim = family.nm[2]
    moved = [s for d, s in enumerate(shape) if d != dim] + [shape[dim]]
    return np.ascontiguousarray(np.moveaxis(mask.reshape(moved), -1, dim))


def specs(
    families: Sequence[Family],
    masks: Masks,
    shapes: Mapping[str, Sequence[int]],
    *,
    contract: str = "project",
    epoch: int = 0,
) -> dict[str, MaskSpec]:
    """{parameter: MaskSpec} of every masked parameter, in its logical shape."""
    out: dict[str, MaskSpec] = {}
    for name, dims in keep_vectors(families, masks).items():
        out[name] = MaskSpec.dims(dims, contract=contract, epoch=epoch)
    for family in families:
        if family.tile is None and family.nm is None:
            continue
        name = family.members[0].name
        mask = masks[family.name]
        if name in out:
            raise ValueError(f"{name} is in two families that cannot be combined")
        if mask.all():
            out[name] = MaskSpec.dims({}, contract=contract, epoch=epoch)
            continue
        cells = cell_mask(family, mask, shapes[name])
        if family.tile is not None:
            out[name] = MaskSpec.blocks(family.tile, cells, contract=contract, epoch=epoch)
        else:
            assert family.nm is not None
            n, m, dim = family.nm
            out[name] = MaskSpec.nm(n, m, dim, cells, contract=contract, epoch=epoch)
    return out


class Dropped:
    """The dropped places of all parameters as index lists: zero_ writes +0 there and nowhere else,
    by selection, so that a NaN or an infinity in a dropped place goes too."""

    def __init__(self, families: Sequence[Family], masks: Masks, shapes, device="cpu") -> None:
        self._cuts: dict[str, list[tuple[int, torch.Tensor]]] = {}
        self._places: dict[str, torch.Tensor] = {}
        self.kept: dict[str, int] = {}
        for name, dims in keep_vectors(families, masks).items():
            cuts = [(d, np.flatnonzero(~k)) for d, k in sorted(dims.items())]
            self._cuts[name] = [(d, torch.from_numpy(i).to(device)) for d, i in cuts if len(i)]
            count = int(np.prod([s for d, s in enumerate(shapes[name]) if d not in dims]))
            self.kept[name] = count * int(np.prod([k.sum() for k in dims.values()]))
        for family in families:
            if family.tile is not None or family.nm is not None:
                name, mask = family.members[0].name, masks[family.name]
                self.kept[name] = int(family.sizes[mask].sum())
        for name, dense in cell_places(families, masks, shapes).items():
            self._places[name] = torch.from_numpy(~dense).to(device)

    def names(self) -> list[str]:
        """Parameters that lose anything."""
        return [n for n, cuts in self._cuts.items() if cuts] + list(self._places)

    def zero_(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Zeroes the dropped places of `tensor` (shaped as the parameter), in place."""
        for dim, index in self._cuts.get(name, ()):
            tensor.index_fill_(dim, index, 0)
        if name in self._places:
            tensor.masked_fill_(self._places[name], 0)
        return tensor


def cell_places(families: Sequence[Family], masks: Masks, shapes) -> dict[str, np.ndarray]:
    """{parameter: bool array in its shape} of families of tiles and N:M that drop anything."""
    return {
        f.members[0].name: _expand(f, masks[f.name], shapes[f.members[0].name])
        for f in families
        if (f.tile is not None or f.nm is not None) and not masks[f.name].all()
    }


def _expand(family: Family, mask: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    cells = cell_mask(family, mask, shape)
    if family.tile is None:
        return cells
    return cells[np.ix_(*[np.arange(s) // (t or s) for s, t in zip(shape, family.tile)])]


def project(
    families: Sequence[Family], masks: Masks, tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """m * tensor by selection for every tensor of the model, as new tensors (z_i = m * z~_i)."""
    dropped = Dropped(families, masks, {n: tuple(t.shape) for n, t in tensors.items()})
    return {n: dropped.zero_(n, t.detach().clone()) for n, t in tensors.items()}

# SPDX-License-Identifier: Apache-2.0
"""Pruning groups: which slices of which parameters live and die together.

A *family* is a set of groups of one kind, for example the filters of one convolution with all that
hangs on them; a *group* is one filter with its bias, its BatchNorm scale and shift, and the input
channels of every consumer. Families are found from the traced graph (groups_trace.py), from
PyTorch's own transformer modules (groups_attention.py), per layer without a graph (tiles, N:M), or
given by hand (manual_family). Source: the table of projection operators that belongs to H-SADMM's
z_i step; the idea of zero-invariant groups is OTO's (NeurIPS 2021).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterable, Sequence

import numpy as np
import torch
from torch import nn

from prunex.torch.masked import plain_model

FILTER, CHANNEL, FOLLOW, BUFFER = "filter", "channel", "follow", "buffer"
STRUCTURES = ("filter", "channel", "both", "column", "kernel", "block", "nm")


@dataclass(frozen=True, eq=False)
class Member:
    """One dimension of one parameter (or buffer) that follows a family.

    index: int64, one entry per place of dimension `dim`: the group it belongs to, -1 for none. A
    flattened feature map repeats each channel's group H*W times. role: FILTER (a producer's output
    dimension) and CHANNEL (a consumer's input dimension) are scored; FOLLOW (bias, BatchNorm) is
    masked but not scored; BUFFER (running statistics) is only cut when the model is shrunk.
    masked: whether the structure asked for zeroes it.
    """

    name: str
    dim: int
    index: np.ndarray
    role: str
    masked: bool = True

    @property
    def scored(self) -> bool:
        return self.masked and self.role in (FILTER, CHANNEL)


@dataclass(frozen=True, eq=False)
class Family:
    """`groups` groups of one kind; sizes[g]: elements a group has in its masked parameters (P_g).

    kind: "channels", "heads", "mlp", "tiles", "nm" or "manual". Tiles: `tile` is the edge per
    dimension, 0 for the whole dimension, groups are the cells of the tile grid, row-major. N:M:
    `nm` is (n, m, dim), groups are single elements, row-major with dim moved last, so that every m
    consecutive groups are one window of which n are kept.
    """

    name: str
    kind: str
    groups: int
    members: tuple[Member, ...]
    sizes: np.ndarray
    tile: tuple[int, ...] | None = None
    nm: tuple[int, int, int] | None = None

    def parameters(self) -> list[str]:
        """Names of the masked parameters, each once, in order."""
        return list(dict.fromkeys(m.name for m in self.members if m.masked and m.role != BUFFER))

    def __repr__(self) -> str:
        names = ", ".join(f"{m.name}[{m.dim}]" for m in self.members)
        return f"Family({self.name!r}, {self.kind}, {self.groups} groups: {names})"


def tensors_of(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """({name: parameter or buffer}, {any name: first name}): a shared tensor has one name, the
    first in module order; the second table leads its other names there."""
    tensors: dict[str, torch.Tensor] = {}
    first: dict[int, str] = {}
    alias: dict[str, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        own = list(module._parameters.items()) + list(module._buffers.items())
        for leaf, tensor in own:
            if tensor is None:
                continue
            name = f"{path}.{leaf}" if path else leaf
            alias[name] = first.setdefault(id(tensor), name)
            tensors.setdefault(alias[name], tensor)
    return tensors, alias


def make_family(
    name: str, kind: str, groups: int, members: Iterable[Member], tensors: dict[str, torch.Tensor]
) -> Family:
    """A family with its sizes counted and every member checked against the model's tensors."""
    members = tuple(members)
    sizes = np.zeros(groups, np.int64)
    for m in members:
        if m.name not in tensors:
            raise ValueError(f"family {name}: the model has no parameter or buffer {m.name!r}")
        shape = tuple(tensors[m.name].shape)
        if not 0 <= m.dim < len(shape) or len(m.index) != shape[m.dim]:
            raise ValueError(
                f"family {name}: {m.name} has shape {shape}, but the member maps {len(m.index)} "
                f"places of dimension {m.dim}"
            )
        if len(m.index) and (m.index.max() >= groups or m.index.min() < -1):
            raise ValueError(f"family {name}: {m.name} maps to a group outside -1..{groups - 1}")
        if m.masked and m.role != BUFFER:
            per_place = tensors[m.name].numel() // max(shape[m.dim], 1)
            sizes += np.bincount(m.index[m.index >= 0], minlength=groups) * per_place
    return Family(name, kind, groups, members, sizes)


def manual_family(
    model: nn.Module, name: str, members: Sequence[tuple], groups: int | None = None
) -> Family:
    """A family given by hand, for models that cannot be traced.

    members: (parameter name, dim) or (parameter name, dim, index), index as in Member; without it
    place i belongs to group i * groups // places, so that a flattened feature map repeats by
    itself. The first member decides the number of groups unless `groups` says so. Weights are
    scored, tensors of one dimension follow, buffers are only cut.

        manual_family(net, "block1", [("conv1.weight", 0), ("bn1.weight", 0), ("bn1.bias", 0),
                                      ("conv2.weight", 1)])
    """
    tensors, alias = tensors_of(model)
    out = []
    for entry in members:
        parameter, dim = entry[0], int(entry[1])
        tensor = tensors.get(alias.get(parameter, parameter))
        if tensor is None:
            raise ValueError(f"family {name}: the model has no parameter or buffer {parameter!r}")
        if not 0 <= dim < tensor.dim():
            raise ValueError(
                f"family {name}: {parameter} has shape {tuple(tensor.shape)}, no dimension {dim}"
            )
        places = tensor.shape[dim]
        groups = places if groups is None else groups
        if len(entry) > 2:
            index = np.asarray(entry[2], np.int64)
        elif places % groups:
            raise ValueError(
                f"family {name}: {parameter} has {places} places in dimension {dim}, not a "
                f"multiple of {groups} groups; give the index as a third entry"
            )
        else:
            index = np.arange(places, dtype=np.int64) * groups // places
        if not isinstance(tensor, nn.Parameter):
            role = BUFFER
        elif tensor.dim() < 2:
            role = FOLLOW
        else:
            role = FILTER if dim == 0 else CHANNEL
        out.append(Member(alias.get(parameter, parameter), dim, index, role))
    if not out:
        raise ValueError(f"family {name} has no members")
    assert groups is not None  # of the first member at the latest
    return make_family(name, "manual", int(groups), out, tensors)


def with_structure(family: Family, structure: str, tensors: dict[str, torch.Tensor]) -> Family:
    """The same family with only the members that `structure` zeroes marked as masked: "filter" the
    producers with what follows them, "channel" the consumers' inputs, "both" all of them."""
    wanted = {
        "filter": (FILTER, FOLLOW),
        "channel": (CHANNEL,),
        "both": (FILTER, CHANNEL, FOLLOW),
    }[structure]
    members = [replace(m, masked=m.role in wanted) for m in family.members]
    return make_family(family.name, family.kind, family.groups, members, tensors)


def layer_families(
    model: nn.Module,
    structure: str,
    *,
    block: Sequence[int] = (4, 4),
    nm: tuple[int, int] = (2, 4),
    exclude: Iterable[str] = (),
) -> tuple[list[Family], dict[str, str]]:
    """Families inside single weights, which need no graph: "column" (GEMM columns: one input
    channel at one kernel place), "kernel", "block" (block[0] outputs x block[1] inputs, edge tiles
    partial) and "nm" (n of every m input channels, element by element).

    Convolutions with groups == 1 and Linear layers. Returns the families and, for every weight left
    out, the reason. Nothing here removes an output, so coupling between layers plays no part.
    """
    tensors, alias = tensors_of(model)
    left_out: dict[str, str] = {}
    families: dict[str, Family] = {}
    excluded = set(exclude)
    for path, module in model.named_modules():
        conv = isinstance(module, nn.modules.conv._ConvNd)
        if not conv and not isinstance(module, nn.Linear):
            continue
        name = alias[f"{path}.weight" if path else "weight"]
        shape = tuple(module.weight.shape)
        inputs = 0 if getattr(module, "transposed", False) else 1
        if name in excluded or path in excluded:
            left_out[name] = "excluded"
        elif conv and module.groups != 1:
            left_out[name] = f"grouped convolution (groups={module.groups})"
        elif structure == "kernel" and not conv:
            left_out[name] = "a Linear layer has no kernels"
        elif structure == "nm" and shape[inputs] % nm[1]:
            left_out[name] = f"{shape[inputs]} inputs are not a multiple of {nm[1]}"
        else:
            families[name] = _inside_weight(name, shape, inputs, structure, block, nm)
    return list(families.values()), left_out


def _inside_weight(name, shape, inputs, structure, block, nm) -> Family:
    """One weight's tile or N:M family; inputs: its input dimension (0 in a ConvTranspose)."""
    member = Member(name, inputs, np.arange(shape[inputs], dtype=np.int64), CHANNEL)
    if structure == "nm":
        count = int(np.prod(shape))
        if not 0 < nm[0] <= nm[1]:
            raise ValueError(f"nm is {nm}; wanted (n, m) with 0 < n <= m")
        sizes = np.ones(count, np.int64)
        return Family(name, "nm", count, (member,), sizes, nm=(int(nm[0]), int(nm[1]), inputs))
    spatial = len(shape) - 2
    tile = {
        "column": [1] * len(shape),
        "kernel": [1, 1] + [0] * spatial,
        "block": [int(block[0]), int(block[1])] + [0] * spatial,
    }[structure]
    if structure == "column":
        tile[1 - inputs] = 0
    elif structure == "block" and inputs == 0:
        tile[0], tile[1] = tile[1], tile[0]
    if min(tile) < 0:
        raise ValueError(f"block is {tuple(block)}; wanted edges >= 0")
    edges = [t or s for t, s in zip(tile, shape)]
    lengths = [np.minimum(e, s - np.arange(0, s, e, dtype=np.int64)) for e, s in zip(edges, shape)]
    sizes = lengths[0]
    for length in lengths[1:]:
        sizes = np.multiply.outer(sizes, length)
    sizes = sizes.reshape(-1)
    return Family(name, "tiles", len(sizes), (member,), sizes, tile=tuple(tile))


def find_groups(
    model: nn.Module,
    example=None,
    *,
    structure: str = "both",
    residual: str = "skip",
    heads: bool = True,
    exclude: Iterable[str] = (),
    opaque: Iterable[str] = (),
    block: Sequence[int] = (4, 4),
    nm: tuple[int, int] = (2, 4),
) -> list[Family]:
    """The families of `model` for one structure, named as in the plain model where it is wrapped.

    example: one input (a tensor, or a tuple of arguments), needed for "filter", "channel" and
    "both"; its batch may be 1, it is run once without gradients and in evaluation mode. residual:
    "skip" leaves channels that meet in an addition dense (prunes the inner convolutions of a
    block), "tie" gives all that meet there one mask. heads: attention heads too. exclude: modules
    or parameters (by name) never pruned. opaque: modules the tracer must not enter; what they read
    and give stays dense. Network outputs are never pruned.

    Families hold names only, so one list serves equal models. torch.fx replaces nn.Module's call
    while it traces: no other thread may run a model meanwhile.

    Raises UntraceableError naming the module when the graph cannot be traced; then use `opaque`,
    or manual_family.
    """
    if structure not in STRUCTURES:
        raise ValueError(f"structure is {structure!r}; known: {', '.join(STRUCTURES)}")
    if residual not in ("skip", "tie"):
        raise ValueError(f"residual is {residual!r}; known: skip, tie")
    exclude, model = set(exclude), plain_model(model)
    if structure in ("column", "kernel", "block", "nm"):
        return layer_families(model, structure, block=block, nm=nm, exclude=exclude)[0]
    from prunex.torch.groups_attention import attention_families
    from prunex.torch.groups_trace import trace_families

    if example is None:
        raise ValueError(f"structure {structure!r} needs example=, one input of the model")
    tensors, _ = tensors_of(model)
    families = trace_families(model, example, residual=residual, opaque=set(opaque))
    seen = {(m.name, m.dim) for f in families for m in f.members}
    for family in attention_families(model):
        if not any((m.name, m.dim) in seen for m in family.members):
            families.append(family)
    out = []
    for family in families:
        names = {m.name for m in family.members}
        if names & exclude or {n.rpartition(".")[0] for n in names} & exclude:
            continue
        if family.kind == "heads" and not heads:
            continue
        out.append(with_structure(family, structure, tensors))
    return out

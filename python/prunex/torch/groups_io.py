# SPDX-License-Identifier: Apache-2.0
"""Group lists of other pruning tools, read without importing them."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import nn

from ..errors import InvalidArgument

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORM = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.PReLU)


def _item(model: nn.Module, item: Any) -> Optional[Tuple[nn.Module, str, Sequence[int]]]:
    """(module, "out" or "in", pruned indices); None where the item has no parameters of its own."""
    if isinstance(item, str) or not hasattr(item, "__len__") or len(item) not in (2, 3):
        raise InvalidArgument(
            f"group item {item!r}: wanted (layer, 'out' or 'in', [pruned indices]); groups are lists "
            "of such items"
        )
    if len(item) == 3:
        named: Union[str, nn.Module] = item[0]
        found = dict(model.named_modules()).get(named) if isinstance(named, str) else named
        if found is None:
            first = ", ".join([name for name, _ in model.named_modules() if name][:8])
            raise InvalidArgument(f"there is no module {named!r}; the first ones are: {first}")
        if item[1] not in ("out", "in"):
            raise InvalidArgument(f"group item {item[1]!r}: 'out' or 'in'")
        return found, item[1], item[2]
    dependency, indices = item[0], item[1]
    module = getattr(getattr(dependency, "target", None), "module", None)
    if not isinstance(module, nn.Module):
        return None
    handler = getattr(dependency, "handler", None)
    name = getattr(handler, "__name__", str(handler))
    return module, "in" if "in_channels" in name else "out", indices


def _tensors(module: nn.Module, side: str) -> List[Tuple[str, int]]:
    """Parameters of a layer that a channel of its input or output lies in, and the dimension."""
    grouped = getattr(module, "groups", 1)
    if isinstance(module, _CONV + _TRANSPOSED):
        depthwise = grouped > 1 and grouped == module.in_channels
        if grouped > 1 and not depthwise:
            raise InvalidArgument(
                f"{module} has {grouped} groups: channels of grouped convolutions are not supported"
            )
        if depthwise:
            return [("weight", 0), ("bias", 0)]
        out_dim = 1 if isinstance(module, _TRANSPOSED) else 0
        return [("weight", out_dim), ("bias", 0)] if side == "out" else [("weight", 1 - out_dim)]
    if isinstance(module, nn.Linear):
        return [("weight", 0), ("bias", 0)] if side == "out" else [("weight", 1)]
    if isinstance(module, nn.Embedding):
        return [("weight", 1)] if side == "out" else [("weight", 0)]
    if isinstance(module, _NORM):
        return [("weight", 0), ("bias", 0)]
    if any(True for _ in module.parameters(recurse=False)):
        raise InvalidArgument(f"a group names a {type(module).__name__}; set its mask by hand")
    return []


def _indices(indices: Sequence[int], name: str, dim: int, size: int) -> np.ndarray:
    numbers = np.asarray([int(i) if torch.is_tensor(i) else i for i in indices])
    if torch.is_tensor(indices) and indices.dtype == torch.bool:
        numbers = numbers.astype(bool)
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise InvalidArgument(
            f"{name}: pruned indices are numbers, not {numbers.dtype.name}; of booleans that are "
            "True where a channel is dropped, numpy.flatnonzero gives them"
        )
    bad = numbers[(numbers < 0) | (numbers >= size)]
    if bad.size:
        raise InvalidArgument(f"{name}: index {bad[0]} is outside dimension {dim} of size {size}")
    return numbers.astype(np.int64)


def dims_of_groups(
    model: nn.Module,
    groups: Iterable[Any],
    name_of: Callable[[torch.Tensor], Optional[str]],
) -> Dict[str, Dict[int, np.ndarray]]:
    """{parameter name: {dimension: kept}} of groups of pruned channels."""
    keep: Dict[str, Dict[int, np.ndarray]] = {}
    for group in groups:
        for raw in group:
            item = _item(model, raw)
            if item is None:
                continue
            module, side, indices = item
            for attribute, dim in _tensors(module, side):
                parameter = getattr(module, attribute, None)
                if parameter is None:
                    continue
                name = name_of(parameter)
                if name is None:
                    raise InvalidArgument(f"a group's {type(module).__name__} is not of this model")
                size = parameter.shape[dim]
                pruned = _indices(indices, name, dim, size)
                vector = keep.setdefault(name, {}).setdefault(dim, np.ones(size, dtype=bool))
                vector[pruned] = False
    return keep

# SPDX-License-Identifier: Apache-2.0
"""Physical shrinking: the masked model with its dropped channels cut out, and BatchNorm statistics
taken anew. The last step of H-SADMM, once the mask is frozen; a new optimizer (and a new DDP wrap)
is needed afterwards, for parameters are other objects of other shapes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Iterable, Sequence

import numpy as np
import torch
from torch import nn

from prunex.torch.groups import Family, tensors_of
from prunex.torch.groups_trace import evaluation
from prunex.torch.masked import plain_model
from prunex.torch.projection import Dropped, Masks, keep_vectors


class ShrinkError(RuntimeError):
    """The shrunk model does not compute what the masked one does."""


@dataclass(frozen=True)
class Shrunk:
    """model: the smaller copy. left_masked: families that stay masked at full size: attention heads
    (the number of heads and the width are fixed in the model's code), tiles and N:M. difference:
    largest |shrunk - masked| over the example's outputs, None without an example."""

    model: nn.Module
    parameters_before: int
    parameters_after: int
    left_masked: tuple[str, ...]
    difference: float | None


@torch.no_grad()
def shrink(
    model: nn.Module,
    families: Sequence[Family],
    masks: Masks,
    example=None,
    tolerance: float = 1e-5,
) -> Shrunk:
    """A copy of `model` without the dropped channels of every family with whole dimensions.

    All members are cut, also those that the structure did not mask: a consumer's channels of a
    dropped filter and the running statistics. With an example input the copy is compared with the
    masked model in evaluation mode: only terms that are zero leave the sums, so outputs may differ
    by the order of summation, |difference| <= tolerance * max(1, largest |output|); more than that
    raises ShrinkError (then a dropped channel was not zero for its consumer: structure "filter"
    with an activation that is not 0 at 0; use "both"). `model` itself is not changed.
    """
    model = plain_model(model)
    whole = [f for f in families if f.kind not in ("heads", "tiles", "nm")]
    left = tuple(f.name for f in families if f not in whole and not masks[f.name].all())
    for family in whole:
        if not masks[family.name].any():
            raise ShrinkError(f"family {family.name} keeps no group: the network would end there")
    masked = copy.deepcopy(model)
    tensors, _ = tensors_of(masked)
    shapes = {n: tuple(t.shape) for n, t in tensors.items()}
    dropped = Dropped(families, masks, shapes, next(iter(tensors.values())).device)
    for name in dropped.names():
        dropped.zero_(name, tensors[name])
    small = copy.deepcopy(masked)
    before = sum(p.numel() for p in small.parameters())
    _cut(small, keep_vectors(whole, masks, buffers=True))
    after = sum(p.numel() for p in small.parameters())
    difference = None if example is None else _compare(masked, small, example, tolerance)
    return Shrunk(small, before, after, left, difference)


def _cut(model: nn.Module, vectors: dict[str, dict[int, np.ndarray]]) -> None:
    """Replaces every tensor by its kept part, wherever it is used, and puts module sizes right."""
    tensors, alias = tensors_of(model)
    cut: dict[str, torch.Tensor] = {}
    for name, dims in vectors.items():
        tensor = tensors[name].detach()
        for dim, keep in dims.items():
            index = torch.from_numpy(np.flatnonzero(keep)).to(tensor.device)
            tensor = tensor.index_select(dim, index)
        if isinstance(tensors[name], nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=tensors[name].requires_grad)
        cut[name] = tensor
    for path, module in model.named_modules():
        changed = False
        for table in (module._parameters, module._buffers):
            for leaf in table:
                known = alias.get(f"{path}.{leaf}" if path else leaf)
                if known in cut:
                    table[leaf] = cut[known]
                    changed = True
        if changed:
            _resize(module)


def _resize(module: nn.Module) -> None:
    """Size attributes from the weights' shapes."""
    if isinstance(module, nn.modules.conv._ConvNd):
        first, second = module.weight.shape[:2]
        depthwise = module.groups > 1 and module.groups == module.in_channels
        if depthwise:
            per_channel = module.out_channels // module.groups
            module.groups = first if module.transposed else first // per_channel
            module.in_channels, module.out_channels = module.groups, module.groups * per_channel
        elif module.transposed:
            module.in_channels, module.out_channels = first, second * module.groups
        else:
            module.in_channels, module.out_channels = second * module.groups, first
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(
        module, (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
    ):
        own = [*module._parameters.values(), *module._buffers.values()]
        module.num_features = next(len(t) for t in own if t is not None and t.dim() == 1)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)


def _outputs(result) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    values = result.values() if isinstance(result, dict) else result
    return [t for part in values if part is not None for t in _outputs(part)]


def _compare(masked: nn.Module, small: nn.Module, example, tolerance: float) -> float:
    args = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    with evaluation(masked), evaluation(small):
        wanted = _outputs(masked(*copy.deepcopy(args)))
        try:
            got = _outputs(small(*copy.deepcopy(args)))
        except RuntimeError as error:
            raise ShrinkError(
                f"the shrunk model does not run: {error}. A size may be written into forward(): "
                "use -1 or flatten there, or exclude that module from find_groups"
            ) from error
    worst = 0.0
    for a, b in zip(wanted, got):
        difference = float((a - b).abs().max()) if a.numel() else 0.0
        bound = tolerance * max(1.0, float(a.abs().max()) if a.numel() else 0.0)
        if not difference <= bound:
            raise ShrinkError(
                f"shrunk and masked outputs differ by {difference:.3g}, more than {bound:.3g}: a "
                "dropped channel still reaches its consumer; use structure='both'"
            )
        worst = max(worst, difference)
    return worst


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable) -> int:
    """Takes BatchNorm's running statistics anew, as the plain mean over `batches` (each an input or
    a tuple of arguments); pruning moves them. Returns the number of batches. Nothing else changes.
    """
    norms = [
        m
        for m in model.modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats
    ]
    momenta = [m.momentum for m in norms]
    count = 0
    with evaluation(model):
        for m in norms:
            m.reset_running_stats()
            m.momentum = None  # the cumulative mean
            m.training = True
        try:
            for batch in batches:
                model(*(batch if isinstance(batch, (tuple, list)) else (batch,)))
                count += 1
        finally:
            for m, momentum in zip(norms, momenta):
                m.momentum = momentum
    return count

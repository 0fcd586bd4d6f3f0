# SPDX-License-Identifier: Apache-2.0
"""Small models, and plain DDP beside ours."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prunex import MaskSpec
from prunex.torch import MaskedParameters

# What tests skip where torch itself cannot.
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])

# Buckets of 4 KiB: several per model, so that they are rebuilt and run behind the backward.
SMALL_BUCKETS = 4096 / 1024 / 1024


def cnn(odd: bool = True) -> nn.Module:
    """Convolutions of odd sizes, so that segments of buckets are unaligned; no BatchNorm."""
    torch.manual_seed(7)
    width = 13 if odd else 16
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 24, 1),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 11),
    )


def gradients(model: nn.Module) -> Dict[str, torch.Tensor]:
    """Copies, by the parameters' names without DDP's prefix."""
    inner = model.module if hasattr(model, "module") else model
    return {n: p.grad.clone() for n, p in inner.named_parameters() if p.grad is not None}


def batch(rank: int, step: int, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(4, channels, 6, 6, generator=generator)


def train(
    model: nn.Module,
    rank: int,
    steps: int,
    first: int = 0,
    lr: float = 0.1,
    momentum: float = 0.0,
    forward: Optional[Callable[[nn.Module, int], torch.Tensor]] = None,
    after: Optional[Callable[[int], None]] = None,
    optimizer: Optional[torch.optim.Optimizer] = None,
) -> List[float]:
    """SGD steps on this rank's batches; the losses."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = (
            forward(model, step)
            if forward is not None
            else model(batch(rank, step)).float().square().mean()
        )
        loss.backward()
        optimizer.step()
        if after is not None:
            after(step)
        losses.append(float(loss.detach()))
    return losses


def ddp(model: nn.Module, **options: Any) -> DistributedDataParallel:
    options.setdefault("bucket_cap_mb", SMALL_BUCKETS)
    return DistributedDataParallel(model, **options)


def state_of(model: nn.Module) -> Dict[str, torch.Tensor]:
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return {name: p.detach().clone() for name, p in inner.named_parameters()}


def assert_close(
    ours: Dict[str, torch.Tensor], plain: Dict[str, torch.Tensor], bound: float
) -> None:
    for name, value in plain.items():
        worst = (ours[name].float() - value.float()).abs().max().item()
        assert worst <= bound * max(1.0, value.float().abs().max().item()), f"{name}: {worst}"


# Of cnn(): every second filter of its first convolution, two thirds of the second's.
CHANNELS = np.arange(13) % 2 == 0
FILTERS = np.arange(24) % 3 != 0


def specs(contract, shift=0):
    a, b = np.roll(CHANNELS, shift), np.roll(FILTERS, shift)
    return {
        "0.weight": MaskSpec.dims({0: a}, contract),
        "0.bias": MaskSpec.dims({0: a}, contract),
        "2.weight": MaskSpec.dims({0: b, 1: a}, contract),
        "2.bias": MaskSpec.dims({0: b}, contract),
        "4.weight": MaskSpec.dims({1: b}, contract),
    }


def masked(model, contract="project"):
    masks = MaskedParameters(model)
    masks.set_all(specs(contract))
    return masks

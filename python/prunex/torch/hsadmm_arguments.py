# SPDX-License-Identifier: Apache-2.0
"""What HSADMM is given, checked before anything is sent: errors name the argument and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from prunex.torch.groups import Family
from prunex.torch.schedule import as_schedule


def check_arguments(
    model: nn.Module,
    optimizer: Any,
    comm: Any,
    families: Sequence[Family],
    density: Any,
    counts: Mapping[str, int],
    penalties: Mapping[str, float],
    score: str,
    balance: str | None,
) -> Any:
    """The density's schedule; TypeError or ValueError if something is not what HSADMM takes."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise TypeError(
            "HSADMM wants the plain model: DDP would average the gradients of local steps. "
            "Wrap it after finish(), or leave the exchange of fine-tuning to HSADMM"
        )
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"the optimizer is a {type(optimizer).__name__}; wanted one of torch.optim's, such as "
            "SGD(model.parameters(), lr)"
        )
    if comm is not None and not hasattr(comm, "agree_mask"):
        raise TypeError(
            f"comm is a {type(comm).__name__}; wanted a Communicator: "
            "prunex.torch.communicator(group) makes one of a process group"
        )
    if isinstance(families, str) or not all(isinstance(f, Family) for f in families):
        raise TypeError("families: wanted a list of what find_groups or manual_family gives")
    for what, steps in counts.items():
        if steps < 1:
            raise ValueError(f"{what} is {steps}; wanted at least 1")
    for what, value in penalties.items():
        if not value > 0:
            raise ValueError(f"{what} is {value}; wanted a number above 0")
    if score not in ("theta", "z_tilde"):
        raise ValueError(f"score is {score!r}; known: theta, z_tilde")
    if balance not in ("global", "layer", None):
        raise ValueError(f"balance is {balance!r}; known: global, layer, None")
    schedule = as_schedule(density)
    if schedule.target < 1 and not families:
        raise ValueError(
            f"density is {schedule.target:g} but no families are given: pass what "
            "find_groups(model, example) or manual_family finds to prune"
        )
    return schedule

# SPDX-License-Identifier: Apache-2.0
"""Sparsity schedules: density (share of groups kept, 0 < d <= 1) by epoch or round. Pure.

Step 0 of the algorithm: rounds with every group kept, then a ramp to the target (linear, or cubic
as in Zhu and Gupta, arXiv 1710.01878), then the target. A schedule is called with the epoch (or
round, any number >= 0) and is a plain value: it pickles, compares and prints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Mapping


def check_density(value: float, what: str) -> float:
    """`value` as a float in (0, 1]; ValueError naming `what` otherwise."""
    density = float(value)
    if not (math.isfinite(density) and 0.0 < density <= 1.0):
        raise ValueError(f"{what} is {value!r}; a density is the share kept: above 0, at most 1")
    return density


@dataclass(frozen=True)
class Constant:
    """The same density from the start."""

    density: float

    def __post_init__(self) -> None:
        check_density(self.density, "Constant(density)")

    @property
    def target(self) -> float:
        return self.density

    def __call__(self, time: float) -> float:
        return self.density


@dataclass(frozen=True)
class Ramp:
    """`initial` until `begin`, `target` from `end`, between them `power` 1 (linear) or 3 (cubic).

    Cubic prunes most at the beginning, while the network can still recover:
    d(t) = target + (initial - target) * (1 - (t - begin) / (end - begin)) ** power.
    """

    target: float
    begin: float = 2
    end: float = 8
    initial: float = 1.0
    power: float = 3

    def __post_init__(self) -> None:
        check_density(self.target, "Ramp(target)")
        check_density(self.initial, "Ramp(initial)")
        if not (0 <= self.begin <= self.end):
            raise ValueError(f"Ramp runs from {self.begin} to {self.end}; wanted 0 <= begin <= end")
        if not self.power > 0:
            raise ValueError(f"Ramp(power) is {self.power}; wanted a number above 0")

    def __call__(self, time: float) -> float:
        if time >= self.end:
            return self.target
        if time <= self.begin:
            return self.initial
        left = 1.0 - (time - self.begin) / (self.end - self.begin)
        return self.target + (self.initial - self.target) * left**self.power


@dataclass(frozen=True)
class Steps:
    """Density by the latest step reached: Steps({0: 1.0, 5: 0.7, 10: 0.5}). Before the first: 1."""

    steps: Mapping[float, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("Steps is empty; wanted for instance {0: 1.0, 5: 0.5}")
        for time, density in self.steps.items():
            check_density(density, f"Steps[{time}]")

    @property
    def target(self) -> float:
        return self.steps[max(self.steps)]

    def __call__(self, time: float) -> float:
        reached = [t for t in self.steps if t <= time]
        return self.steps[max(reached)] if reached else 1.0


def cubic(target: float, begin: float = 2, end: float = 8, initial: float = 1.0) -> Ramp:
    """The default: two times of every group, then a cubic ramp over six."""
    return Ramp(target, begin, end, initial, 3)


def linear(target: float, begin: float = 2, end: float = 8, initial: float = 1.0) -> Ramp:
    """As cubic, with equal steps."""
    return Ramp(target, begin, end, initial, 1)


def as_schedule(value):
    """A number becomes the default cubic ramp to it; a schedule stays what it is."""
    if isinstance(value, (int, float)):
        return cubic(check_density(value, "density"))
    if callable(value) and hasattr(value, "target"):
        return value
    raise TypeError(
        f"density is {value!r}; wanted a number in (0, 1] or a schedule: a callable of the epoch "
        "with an attribute `target`"
    )

# SPDX-License-Identifier: Apache-2.0
"""PruneX: masks, and a hierarchical all-reduce that sends only what they keep.

    import numpy as np, prunex
    with prunex.Communicator() as comm:            # ranks as torchrun or mpirun set them
        grads = np.zeros((64, 32, 3, 3), np.float32)
        keep = np.arange(64) % 2 == 0                          # every second filter
        spec = prunex.MaskSpec.dims({0: keep})
        mask = prunex.register_mask(grads, spec, name="conv.weight")   # until mask.close()
        comm.all_reduce(grads, op="avg")

``prunex.torch`` holds what PyTorch trainers use; it is imported on its own.
"""

from __future__ import annotations

from . import errors
from ._library import library as _library
from ._library import library_path
from .communicator import Communicator
from .errors import *  # noqa: F401,F403
from .layout import Layout, LayoutInfo
from .masks import Mask, MaskInfo, MaskSpec, register_mask
from .request import Request
from .stats import NetKind, NetStats, Stats, net_stats

__version__ = "0.1.0"

__all__ = [
    "Communicator",
    "Layout",
    "LayoutInfo",
    "Mask",
    "MaskInfo",
    "MaskSpec",
    "NetKind",
    "NetStats",
    "Request",
    "Stats",
    "library_path",
    "net_stats",
    "register_mask",
    "version",
    *errors.__all__,
]


def version() -> str:
    """Version of the loaded library, as "major.minor.patch"."""
    number = _library().prunex_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

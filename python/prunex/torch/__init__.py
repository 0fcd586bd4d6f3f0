# SPDX-License-Identifier: Apache-2.0
"""PruneX for PyTorch: masked parameters, the DDP communication hook, the backend, baselines.

Nothing here is imported before it is used, so that each part needs only its own share of torch.
"""

from __future__ import annotations

import importlib
from typing import Any, List

_WHERE = {
    "MaskedParameters": "masked",
    "PrunexState": "hook",
    "prunex_hook": "hook",
    "checked": "hook",
    "communicator": "world",
    "register_backend": "backend",
    "TopKState": "baselines",
    "topk_hook": "baselines",
    "DenseState": "baselines",
    "dense_hook": "baselines",
    "powersgd": "baselines",
    "HSADMM": "hsadmm",
    "find_groups": "groups",
    "manual_family": "groups",
    "shrink": "shrink",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *_WHERE})

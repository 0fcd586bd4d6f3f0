# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of HSADMM: plain values and tensors, checked against the model before use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from prunex.torch.hsadmm import HSADMM

VERSION = 1
_FLAT = ("u", "z_i", "z", "u_mean")
_PLAIN = (
    "phase",
    "rounds",
    "steps_in_round",
    "stable_rounds",
    "epoch",
    "frozen_at",
    "exchange_gradients",
)


def save_state(admm: HSADMM) -> dict:
    """What load_state needs, on the host, sharing no memory with the running state."""
    state = admm.state
    return {
        "version": VERSION,
        "names": list(state.names),
        "shapes": [list(p.shape) for p in state.thetas],
        "world": _world(admm),
        **{k: getattr(state, k).detach().cpu().clone() for k in _FLAT},
        "v": state.v.cpu(),
        # v as it is kept: y - z times a factor, so that what follows has the same bits.
        "y": state.flat["y"].detach().cpu().clone(),
        "pending_v": state.pending["v"].tolist(),
        "rho1": state.rho1.tolist(),
        "rho2": state.rho2.tolist(),
        "masks": {k: torch.from_numpy(m.copy()) for k, m in state.masks.items()},
        **{k: getattr(admm, k) for k in _PLAIN},
        "unpulled": admm._unpulled,
        "optimizer": admm.optimizer.state_dict(),
    }


def load_state(admm: HSADMM, saved: dict) -> None:
    """Takes a checkpoint over; ValueError, and nothing changed, if it is not of this run."""
    _check(admm, saved)
    state = admm.state
    for k in _FLAT:
        getattr(state, k).copy_(saved[k])
    state.load_v(saved["v"].to(state.device))
    if "y" in saved:
        state.flat["y"].copy_(saved["y"])
        state.pending["v"] = np.array(saved["pending_v"])
    state.rho1, state.rho2 = np.array(saved["rho1"]), np.array(saved["rho2"])
    state.set_masks({k: m.numpy() for k, m in saved["masks"].items()})
    admm.exchange.use_masks(state, saved["rounds"])
    for k in _PLAIN:
        setattr(admm, k, saved[k])
    admm._unpulled = saved.get("unpulled", 0)
    admm.optimizer.load_state_dict(saved["optimizer"])


def _world(admm: HSADMM) -> list[int]:
    return [admm.exchange.size, admm.exchange.M, admm.exchange.rank]


def _check(admm: HSADMM, saved: dict) -> None:
    state = admm.state
    if saved.get("version") != VERSION:
        raise ValueError(f"the checkpoint has version {saved.get('version')!r}; wanted {VERSION}")
    own = dict(zip(state.names, (list(p.shape) for p in state.thetas)))
    other = dict(zip(saved["names"], saved["shapes"]))
    for name in list(own) + list(other):
        if own.get(name) != other.get(name):
            raise ValueError(
                f"the checkpoint is of another model: {name} is {other.get(name)} there and "
                f"{own.get(name)} here"
            )
    if list(own) != list(other):
        raise ValueError("the checkpoint has the model's parameters in another order")
    groups = {f.name: f.groups for f in state.families}
    there = {k: len(m) for k, m in saved["masks"].items()}
    if groups != there:
        odd = sorted(k for k in groups.keys() | there.keys() if groups.get(k) != there.get(k))
        raise ValueError(
            f"the checkpoint has other pruning groups: {odd[0]} has {there.get(odd[0])} there and "
            f"{groups.get(odd[0])} here"
        )
    if list(saved["world"]) != _world(admm):
        size, nodes, rank = saved["world"]
        raise ValueError(
            f"the checkpoint is of rank {rank} of {size} on {nodes} nodes, this is rank "
            f"{admm.exchange.rank} of {admm.exchange.size} on {admm.exchange.M}: duals belong to "
            "one place in one world"
        )

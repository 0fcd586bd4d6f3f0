# SPDX-License-Identifier: Apache-2.0
"""The ways to train that train_cnn.py compares; each exchanges gradients or models in its own way."""

from __future__ import annotations

import inspect
from typing import Any, Dict, List, Optional

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from prunex.torch import (
    HSADMM,
    DenseState,
    MaskedParameters,
    PrunexState,
    TopKState,
    communicator,
    dense_hook,
    find_groups,
    powersgd,
    prunex_hook,
    topk_hook,
)
from prunex.torch.schedule import Ramp
from train_measure import Exchange

METHODS = ("dense", "dense-prunex", "topk", "topk-0.01", "powersgd-1", "powersgd-4", "powersgd-16")
PRUNEX = "prunex"


class Method:
    """One model in training. step() is one minibatch; decisions about the training (its end, a
    test) are taken only while ready() says so, on all ranks alike."""

    def __init__(self, model: nn.Module, options: Any) -> None:
        self.model, self.options = model, options
        self.optimizer = self._sgd()
        self.exchange = Exchange()
        self.comm: Any = None
        self.runner: nn.Module = model

    def _sgd(self) -> torch.optim.Optimizer:
        options = self.options
        return torch.optim.SGD(
            self.model.parameters(), options.lr, momentum=0.9, weight_decay=options.weight_decay
        )

    def _wrapped(self, state: Any, hook: Any, equal: bool) -> DDP:
        """equal: the ranks' parameters are the same already."""
        known = inspect.signature(DDP.__init__).parameters
        # BatchNorm's statistics stay each rank's own; the option's name depends on torch's version.
        new = "forward_sync_buffers" in known
        more = {"forward_sync_buffers" if new else "broadcast_buffers": False}
        if equal and "init_sync" in known:
            more["init_sync"] = False
        ddp = DDP(self.model, gradient_as_bucket_view=True, **more)
        ddp.register_comm_hook(state, self.exchange.timed(hook))
        return ddp

    def set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    @property
    def phase(self) -> str:
        return "ddp"

    def advance(self, fraction: float) -> None:
        """Told what share of the training is over, whenever ready()."""
        left = 1.0 - min(fraction, 1.0)
        self.set_rate(self.options.lr * max(left, 0.05))

    def ready(self) -> bool:
        return True

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.runner(images), labels)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def stats(self) -> Any:
        return self.comm.stats() if self.comm is not None else None

    def exchange_seconds(self) -> float:
        return self.exchange.seconds

    def results(self) -> Dict[str, Any]:
        """What is particular to the method, for the report."""
        return {"density": 1.0}

    def masks(self) -> List[Any]:
        """The masks, in a fixed order."""
        return []

    def close(self) -> None:
        if self.comm is not None:
            self.comm.close()


class Hooked(Method):
    """DistributedDataParallel with a communication hook."""

    def __init__(self, name: str, model: nn.Module, options: Any) -> None:
        super().__init__(model, options)
        self.density = 1.0
        if name == "dense":  # what DDP does by itself, watched
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            state, hook = None, allreduce_hook
        elif name == "dense-prunex":
            self.comm = communicator(name=f"train-{name}")
            state, hook = DenseState(self.comm), dense_hook
        elif name.startswith("topk"):
            self.comm = communicator(name=f"train-{name}")
            self.density = float(name[5:]) if name[5:] else options.topk_density
            # At large densities values and indices of all ranks are more than the dense buffer;
            # always: send them all the same, for that is the comparison.
            state, hook = TopKState(self.comm, self.density, always=True), topk_hook
        else:
            state, hook = powersgd(rank=int(name.partition("-")[2]), start=2)
        self.runner = self._wrapped(state, hook, equal=True)

    def results(self) -> Dict[str, Any]:
        return {"density": self.density}


class Prunex(Method):
    """H-SADMM rounds until the mask is frozen, then fine-tuning with compacted gradients."""

    def __init__(self, keep: float, model: nn.Module, options: Any) -> None:
        super().__init__(model, options)
        self.comm = communicator(name=f"train-prunex-{keep}")
        example = torch.zeros(1, 1, 8, 8)
        families = find_groups(model, example, exclude=["stem"])
        # Time is the share of the ADMM phase that is over, in tenths: all groups, a cubic ramp,
        # then rounds at the target for the mask to settle.
        self.admm = HSADMM(
            model,
            self.optimizer,
            self.comm,
            families,
            Ramp(keep, begin=1, end=7),
            local_steps=options.local_steps,
            pull_every=4,
        )
        self.admm.set_epoch(0.0)
        self.keep, self.tuned = keep, False
        self.hook_state: Optional[PrunexState] = None
        self.advance(0.0)

    @property
    def phase(self) -> str:
        return "finetune" if self.tuned else self.admm.phase

    def advance(self, fraction: float) -> None:
        share = self.options.admm_share
        if not self.tuned and fraction >= share:
            self._finish()
        if self.tuned:
            left = (1.0 - min(fraction, 1.0)) / (1.0 - share)
            self.set_rate(self.options.lr * max(min(left, 1.0), 0.05))
        else:
            self.admm.set_epoch(10.0 * fraction / share)
            self.set_rate(self.options.lr)

    def _finish(self) -> None:
        self.admm.finish(exchange=False)
        masks = MaskedParameters(self.model)
        masks.set_all(self.admm.mask_specs())
        self.hook_state = PrunexState(self.comm, masks)
        self.runner = self._wrapped(self.hook_state, prunex_hook, equal=True)
        self.tuned = True

    def ready(self) -> bool:
        return self.tuned or self.admm.steps_in_round == 0

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        if self.tuned:
            return super().step(images, labels)
        self.admm.zero_grad()
        loss = F.cross_entropy(self.model(images), labels)
        loss.backward()
        self.admm.step()
        return float(loss.detach())

    def exchange_seconds(self) -> float:
        return self.exchange.seconds + self.admm.exchange.seconds

    def masks(self) -> List[Any]:
        return [mask for _, mask in sorted(self.admm.masks().items())]

    def results(self) -> Dict[str, Any]:
        masks = MaskedParameters(self.model)
        masks.set_all(self.admm.mask_specs())
        cost = self.admm.cost()
        stats = self.comm.stats()
        return {
            "keep": self.keep,
            "density": masks.density(),
            "dropped_are_zero": not masks.revived(),
            "frozen_at_round": self.admm.frozen_at,
            "admm_cost": cost,
            "admm_rounds": [
                {
                    **{k: getattr(r, k) for k in ("round", "phase", "density", "kept", "total")},
                    **{k: getattr(r, k) for k in ("mask_flips", "r", "s", "rho1", "rho2")},
                    **{k: getattr(r, k) for k in ("bytes_exchange", "bytes_agree", "bytes_dense")},
                }
                for r in self.admm.reports
            ],
            "prunex": {k: getattr(stats, k) for k in ("calls", "calls_compact", "violations")},
        }

    def close(self) -> None:
        if self.hook_state is not None:
            self.hook_state.close()
        self.admm.close()
        super().close()


def known(name: str) -> bool:
    """Whether make() knows a method."""
    if name in METHODS or name == PRUNEX:
        return True
    head, _, tail = name.partition("-")
    try:
        value = float(tail)
    except ValueError:
        return False
    if head == "powersgd":
        return value >= 1 and value == int(value)
    return head in ("topk", PRUNEX) and 0 < value <= 1


def make(name: str, model: nn.Module, options: Any) -> Method:
    """A method by name: those of METHODS, topk-D, powersgd-R, prunex or prunex-KEEP. Collective."""
    if name == PRUNEX:
        return Prunex(options.keep, model, options)
    if name.startswith(PRUNEX + "-"):
        return Prunex(float(name[len(PRUNEX) + 1 :]), model, options)
    return Hooked(name, model, options)

# SPDX-License-Identifier: Apache-2.0
"""H-SADMM: training that prunes whole structures and sends only what is kept between nodes.

Every rank runs E local steps on its own data, pulled towards its node's consensus z_i; then one
round averages inside the node, agrees on one mask for all nodes, projects, exchanges the kept
elements between node leaders and updates the duals (hsadmm_round.py). When the mask has settled it
is frozen and imposed hard; the end is masked fine-tuning with a compacted gradient exchange.
Source: arXiv 2512.14628 (hierarchical structured ADMM); what the paper leaves open is filled in by
the derivation in docs and by experiments: score of the mean theta without the dual, 25 % hysteresis
for incumbents, rho = 0.1, hard mask at freeze, masked fine-tuning.

    admm = HSADMM(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), comm,
                  find_groups(model, example), density=0.5, local_steps=8)
    for epoch in range(epochs):
        for x, y in loader:
            admm.zero_grad(); loss(model(x), y).backward(); admm.step()
    admm.finish()      # theta <- z, then the same loop fine-tunes under the mask
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Callable, Sequence

import numpy as np
import torch
from torch import nn

from prunex.torch.groups import Family
from prunex.torch.hsadmm_arguments import check_arguments
from prunex.torch.hsadmm_checkpoint import load_state, save_state
from prunex.torch.hsadmm_exchange import Exchange, default_comm
from prunex.torch.hsadmm_round import Options, RoundReport, run_round
from prunex.torch.hsadmm_state import DecayPull, State, add_proximal, copy_all
from prunex.torch.masked import plain_model
from prunex.torch.projection import keep_vectors, specs

ADMM, FROZEN, FINETUNE = "admm", "frozen", "finetune"


class HSADMM:
    """Wraps a torch optimizer that holds the model's parameters.

    model: the plain module, not wrapped in DDP: local steps must not average gradients.
    comm: None: made from torch.distributed's default group; without one it trains alone.
    families: from find_groups or manual_family; none: no pruning, plain hierarchical ADMM.
    density: share of groups kept, as a number (cubic ramp to it over rounds 2 to 8) or a schedule;
    its time is the round, or the epoch once set_epoch has been called.
    local_steps: E, minibatches between rounds.
    rho1, rho2: first penalties of the two levels, adapted by residual balancing (`balance`
    "global", "layer" or None; mu, tau, rho_min, rho_max of Options) until `adapt_after_freeze`
    rounds after the freeze. With one node there is no second level and rho2 is 0.
    hysteresis: incumbents' scores count 1 + this. score: "theta" (mean theta without the dual) or
    "z_tilde" (the exact projection). budget: "layer" or "global".
    freeze_after: rounds without a change of mask, at the target density, before it is frozen;
    freeze_round: at the latest in this round (None: never by force).
    pull_every: the proximal gradient is added in every so-manieth local step (and the round's last),
    times the steps since the last time: one more pass over the parameters saved in the others. Fewer
    steps are put together where lr * rho1 * steps would pass 0.1.
    masked: a MaskedParameters that is told every new mask. exchange: for tests.

    At the start every rank takes rank 0's parameters and real-valued buffers. Communication is
    collective: all ranks must call step() equally often. After a FloatingPointError training cannot
    go on from this state.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        comm=None,
        families: Sequence[Family] = (),
        density=1.0,
        *,
        local_steps: int = 8,
        rho1: float = 0.1,
        rho2: float = 0.1,
        hysteresis: float = 0.25,
        score: str = "theta",
        budget: str = "layer",
        balance: str | None = "global",
        freeze_after: int = 3,
        freeze_round: int | None = None,
        adapt_after_freeze: int = 3,
        pull_every: int = 1,
        options: Options | None = None,
        masked=None,
        exchange: Exchange | None = None,
    ) -> None:
        self.schedule = check_arguments(
            model,
            optimizer,
            comm,
            families,
            density,
            counts={"local_steps": local_steps, "pull_every": pull_every},
            penalties={"rho1": rho1, "rho2": rho2},
            score=score,
            balance=balance,
        )
        self.model, self.optimizer, self.masked = model, optimizer, masked
        if exchange is None:
            exchange = Exchange(default_comm() if comm is None else comm)
        self.exchange = exchange
        self.local_steps, self.pull_every = int(local_steps), int(pull_every)
        self.freeze_after, self.freeze_round = int(freeze_after), freeze_round
        self.adapt_after_freeze = int(adapt_after_freeze)
        self.options = replace(
            options or Options(), hysteresis=hysteresis, score=score, scope=budget, balance=balance
        )
        self.state = State(plain_model(model), families, rho1, rho2 if self.exchange.M > 1 else 0.0)
        self._check_optimizer()
        self._decay = DecayPull(optimizer)
        self.phase = ADMM
        self.rounds = self.steps_in_round = self.stable_rounds = self._unpulled = 0
        self.epoch: float | None = None
        self.frozen_at: int | None = None
        self.reports: list[RoundReport] = []
        self.exchange_gradients = True
        self._cost = {"steps": 0, "own_s": 0.0, "comm_s": 0.0, "wall_s": 0.0}
        self._last_end: float | None = None
        self._start()

    def _check_optimizer(self) -> None:
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        missing = [n for n, p in zip(self.state.names, self.state.thetas) if id(p) not in held]
        if missing:
            raise ValueError(
                f"the optimizer lacks {len(missing)} trained parameters, first {missing[0]}: "
                "give it model.parameters(), or set requires_grad=False on what is not trained"
            )

    def _start(self) -> None:
        state = self.state
        state.load_thetas_(state.views["a"])
        self.exchange.from_rank_0_(state.a)
        state.store_thetas(state.views["a"])
        self._sync_buffers(first=True)
        state.load_thetas_(state.views["a"])
        state.z.copy_(state.a)
        state.z_i.copy_(state.a)
        state.load_v(torch.zeros_like(state.a))

    # ---- training

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def set_epoch(self, epoch: float) -> None:
        """The schedule's time from now on, instead of the round; the same on all ranks."""
        self.epoch = epoch

    @property
    def density(self) -> float:
        """What the schedule asks for now."""
        return float(self.schedule(self.rounds if self.epoch is None else self.epoch))

    def step(self, closure: Callable[[], Any] | None = None):
        """One minibatch: the gradients in .grad get the proximal term (step 1) and the base
        optimizer steps; every local_steps-th call ends with a round. After finish(): gradients are
        averaged over all ranks, compacted by the mask, unless finish(exchange=False).

        Returns (loss, report): the closure's value or None, the round's RoundReport or None.
        Gradients scaled for mixed precision must be unscaled before.
        """
        entered = time.perf_counter()
        before = dict(self._cost)
        if self._last_end is not None:
            self._cost["wall_s"] += entered - self._last_end

        def prepared():
            loss = closure()
            self._timed(self._prepare_gradients)
            return loss

        try:
            if closure is None:
                self._timed(self._prepare_gradients)
                loss = self.optimizer.step()
            else:
                with torch.enable_grad():
                    loss = self.optimizer.step(prepared)
        finally:
            self._decay.end()
        report = None
        if self.phase != FINETUNE:
            self.steps_in_round += 1
            if self.steps_in_round == self.local_steps:
                report = self._timed(self.round)
        self._cost["steps"] += 1
        now = time.perf_counter()
        self._cost["wall_s"] += now - entered
        self._last_end = now
        if report is not None:
            report = replace(
                report,
                own_s=self._cost["own_s"] - before["own_s"],
                comm_s=self._cost["comm_s"] - before["comm_s"],
            )
            self.reports[-1] = report
        return loss, report

    def _timed(self, function):
        start, sent = time.perf_counter(), self.exchange.seconds
        with torch.no_grad():
            result = function()
        comm = self.exchange.seconds - sent
        self._cost["comm_s"] += comm
        self._cost["own_s"] += time.perf_counter() - start - comm
        return result

    def _gradients(self) -> list[torch.Tensor]:
        """One gradient per parameter; one that took no part in the loss gets zeros, for the
        proximal term holds for it too."""
        grads = [p.grad for p in self.state.thetas]
        for i, g in enumerate(grads):
            if g is None:
                p = self.state.thetas[i]
                grads[i] = p.grad = torch.zeros_like(p)
            elif g.is_sparse:
                raise TypeError(
                    f"the gradient of {self.state.names[i]} is sparse; H-SADMM needs dense ones "
                    "(sparse=False)"
                )
        return grads

    def _prepare_gradients(self) -> None:
        grads = self._gradients()
        state, cut = self.state, False
        if self.phase == FINETUNE:
            if self.exchange_gradients and self.exchange.size > 1:
                copy_all(state.views["a"], grads)
                self.exchange.world_mean_(state.a, masked=True)
                copy_all(grads, state.views["a"])
        else:
            cut = self._pull(grads)
        if self.phase != ADMM and not cut:
            state.zero_dropped_(grads)

    def _pull(self, grads: list[torch.Tensor]) -> bool:
        """Step 1's proximal gradient, in this step or together with a later one's. True where a
        frozen mask has been imposed on the gradients already."""
        state = self.state
        self._unpulled += 1
        if self.pull_every > 1 and self.steps_in_round + 1 < self.local_steps:
            rate = max(float(group["lr"]) for group in self.optimizer.param_groups)
            most = 0.1 / max(rate * float(state.rho1.max()), 1e-30)
            if self._unpulled < min(self.pull_every, int(most)):
                return False
        times, self._unpulled = self._unpulled, 0
        decayed = self._decay.usable(state)
        if decayed:
            self._decay.begin(times * float(state.rho1[0]))
        return add_proximal(state, grads, times, decayed, frozen=self.phase != ADMM)

    @torch.no_grad()
    def round(self) -> RoundReport:
        """One outer iteration now, whatever the number of local steps since the last."""
        if self.phase == FINETUNE:
            raise RuntimeError("finish() has been called: there are no more rounds")
        frozen = self.phase == FROZEN
        since = 0 if self.frozen_at is None else self.rounds - self.frozen_at
        density = self.density
        report = run_round(
            self.state,
            self.exchange,
            self.options,
            number=self.rounds,
            density=density,
            phase=self.phase,
            frozen=frozen,
            adapt=not frozen or since <= self.adapt_after_freeze,
        )
        self.rounds += 1
        self.steps_in_round = self._unpulled = 0
        self.stable_rounds = 0 if report.mask_flips else self.stable_rounds + 1
        if report.mask_flips:
            self._tell_masked()
        at_target = density <= self.schedule.target
        settled = at_target and self.stable_rounds >= self.freeze_after
        forced = self.freeze_round is not None and self.rounds >= self.freeze_round
        if not frozen and self.state.families and (settled or forced):
            self.freeze()
        self.reports.append(report)
        return report

    @torch.no_grad()
    def freeze(self) -> None:
        """Step 11: fixes the mask and imposes it hard on theta, u and the optimizer's state. All
        ranks must call it in the same round; it is called by itself once the mask has settled."""
        if self.phase != ADMM:
            return
        state = self.state
        self.phase, self.frozen_at = FROZEN, self.rounds
        state.zero_dropped_([p.detach() for p in state.thetas])
        for buffer in ("u", "u_mean"):
            state.zero_dropped_(state.views[buffer])
        self.clear_dropped_momentum()

    @torch.no_grad()
    def clear_dropped_momentum(self) -> None:
        """Zeroes dropped places in every state tensor shaped like its parameter (momentum and
        second moments would revive pruned weights)."""
        for name in self.state.dropped.names():
            p = self.state.thetas[self.state.number[name]]
            for value in self.optimizer.state.get(p, {}).values():
                if isinstance(value, torch.Tensor) and value.shape == p.shape:
                    self.state.dropped.zero_(name, value)

    @torch.no_grad()
    def finish(self, exchange: bool = True) -> None:
        """Ends ADMM: theta <- z on every rank, the mask hard and fixed, buffers averaged, the
        optimizer's state cleared (it differs between ranks). From now on step() fine-tunes under
        the mask. exchange: average gradients here; False where DDP with prunex_hook does it."""
        if self.phase == FINETUNE:
            return
        self.freeze()
        state = self.state
        state.a.copy_(state.z)
        state.zero_dropped_(state.views["a"])
        state.store_thetas(state.views["a"])
        self.optimizer.state.clear()
        self._sync_buffers(first=False)
        self.phase, self.exchange_gradients = FINETUNE, exchange

    def _sync_buffers(self, first: bool) -> None:
        """Running statistics are no consensus variables: rank 0's at the start, their mean at the
        end."""
        for buffer in self.model.buffers():
            if not buffer.dtype.is_floating_point or not buffer.numel():
                continue
            flat = buffer.detach().to(torch.float32).reshape(-1).clone()
            if first:
                self.exchange.from_rank_0_(flat)
            else:
                self.exchange.world_mean_(flat)
            buffer.copy_(flat.reshape(buffer.shape))

    # ---- results

    def masks(self) -> dict[str, np.ndarray]:
        """{family: bool array of kept groups}."""
        return {name: mask.copy() for name, mask in self.state.masks.items()}

    def mask_specs(self, contract: str = "project") -> dict:
        """{parameter: MaskSpec}, for MaskedParameters.set_all and the DDP hook."""
        state = self.state
        return specs(
            state.families, state.masks, state.shapes, contract=contract, epoch=self.rounds
        )

    def keep_vectors(self) -> dict:
        """{parameter: {dim: bool array}} of families that cut whole dimensions."""
        return keep_vectors(self.state.families, self.state.masks)

    def _tell_masked(self) -> None:
        if self.masked is not None:
            self.masked.set_all(self.mask_specs())

    def cost(self) -> dict[str, float]:
        """Seconds so far on this rank: steps, wall_s (from the end of the first step on, with what
        the caller does between), own_s (H-SADMM's computation), comm_s (its calls, waiting
        included), share = own_s / wall_s. Host time: on a device only what is launched."""
        out = dict(self._cost)
        out["share"] = out["own_s"] / out["wall_s"] if out["wall_s"] else 0.0
        return out

    def close(self) -> None:
        """Gives the masks and the layout back."""
        self.exchange.close()

    # ---- checkpoints

    def state_dict(self) -> dict:
        """This rank's state with the base optimizer's; the model's own state is saved apart. Duals
        differ between ranks: every rank saves its own. No handles or communicators inside."""
        return save_state(self)

    @torch.no_grad()
    def load_state_dict(self, saved: dict) -> None:
        """Restores state_dict(). ValueError if it belongs to another model, other groups or another
        place in the world; nothing is changed then."""
        load_state(self, saved)
        self._tell_masked()

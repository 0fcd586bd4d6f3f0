# SPDX-License-Identifier: Apache-2.0
"""One outer iteration of H-SADMM, steps 2 to 9; every decision is made from values all ranks share.

Symbols as in the paper: theta_ij on GPU j of node i, z_i the node's and z the global consensus,
u_ij and v_i the scaled duals, rho1 and rho2 the penalties, P ranks in the node, M nodes, m the
mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from prunex.torch.hsadmm_exchange import Exchange
from prunex.torch.hsadmm_state import State
from prunex.torch.projection import all_scores, budget, joined, split, with_floor


@dataclass(frozen=True)
class Options:
    """What does not change during a run. See HSADMM for each."""

    hysteresis: float = 0.25
    score: str = "theta"
    scope: str = "layer"
    balance: str | None = "global"
    mu: float = 10.0
    tau: float = 1.5
    rho_min: float = 1e-4
    rho_max: float = 1e2
    eps_abs: float = 1e-4
    eps_rel: float = 1e-3


@dataclass(frozen=True)
class RoundReport:
    """What one round did. Residuals are norms over all ranks (step 8), the same on every rank.

    bytes_exchange, bytes_agree: what each leader sends to other nodes for the consensus and for the
    scores, 2 (M-1)/M * elements * element size; bytes_dense: the exchange without masks. own_s:
    seconds of computation in this round on this rank; comm_s: in calls, waiting included.
    """

    round: int
    phase: str
    density: float  # the schedule's, of groups
    kept: int  # elements exchanged
    total: int
    mask_flips: int  # groups whose state changed in this round
    r1: float
    s1: float
    r2: float
    s2: float
    rho1: float  # means over parameters
    rho2: float
    bytes_exchange: int
    bytes_agree: int
    bytes_dense: int
    converged: bool
    own_s: float = 0.0
    comm_s: float = 0.0

    @property
    def r(self) -> float:
        """Primal residual of both levels."""
        return math.hypot(self.r1, self.r2)

    @property
    def s(self) -> float:
        """Dual residual of both levels."""
        return math.hypot(self.s1, self.s2)


def node_consensus(state: State, exchange: Exchange, hard: bool) -> None:
    """Step 2: a = s_i = mean_j(theta_ij + u_ij). hard: both are 0 outside of the mask."""
    if state.native is not None:
        state.native.gather(hard)
    else:
        state.settle("u")
        state.add_thetas_(state.views["u"])
    exchange.node_mean(state.flat["u"], state.a)  # u holds theta + u until step 7


def minimise(state: State, exchange: Exchange, i: int) -> None:
    """b = z~_i = (P rho1 s_i + rho2 (z - v_i)) / (P rho1 + rho2) of parameter i, the minimiser before
    the projection. With one node the second level is not there (rho2 = 0): z~ = s, plain ADMM."""
    near = exchange.P * state.rho1[i]
    share = float(near / (near + state.rho2[i]))
    for a, b, z, y in state.split_one(i, "a", "b", "z", "y"):
        if share == 1.0:
            b.copy_(a)
        else:
            torch.sub(z, dual(state, i, y, z), out=b)
            b.lerp_(a, share)


def dual(state: State, i: int, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """v of a piece of parameter i, in scratch memory."""
    v = torch.sub(y, z, out=state.scratch[: len(y)])
    factor = float(state.pending["v"][i])
    return v if factor == 1.0 else v.mul_(factor)


def node_scores(state: State, exchange: Exchange, options: Options) -> tuple[np.ndarray, bool]:
    """Scores of all groups, and whether all were finite (others count 0, and the round reports).

    "theta": the node's mean theta, without the dual: mean_j theta_ij = s_i - mean_j u_ij. The dual
    of a dropped group grows by theta every round, and scores with it swap the whole mask each time.
    "z_tilde": the exact projection, ||z~_i[g]||^2 weighted by P rho1 + rho2.
    """
    weights, known, tensors = None, {}, {}
    if options.score == "theta" and state.native is not None:
        found = {f.name: state.native.scores(f) for f in state.families}
        known = {k: torch.from_numpy(v) for k, v in found.items() if v is not None}
    rest = [f for f in state.families if f.name not in known]
    if rest:
        state.settle("u_mean")
    for name in {m.name for f in rest for m in f.members if m.scored}:
        i = state.number[name]
        square = state.views["b"][i]  # free until the projection
        if options.score == "theta":
            torch.sub(state.views["a"][i], state.views["u_mean"][i], out=square)
        else:
            minimise(state, exchange, i)
        tensors[name] = square.square_()
    if options.score == "z_tilde":
        factor = exchange.P * state.rho1 + state.rho2
        weights = {n: float(factor[state.number[n]]) for n in tensors}
    values = all_scores(
        state.families,
        tensors,
        mean=options.scope == "global",
        weights=weights,
        squared=True,
        known=known,
    )
    finite = bool(np.isfinite(values).all())
    return (values if finite else np.where(np.isfinite(values), values, np.float32(0))), finite


def agree(state: State, exchange: Exchange, options: Options, density: float):
    """Step 3: (kept groups of all families, scores sent, finite)."""
    limits = budget(state.families, density, options.scope)
    before = joined(state.families, state.masks)
    if limits.full:  # every rank knows this without asking
        return np.ones_like(before), 0, True
    scores, finite = node_scores(state, exchange, options)
    keep = exchange.agree(scores, limits, before, options.hysteresis)
    sent = len(scores)
    if options.scope == "global":
        floor = with_floor(state.families, keep)
        if floor is not None:
            keep = exchange.agree(scores, floor, before, options.hysteresis)
            sent += len(scores)
    return keep, sent, finite


def use_mask(state: State, exchange: Exchange, keep: np.ndarray, epoch: int) -> int:
    """Takes a new mask into use; returns the number of groups that changed."""
    flips = int((keep != joined(state.families, state.masks)).sum())
    if flips:
        state.set_masks(split(state.families, keep))
        exchange.use_masks(state, epoch)
    return flips


class Norms:
    """Squared norms per parameter, gathered piece by piece without waiting for a device."""

    def __init__(self, state: State, keys: tuple[str, ...]) -> None:
        self._owners = torch.tensor([i for i, _ in state.pieces])
        self._count = len(state.names)
        self._sums = state.a.new_zeros(len(keys), len(state.pieces))
        self._places = {k: row.unbind() for k, row in zip(keys, self._sums)}

    def of(self, key: str) -> tuple[torch.Tensor, ...]:
        """Where the squared norm of each piece is to go."""
        return self._places[key]

    def sums(self) -> dict[str, torch.Tensor]:
        """Float64 on the host, shape [parameters] each."""
        sums = self._sums.double().cpu()
        out = torch.zeros(len(sums), self._count, dtype=torch.float64)
        out.index_add_(1, self._owners, sums)
        return dict(zip(self._places, out))


def consensus_and_duals(
    state: State, exchange: Exchange, flips: int, hard: bool
) -> dict[str, torch.Tensor]:
    """Steps 4 to 7. Returns squared norms per parameter, this rank's share of each. flips: groups
    that the mask has changed; hard: theta and u are 0 outside of it already, and with them z~_i."""
    if state.native is not None:
        return native_consensus_and_duals(state, exchange, flips, hard)
    norms = Norms(state, ("dz_i", "dz", "r2", "r1", "z_i", "u"))
    dot, sub = torch.dot, torch.sub
    state.settled("u_mean")  # it gets new values
    for i in range(len(state.names)):  # all steps with one parameter while it is in the cache
        minimise(state, exchange, i)
        for z_i, y, z in state.split_one(i, "b", "y", "z"):
            torch.add(z_i, dual(state, i, y, z), out=y)
        if not hard:  # 4: z_i = m * z~_i, v_i = m * v_i
            state.zero_dropped_of_(i, state.views["b"])
            state.zero_dropped_of_(i, state.views["y"])
        for z_i, a, u_mean in state.split_one(i, "b", "a", "u_mean"):
            sub(a, z_i, out=u_mean)  # of the new u_ij: s_i - z_i
    state.settled("v")
    end = exchange.begin_leaders_mean(state.flat["y"], state.a)  # 5: z = mean of z_i + v_i
    pieces = zip(
        state.split("theta", "z_i", "b", "u"),
        zip(*(norms.of(k) for k in ("dz_i", "r1", "z_i", "u"))),
    )
    for (theta, old, z_i, u), (dz_i, r1, size, sum_u) in pieces:  # 7, while it is under way:
        difference = state.scratch[: len(z_i)]  # u_ij += theta_ij - z_i; u holds theta + u
        sub(theta, z_i, out=difference)
        dot(difference, difference, out=r1)
        u.sub_(z_i)
        dot(z_i, z_i, out=size)
        dot(u, u, out=sum_u)
        sub(z_i, old, out=difference)
        dot(difference, difference, out=dz_i)
    state.swap("z_i", "b")
    end()
    pieces = zip(state.split("z", "a", "z_i"), zip(norms.of("dz"), norms.of("r2")))
    for (old, z, z_i), (dz, r2) in pieces:
        difference = state.scratch[: len(z_i)]
        sub(z, old, out=difference)
        dot(difference, difference, out=dz)
        sub(z_i, z, out=difference)
        dot(difference, difference, out=r2)
    state.swap("z", "a")  # 7: and with it v_i += z_i - z, for v_i is y - z
    out = norms.sums()
    out["r2"] /= exchange.P  # every rank of the node adds its share
    return out


def native_consensus_and_duals(
    state: State, exchange: Exchange, flips: int, hard: bool
) -> dict[str, torch.Tensor]:
    """The same by the library's passes."""
    native = state.native
    native.consensus(exchange.P)
    end = exchange.begin_leaders_mean(state.flat["y"], state.a)
    out = native.duals(hard, cut=flips > 0)
    state.swap("z_i", "b")
    end()
    out.update(native.globals(cut=flips > 0))
    state.swap("z", "a")
    out["r2"] /= exchange.P
    return out


def world_norms(exchange: Exchange, own: dict[str, torch.Tensor], finite: bool) -> dict:
    """Step 8: the sums over all ranks in one small all-reduce, shape [parameters] each; "dz" is the
    same everywhere and stays. Raises on all ranks alike when a number is not finite on any."""
    keys = ("r1", "dz_i", "r2", "z_i", "u")
    flag = torch.tensor([0.0 if finite else 1.0], dtype=torch.float64)
    flat = torch.cat([own[k] for k in keys] + [flag])
    exchange.world_sum_(flat)
    if not bool(torch.isfinite(flat).all()) or float(flat[-1]):
        raise FloatingPointError(
            "a parameter, dual or consensus variable is not finite on some rank: training has "
            "diverged; lower the learning rate or rho1"
        )
    parts = flat[:-1].reshape(len(keys), -1)
    return {**dict(zip(keys, parts.numpy())), "dz": own["dz"].numpy()}


def residuals(state: State, exchange: Exchange, sums: dict) -> dict[str, np.ndarray]:
    """Squared residuals per parameter: r1 = ||theta_ij - z_i||, s1 = rho1 ||z_i - z_i_old|| over
    all ranks, r2 = ||z_i - z||, s2 = rho2 ||z - z_old|| over all nodes."""
    return {
        "r1": sums["r1"],
        "s1": state.rho1**2 * sums["dz_i"],
        "r2": sums["r2"],
        "s2": state.rho2**2 * exchange.M * sums["dz"],
    }


def rebalanced(r2: np.ndarray, s2: np.ndarray, rho: np.ndarray, options: Options) -> np.ndarray:
    """Step 9, pure: the factor for each parameter's penalty, from squared residuals (Boyd et al.,
    Distributed Optimization and ADMM, 3.4.1): tau where r > mu s, 1 / tau where s > mu r, inside
    rho_min..rho_max; the dual is divided by it."""
    if options.balance is None:
        return np.ones_like(rho)
    if options.balance == "global":
        r2, s2 = np.full_like(rho, r2.sum()), np.full_like(rho, s2.sum())
    grow, shrink = r2 > options.mu**2 * s2, s2 > options.mu**2 * r2
    wanted = np.where(grow, rho * options.tau, np.where(shrink, rho / options.tau, rho))
    return np.clip(wanted, options.rho_min, options.rho_max) / rho


def scale_penalty(state: State, level: int, factor: np.ndarray) -> None:
    """rho *= factor, its duals /= factor, per parameter; level 1: rho1 with u, 2: rho2 with v."""
    if level == 1:
        state.rho1 *= factor
        duals = ("u", "u_mean")
    else:
        state.rho2 *= factor
        duals = ("v",)
    for dual in duals:
        state.pending[dual] /= factor


def has_converged(state: State, exchange: Exchange, sums: dict, squares: dict, options: Options):
    """Step 10: r <= sqrt(n) eps_abs + eps_rel ||z_i||, s <= sqrt(n) eps_abs + eps_rel rho1 ||u||,
    over all ranks (||theta|| is ||z_i|| to within r)."""
    base = math.sqrt(state.count * exchange.size) * options.eps_abs
    r = math.sqrt(squares["r1"].sum() + squares["r2"].sum())
    s = math.sqrt(squares["s1"].sum() + squares["s2"].sum())
    big = math.sqrt(sums["z_i"].sum())
    dual = math.sqrt((state.rho1**2 * sums["u"]).sum())
    return bool(r <= base + options.eps_rel * big and s <= base + options.eps_rel * dual)


def leader_bytes(exchange: Exchange, elements: int, size: int) -> int:
    """What a leader sends for an all-reduce among M nodes: 2 (M-1)/M of the buffer."""
    return round(2 * (exchange.M - 1) / exchange.M * elements * size)


def run_round(
    state: State,
    exchange: Exchange,
    options: Options,
    *,
    number: int,
    density: float,
    phase: str,
    frozen: bool,
    adapt: bool,
) -> RoundReport:
    """Steps 2 to 10. frozen: the mask stays. adapt: the penalties may move."""
    node_consensus(state, exchange, frozen)
    flips, sent, finite = 0, 0, True
    if not frozen:
        keep, sent, finite = agree(state, exchange, options, density)
        flips = use_mask(state, exchange, keep, number)
    hard = frozen and not flips
    sums = world_norms(exchange, consensus_and_duals(state, exchange, flips, hard), finite)
    squares = residuals(state, exchange, sums)
    converged = has_converged(state, exchange, sums, squares, options)
    rho1, rho2 = float(state.rho1.mean()), float(state.rho2.mean())
    if adapt:
        scale_penalty(state, 1, rebalanced(squares["r1"], squares["s1"], state.rho1, options))
        if exchange.M > 1:
            scale_penalty(state, 2, rebalanced(squares["r2"], squares["s2"], state.rho2, options))
    width = state.a.element_size()
    return RoundReport(
        round=number,
        phase=phase,
        density=density,
        kept=state.kept(),
        total=state.count,
        mask_flips=flips,
        **{k: math.sqrt(float(v.sum())) for k, v in squares.items()},
        rho1=rho1,
        rho2=rho2,
        bytes_exchange=leader_bytes(exchange, state.kept(), width),
        bytes_agree=leader_bytes(exchange, sent, 4),
        bytes_dense=leader_bytes(exchange, state.count, width),
        converged=converged,
    )

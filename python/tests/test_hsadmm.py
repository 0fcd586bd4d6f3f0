# SPDX-License-Identifier: Apache-2.0
"""H-SADMM against its definition: invariants, a plain second implementation."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hsadmm_models import Flat
from hsadmm_training import FLAT, X, Y, start, train
from hsadmm_world import World, exchange_of
from torch import nn

from prunex.torch.groups import manual_family
from prunex.torch.hsadmm import ADMM, FINETUNE, FROZEN, HSADMM
from prunex.torch.hsadmm_round import Options, rebalanced
from prunex.torch.projection import split, top_k
from prunex.torch.schedule import Constant, Ramp

# ---- invariants


@pytest.mark.parametrize("nodes", [(1,), (3,), (1, 1), (2, 2), (1, 2, 3)])
def test_invariants_after_every_round(nodes):
    """sum_i v_i = 0; supp(z_i), supp(v_i), supp(z) inside the mask; z equal bits everywhere."""
    world = World(nodes)

    def rank(comm):
        seen = []
        admm = start(comm, density=Ramp(0.4, 1, 5), freeze_after=99)

        def look(report):
            s = admm.state
            keep = s.views_of(torch.ones(s.count))
            s.zero_dropped_(keep)
            flat = torch.cat([k.reshape(-1) for k in keep])
            for variable in (s.z_i, s.z, s.v):
                assert not variable[flat == 0].any()
            seen.append((s.v.clone(), s.z.clone(), s.z_i.clone(), admm.masks(), report))

        train(admm, 14, each=look)
        return seen, comm.node

    results = world.run(rank)
    assert len(results[0][0]) == 7
    for k in range(7):
        rounds = [(seen[k], node) for seen, node in results]
        v = {node: r[0] for r, node in rounds}
        scale = max(float(x.abs().max()) for x in v.values()) + 1.0
        assert float(sum(v.values()).abs().max()) <= 1e-5 * scale
        z_mean = sum({node: r[2] for r, node in rounds}.values()) / len(v)
        assert torch.allclose(rounds[0][0][1], z_mean, atol=1e-5)
        for r, node in rounds:
            assert torch.equal(r[1], rounds[0][0][1])
            assert torch.equal(r[0], v[node])
            assert all((m == rounds[0][0][3][n]).all() for n, m in r[3].items())
            first = rounds[0][0][4]
            assert (r[4].r1, r[4].s1, r[4].r2, r[4].s2) == (first.r1, first.s1, first.r2, first.s2)


def test_all_ones_mask_is_the_dense_path():
    def run(families):
        return World((2, 2)).run(lambda c: train(start(c, families, 1.0), 8).state.z.clone())

    for masked, dense in zip(run(FLAT), run(())):
        assert torch.equal(masked, dense)


def test_one_process_is_plain_admm():
    """theta: gradient + rho (theta - z + u); z = projection of theta + u; u += theta - z."""

    def rank(comm):
        return start(comm, (), 1.0, balance=None, optimizer=lambda p: torch.optim.SGD(p, 0.05))

    (admm,) = World((1,)).run(rank)
    model = Flat()
    model.load_state_dict(admm.model.state_dict())
    ps = list(model.parameters())
    z = [p.detach().clone() for p in ps]
    u = [torch.zeros_like(p) for p in ps]
    g = torch.Generator().manual_seed(0)
    for step in range(6):
        pick = torch.randint(0, len(X), (8,), generator=g)
        grads = torch.autograd.grad(F.cross_entropy(model(X[pick]), Y[pick]), ps)
        with torch.no_grad():
            for p, gr, zz, uu in zip(ps, grads, z, u):
                p -= 0.05 * (gr + 0.1 * (p - zz + uu))
            if step % 2:
                z = [p + uu for p, uu in zip(ps, u)]
                u = [uu + p - zz for p, uu, zz in zip(ps, u, z)]
    train(admm, 6)
    for p, q in zip(ps, admm.model.parameters()):
        assert torch.allclose(p, q, atol=1e-6)
    assert torch.allclose(torch.cat([t.reshape(-1) for t in z]), admm.state.z, atol=1e-6)


def test_without_a_communicator():
    model = Flat()
    admm = HSADMM(
        model,
        torch.optim.SGD(model.parameters(), 0.05),
        None,
        FLAT,
        Constant(0.5),
        local_steps=1,
        freeze_after=2,
    )
    train(admm, 5)
    assert admm.phase == FROZEN and admm.reports[-1].bytes_exchange == 0
    assert [int(m.sum()) for m in admm.masks().values()] == [3, 4, 6]


def second_implementation(thetas, state, groups, rho1, rho2, nodes, keep, score):
    """One round over all ranks at once, in float64, from the paper's formulas. thetas, u: one
    vector per rank; z_i, v: per node; groups[e]: group of element e or -1."""
    u, z_i, v, z, mask = (state[k] for k in ("u", "z_i", "v", "z", "mask"))
    ranks = np.split(np.arange(len(thetas)), np.cumsum(nodes)[:-1])
    tilde, scores = [], np.zeros(groups.max() + 1)
    for i, mine in enumerate(ranks):
        s = sum(thetas[j] + u[j] for j in mine) / len(mine)
        t = (len(mine) * rho1 * s + rho2 * (z - v[i])) / (len(mine) * rho1 + rho2)
        tilde.append(t)
        x = sum(thetas[j] for j in mine) / len(mine) if score == "theta" else t
        w = 1.0 if score == "theta" else len(mine) * rho1 + rho2
        inside = groups >= 0
        scores += w * np.bincount(groups[inside], x[inside] ** 2, minlength=len(scores))
    mask = top_k(scores, keep, mask, 0.25)
    kept = np.where(groups < 0, True, mask[groups])
    z_i = [t * kept for t in tilde]
    v = [x * kept for x in v]
    new = sum(a + b for a, b in zip(z_i, v)) / len(nodes)
    out_u = [u[j] + thetas[j] - z_i[i] for i, mine in enumerate(ranks) for j in mine]
    v = [b + a - new for a, b in zip(z_i, v)]
    p = np.array([len(mine) for mine in ranks])
    res = {
        "r1": math.sqrt(
            sum(((thetas[j] - z_i[i]) ** 2).sum() for i, m in enumerate(ranks) for j in m)
        ),
        "s1": rho1
        * math.sqrt(sum(k * ((a - b) ** 2).sum() for k, a, b in zip(p, z_i, state["z_i"]))),
        "r2": math.sqrt(sum(((a - new) ** 2).sum() for a in z_i)),
        "s2": rho2 * math.sqrt(len(nodes) * ((new - z) ** 2).sum()),
    }
    return {"u": out_u, "z_i": z_i, "v": v, "z": new, "mask": mask}, res


class Vector(nn.Module):
    """One weight of 6 rows: groups are rows."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 4))
        self.rest = nn.Parameter(torch.randn(3))


@pytest.mark.parametrize("score", ["theta", "z_tilde"])
@pytest.mark.parametrize("nodes", [(2, 2), (1, 2, 3)])
def test_rounds_equal_a_second_implementation(nodes, score):
    family = manual_family(Vector(), "rows", [("w", 0)])
    world = World(nodes)

    def rank(comm):
        admm = start(
            comm,
            [family],
            Constant(0.5),
            build=Vector,
            local_steps=1,
            balance=None,
            score=score,
            rho1=0.2,
            rho2=0.3,
            freeze_after=99,
            optimizer=lambda p: torch.optim.SGD(p, 0.5),
        )
        g = torch.Generator().manual_seed(comm.rank)
        seen = [admm.state.z.double().numpy().copy()]
        for _ in range(6):
            for p in admm.model.parameters():
                p.grad = torch.randn(p.shape, generator=g)
            admm.step()
            theta = torch.cat([p.detach().reshape(-1) for p in admm.model.parameters()])
            s = admm.state
            seen.append(
                [t.double().numpy().copy() for t in (theta, s.u, s.z_i, s.v, s.z)]
                + [admm.masks()["rows"], admm.reports[-1]]
            )
        return seen, comm.node

    results = world.run(rank)
    groups = np.r_[np.repeat(np.arange(6), 4), -np.ones(3, int)]
    z = results[0][0][0]
    state = {
        "u": [np.zeros(27)] * sum(nodes),
        "z_i": [z] * len(nodes),
        "v": [np.zeros(27)] * len(nodes),
        "z": z,
        "mask": np.ones(6, bool),
    }
    for k in range(1, 7):
        thetas = [seen[k][0] for seen, _ in results]
        state, res = second_implementation(thetas, state, groups, 0.2, 0.3, nodes, 3, score)
        for j, (seen, node) in enumerate(results):
            theta, u, z_i, v, z, mask, report = seen[k]
            assert (mask == state["mask"]).all()
            for got, want in (
                (u, state["u"][j]),
                (z_i, state["z_i"][node]),
                (v, state["v"][node]),
                (z, state["z"]),
            ):
                assert np.abs(got - want).max() <= 1e-5
            for name, want in res.items():
                assert abs(getattr(report, name) - want) <= 1e-4 * max(1.0, want)


def test_volume_per_round():
    """What leaders exchange is the kept elements; scores are one float per group."""
    world = World((2, 2))
    admm = world.run(lambda c: train(start(c, density=Ramp(0.5, 1, 3), freeze_after=2), 16))[0]
    assert admm.phase == FROZEN
    for (sent, size), report in zip(world.wire, admm.reports):
        assert (sent, size) == (report.kept, 4)
        assert report.bytes_exchange == 2 * (2 - 1) / 2 * report.kept * 4
        assert report.bytes_dense == report.total * 4
    last = admm.reports[-1]
    masked = {n: s.kept(admm.state.shapes[n]) for n, s in admm.mask_specs().items()}
    rest = sum(p.numel() for n, p in admm.model.named_parameters() if n not in masked)
    assert last.kept == sum(masked.values()) + rest < 0.5 * last.total
    agreements = [r for r in admm.reports if r.bytes_agree]
    assert all(r.bytes_agree == 26 * 4 for r in agreements) and len(agreements) == len(world.agreed)
    # Nobody asks while every group is kept, or once the mask is frozen.
    assert admm.reports[0].bytes_agree == 0 and last.phase == FROZEN and last.bytes_agree == 0


# ---- penalties, freeze, end


def test_residual_balancing_is_pure_and_bounded():
    o = Options(mu=10, tau=2, rho_max=0.15)
    rho = np.array([0.1, 0.1, 0.1])
    r2, s2 = np.array([1e4, 1.0, 0.0]), np.array([1.0, 1e4, 1.0])
    per_layer = rebalanced(r2, s2, rho, Options(balance="layer", mu=10, tau=2, rho_max=0.15))
    assert np.allclose(per_layer, [1.5, 0.5, 0.5])  # the first stops at rho_max
    assert np.allclose(rebalanced(r2, s2, rho, o), 1.0)  # the sums are within mu
    assert (rebalanced(r2, s2, rho, Options(balance=None)) == 1.0).all()


@pytest.mark.parametrize("balance", ["global", "layer"])
def test_duals_are_rescaled_with_the_penalty(balance):
    """rho * u is the unscaled dual: balancing must not change it."""

    def rank(comm):
        admm = start(comm, density=1.0, balance=balance)
        changes = []

        def look(report):
            s = admm.state
            changes.append(len(set(s.rho1.tolist())))
            u_mean = exchange_of(comm).node_mean(s.u, torch.empty_like(s.u))
            assert torch.allclose(u_mean, s.u_mean, atol=1e-5)

        train(admm, 10, each=look)
        return admm.reports, changes

    reports, changes = World((2, 2)).run(rank)[0]
    assert reports[-1].rho1 != 0.1
    assert (max(changes) > 1) == (balance == "layer")


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_report_21_22_momentum_and_decay_do_not_revive(optimizer):
    make = {
        "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1),
        "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    }[optimizer]

    def rank(comm):
        admm = start(comm, density=Constant(0.5), optimizer=make, freeze_after=99)
        train(admm, 4)
        admm.freeze()
        for phase in (FROZEN, FINETUNE):
            assert admm.phase == phase
            train(admm, 6)
            for name in admm.state.dropped.names():
                p = admm.model.get_parameter(name)
                gone = ~torch.from_numpy(admm.mask_specs()[name].to_array(p.shape))
                assert not p[gone].any()
                for value in admm.optimizer.state[p].values():
                    if torch.is_tensor(value) and value.shape == p.shape:
                        assert not value[gone].any()
            admm.finish()

    World((1, 1)).run(rank)


def test_settles_freezes_and_fine_tunes_alike():
    def rank(comm):
        admm = start(comm, density=Ramp(0.5, 1, 3), freeze_after=3)
        train(admm, 40)
        assert admm.phase == FROZEN and admm.frozen_at == len(
            [r for r in admm.reports if r.phase == ADMM]
        )
        assert all(r.mask_flips == 0 for r in admm.reports[admm.frozen_at - 3 :])
        masks = admm.masks()
        admm.finish()
        z = admm.state.z.clone()
        theta = torch.cat([p.detach().reshape(-1) for p in admm.model.parameters()])
        assert torch.equal(theta, z)
        train(admm, 5)
        assert all((m == masks[n]).all() for n, m in admm.masks().items())
        with pytest.raises(RuntimeError, match="no more rounds"):
            admm.round()
        return torch.cat([p.detach().reshape(-1) for p in admm.model.parameters()])

    results = World((2, 1)).run(rank)
    assert all(torch.equal(r, results[0]) for r in results)


def test_freeze_round_forces():
    admm = World((1,)).run(lambda c: train(start(c, density=Ramp(0.3, 1, 50), freeze_round=4), 12))[
        0
    ]
    assert admm.frozen_at == 4 and admm.phase == FROZEN


def test_schedule_by_epoch():
    def rank(comm):
        admm = start(comm, density=Ramp(0.5, 0, 2, power=1), freeze_after=99)
        kept = []
        for epoch in range(4):
            admm.set_epoch(epoch)
            train(
                admm,
                4,
                each=lambda r: kept.append(
                    (r.density, sum(int(m.sum()) for m in admm.masks().values()))
                ),
            )
        return kept

    kept = World((1, 1)).run(rank)[0]
    assert [d for d, _ in kept] == [1.0, 1.0, 0.75, 0.75, 0.5, 0.5, 0.5, 0.5]
    assert kept[0][1] == 26 and kept[-1][1] == 3 + 4 + 6


def test_split_is_the_inverse_of_joining():
    keep = np.arange(26) % 2 == 0
    assert sum(len(m) for m in split(FLAT, keep).values()) == 26

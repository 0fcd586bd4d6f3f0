# SPDX-License-Identifier: Apache-2.0
"""Public reports that concern the optimizer, by id (E.., F..: groups; R..: rows of the table of
concrete reports)."""
import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hsadmm_models import Flat
from hsadmm_training import FLAT, X, Y, parameters, start, train
from hsadmm_world import World, exchange_of
from torch import nn

from prunex.torch.groups import find_groups, manual_family
from prunex.torch.hsadmm import FINETUNE, FROZEN, HSADMM
from prunex.torch.schedule import Constant, Ramp

def test_R1_R2_R3_equal_masks_whatever_the_seeds_and_data():
    """Ranks differ in seed, data and first weights; every round's mask is the same everywhere."""
    def rank(comm):
        history = []
        admm = start(comm, seed=comm.rank * 31, density=Ramp(0.3, 0, 4), freeze_after=99)
        train(admm, 12, seed=7, each=lambda r: history.append(admm.masks()))
        return history

    results = World((1, 3)).run(rank)
    for history in results[1:]:
        for mine, first in zip(history, results[0]):
            assert all((mine[k] == first[k]).all() for k in first)


def test_R2_equal_scores_fall_to_the_lower_index():
    class Equal(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(6, 2))

    def rank(comm):
        family = manual_family(Equal(), "rows", [("w", 0)])
        admm = start(comm, [family], Constant(0.5), build=Equal, local_steps=1)
        admm.model.w.grad = torch.zeros(6, 2)
        admm.step()
        return admm.masks()["rows"].tolist()

    assert World((1, 2)).run(rank) == [[True] * 3 + [False] * 3] * 3


def test_every_rank_starts_from_rank_0():
    def rank(comm):
        admm = start(comm, seed=comm.rank)
        return parameters(admm), admm.state.z.clone()

    results = World((2, 1)).run(rank)
    assert all(torch.equal(p, results[0][0]) and torch.equal(z, p) for p, z in results)


def test_F2_fine_tuning_divides_once():
    """The gradient of a fine-tuning step is the mean over ranks, as plain DDP's: parameters equal
    those of one process on the joined batch, for five steps of SGD at 0.1."""
    def rank(comm):
        admm = start(comm, density=Constant(0.5), seed=1,
                     optimizer=lambda p: torch.optim.SGD(p, 0.1), freeze_after=1)
        train(admm, 4)
        admm.finish()
        single = copy.deepcopy(admm.model)
        drops = admm.mask_specs()
        for step in range(5):
            part = slice(24 * step % 96, 24 * step % 96 + 24)
            x, y = X[part], Y[part]
            mine = slice(8 * comm.rank, 8 * comm.rank + 8)
            admm.zero_grad()
            F.cross_entropy(admm.model(x[mine]), y[mine]).backward()
            admm.step()
            ps = dict(single.named_parameters())
            grads = torch.autograd.grad(F.cross_entropy(single(x), y), list(ps.values()))
            with torch.no_grad():
                for (name, p), g in zip(ps.items(), grads):
                    if name in drops:
                        g = g * torch.from_numpy(drops[name].to_array(p.shape))
                    p -= 0.1 * g
        worst = max(float((a - b).abs().max())
                    for a, b in zip(single.parameters(), admm.model.parameters()))
        assert worst <= 1e-6
        return parameters(admm)

    results = World((1, 2)).run(rank)
    assert all(torch.equal(r, results[0]) for r in results)


class Mixed(nn.Module):
    """A layer each in fp16, bf16 and fp32."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 8).to(torch.float16)
        self.b = nn.Linear(8, 8).to(torch.bfloat16)
        self.c = nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.a(x.to(torch.float16)))
        return self.c(torch.relu(self.b(x.to(torch.bfloat16))).float())


def test_F9_mixed_dtypes():
    """State is float32, parameters keep their types; the pull towards z is exact to the type."""
    families = [manual_family(Mixed(), "ab", [("a.weight", 0), ("a.bias", 0), ("b.weight", 1)])]

    def rank(comm):
        admm = start(comm, families, Ramp(0.5, 0, 2), build=Mixed, freeze_after=2)
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(comm.rank))
        for step in range(12):
            if step == 8:
                admm.finish()
            admm.zero_grad()
            F.cross_entropy(admm.model(x), Y[:8]).backward()
            admm.step()
        assert [p.dtype for p in admm.model.parameters()][::2] == [
            torch.float16, torch.bfloat16, torch.float32]
        assert admm.state.z.dtype == torch.float32
        assert int(admm.masks()["ab"].sum()) == 4
        return parameters(admm)

    results = World((2, 1)).run(rank)
    assert all(torch.equal(r, results[0]) for r in results)


def test_F9_the_pull_keeps_small_differences_in_16_bit():
    """rho (theta - w) with theta near w: not lost in the rounding of theta itself."""
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.full((4,), 3.0, dtype=torch.bfloat16))

    model = One()
    admm = HSADMM(model, torch.optim.SGD(model.parameters(), 1.0), None, (), 1.0)
    admm.state.u.fill_(1e-3)
    admm.state.pull_changed()
    model.w.grad = torch.zeros_like(model.w)
    with torch.no_grad():
        admm._prepare_gradients()
    assert torch.allclose(model.w.grad.float(), torch.full((4,), 1e-4), rtol=1e-2)


def test_float64_parameters_have_float64_state():
    model = nn.Linear(3, 2).double()
    admm = HSADMM(model, torch.optim.SGD(model.parameters(), 0.1), None, (), 1.0)
    assert admm.state.u.dtype == torch.float64


@pytest.mark.parametrize("form", ["channels_last", "transposed", "strided"])
def test_E6_R12_memory_format_does_not_matter(form):
    """The same gradients give the same parameters, whatever the strides."""
    class Weight(nn.Module):
        def __init__(self, form="plain"):
            super().__init__()
            w = torch.arange(2.0 * 4 * 3 * 3).reshape(2, 4, 3, 3)
            if form == "channels_last":
                w = w.contiguous(memory_format=torch.channels_last)
            elif form == "transposed":
                w = w.permute(1, 0, 3, 2).contiguous().permute(1, 0, 3, 2)
            elif form == "strided":  # every other element of a larger tensor
                w = torch.stack([w, w], dim=-1)[..., 0]
            self.w = nn.Parameter(w)
            self.b = nn.Parameter(torch.ones(3))

    def run(form):
        family = manual_family(Weight(), "channels", [("w", 1)])

        def rank(comm):
            admm = start(comm, [family], Constant(0.5), build=lambda: Weight(form), local_steps=1,
                         freeze_after=2)
            g = torch.Generator().manual_seed(comm.rank)
            for step in range(5):
                if step == 4:
                    admm.finish()
                grad = torch.randn(2, 4, 3, 3, generator=g)
                admm.model.w.grad = torch.empty_like(admm.model.w).copy_(grad)
                admm.model.b.grad = torch.randn(3, generator=g)
                admm.step()
            return admm.model.w.detach().clone(), admm.masks()["channels"], admm.phase

        return World((1, 2)).run(rank)

    for (w, mask, phase), (w2, mask2, phase2) in zip(run("plain"), run(form)):
        assert torch.equal(w, w2) and (mask == mask2).all() and phase == phase2 == FINETUNE


def test_E15_nothing_stale_when_the_mask_moves():
    """Groups that return and groups that leave: dropped places of z are +0 in every round."""
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.full((4, 3), 7.0))

    def rank(comm):
        family = manual_family(Rows(), "rows", [("w", 0)])
        admm = start(comm, [family], Constant(0.5), build=Rows, local_steps=1, hysteresis=0.0,
                     freeze_after=99, balance=None)
        flips = 0
        for step in range(6):
            with torch.no_grad():  # the large rows change sides every round
                admm.model.w.fill_(1.0)
                admm.model.w[[0, 1] if step % 2 else [2, 3]] = 7.0
            admm.model.w.grad = torch.zeros(4, 3)
            _, report = admm.step()
            flips += report.mask_flips
            gone = ~admm.masks()["rows"]
            z = admm.state.z.reshape(4, 3)
            assert not z[gone].any() and not torch.signbit(z[gone]).any()
            assert not admm.state.v.reshape(4, 3)[gone].any()
        return flips

    assert World((2, 2)).run(rank)[0] >= 10


def test_E16_runs_repeat_bit_for_bit():
    def run():
        return World((1, 2, 3)).run(lambda c: train(start(c, density=Ramp(0.5, 0, 3)), 10).state.z)

    first, second = run(), run()
    for z in first + second:
        assert torch.equal(z, first[0])


def test_E10_dense_when_nothing_is_dropped():
    """Never more elements than the dense exchange, and fewer as soon as anything is dropped."""
    world = World((1, 1))
    reports = world.run(lambda c: train(start(c, density=Ramp(0.2, 1, 6), freeze_after=2), 20))[0].reports
    for (sent, _), r in zip(world.wire, reports):
        assert sent <= r.total and (sent < r.total) == (r.density < 1.0)


def test_a_parameter_without_gradient_is_pulled_too():
    class Unused(Flat):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(3, 3)

    def rank(comm):
        admm = start(comm, build=Unused, density=1.0)
        with torch.no_grad():
            admm.model.spare.weight.add_(1.0)
        train(admm, 1)
        return float((admm.model.spare.weight - admm.state.views["z_i"][
            admm.state.number["spare.weight"]]).abs().max())

    assert World((1,)).run(rank)[0] == pytest.approx(1.0 - 0.05 * 0.1, abs=1e-6)


def test_sparse_gradients_are_refused_by_name():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    admm = HSADMM(model, torch.optim.SGD(model.parameters(), 0.1), None, (), 1.0)
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(TypeError, match="gradient of 0.weight is sparse"):
        admm.step()


def test_divergence_is_noticed_by_all_ranks_together():
    """A NaN on one rank: all raise in the same round, nobody waits."""
    def rank(comm):
        admm = start(comm)
        if comm.rank == 2:
            with torch.no_grad():
                admm.model.conv1.weight[0, 0, 0, 0] = float("nan")
        with pytest.raises(FloatingPointError, match="diverged"):
            train(admm, 2)
        return admm.rounds

    assert World((2, 1)).run(rank) == [0, 0, 0]


def test_closure_and_loss_are_passed_on():
    model = Flat()
    admm = HSADMM(model, torch.optim.SGD(model.parameters(), 0.05), None, FLAT, 0.5, local_steps=1)
    other = copy.deepcopy(model)
    twin = HSADMM(other, torch.optim.SGD(other.parameters(), 0.05), None, FLAT, 0.5, local_steps=1)

    def closure():
        admm.zero_grad()
        loss = F.cross_entropy(model(X[:8]), Y[:8])
        loss.backward()
        return loss

    for _ in range(3):
        loss, report = admm.step(closure)
        twin.zero_grad()
        F.cross_entropy(other(X[:8]), Y[:8]).backward()
        twin.step()
        assert loss.item() > 0 and report.round == admm.rounds - 1
    assert torch.equal(parameters(admm), parameters(twin))


def test_frozen_parameters_are_left_alone():
    model = Flat()
    for p in model.fc2.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="fc2.weight is not a trained parameter"):
        HSADMM(model, torch.optim.SGD(model.parameters(), 0.1), None, FLAT, 0.5)
    families = find_groups(model, X[:1], exclude=["fc2"])
    before = model.fc2.weight.clone()
    admm = HSADMM(model, torch.optim.SGD(model.parameters(), 0.1), None, families, 0.5)
    train(admm, 3)
    assert torch.equal(model.fc2.weight, before) and "fc2.weight" not in admm.state.names


def test_wrong_uses_are_named():
    model = Flat()
    sgd = torch.optim.SGD(model.conv1.parameters(), 0.1)
    with pytest.raises(ValueError, match="the optimizer lacks 6 .* conv2.weight"):
        HSADMM(model, sgd, None, FLAT, 0.5)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    for wrong in ({"local_steps": 0}, {"rho1": 0.0}, {"score": "x"}, {"balance": "x"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            HSADMM(model, sgd, None, FLAT, 0.5, **wrong)
    with pytest.raises(ValueError, match="two families are named"):
        HSADMM(model, sgd, None, [FLAT[0], FLAT[0]], 0.5)
    with pytest.raises(TypeError, match="density is 'half'"):
        HSADMM(model, sgd, None, FLAT, "half")


def test_masked_parameters_hear_of_every_mask():
    class Store:
        def __init__(self):
            self.calls = []

        def set_all(self, specs):
            self.calls.append(specs)

    def rank(comm):
        store = Store()
        admm = start(comm, density=Ramp(0.5, 1, 4), masked=store)
        train(admm, 20)
        assert len(store.calls) == sum(1 for r in admm.reports if r.mask_flips)
        for name, spec in admm.mask_specs().items():
            shape = admm.state.shapes[name]
            assert (store.calls[-1][name].to_array(shape) == spec.to_array(shape)).all()

    World((1, 1)).run(rank)


@pytest.mark.parametrize("structure", ["filter", "channel", "both", "column", "kernel", "block", "nm"])
def test_every_structure_trains_and_freezes(structure):
    families = find_groups(Flat(), X[:1], structure=structure)

    def rank(comm):
        admm = start(comm, families, Ramp(0.5, 0, 2), freeze_after=1, freeze_round=6)
        train(admm, 14)
        assert admm.phase == FROZEN
        admm.finish()
        train(admm, 2)
        for name, spec in admm.mask_specs().items():
            keep = spec.to_array(admm.state.shapes[name])
            p = admm.model.get_parameter(name).detach().numpy()
            assert 0 < keep.sum() < keep.size and not p[~keep].any()
        return parameters(admm), admm.reports[-1]

    world = World((1, 2))
    results = world.run(rank)
    assert all(torch.equal(p, results[0][0]) for p, _ in results)
    assert world.wire[-1][0] == results[0][1].kept


def test_cost_is_accounted():
    def rank(comm):
        admm = train(start(comm), 6)
        cost = admm.cost()
        assert cost["steps"] == 6 and cost["own_s"] > 0 and cost["comm_s"] > 0
        assert cost["wall_s"] > cost["own_s"] and 0 < cost["share"] < 1
        assert all(r.own_s > 0 and r.comm_s > 0 for r in admm.reports)
        assert exchange_of(comm).seconds == 0 and np.isfinite(admm.reports[-1].r)

    World((2, 1)).run(rank)

# SPDX-License-Identifier: Apache-2.0
"""Using HSADMM rightly and wrongly: closures, frozen parameters, every structure, accounting."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hsadmm_models import Flat
from hsadmm_training import FLAT, X, Y, parameters, start, train
from hsadmm_world import World, exchange_of
from torch import nn

from prunex.torch.groups import find_groups
from prunex.torch.hsadmm import FROZEN, HSADMM
from prunex.torch.schedule import Ramp


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
        return float(
            (
                admm.model.spare.weight.detach()
                - admm.state.views["z_i"][admm.state.number["spare.weight"]]
            )
            .abs()
            .max()
        )

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
    with pytest.raises(ValueError, match="the optimizer lacks 6 .*first conv2.weight"):
        HSADMM(model, sgd, None, FLAT, 0.5)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    for wrong in ({"local_steps": 0}, {"rho1": 0.0}, {"score": "x"}, {"balance": "x"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            HSADMM(model, sgd, None, FLAT, 0.5, **wrong)
    with pytest.raises(ValueError, match="two families are named"):
        HSADMM(model, sgd, None, [FLAT[0], FLAT[0]], 0.5)
    with pytest.raises(TypeError, match="density is 'half'"):
        HSADMM(model, sgd, None, FLAT, "half")
    with pytest.raises(ValueError, match=r"density is 0.5 but no families .*find_groups\(model"):
        HSADMM(model, sgd, None, (), 0.5)
    for optimizer in (None, model.parameters()):
        with pytest.raises(TypeError, match=r"the optimizer is a .*SGD\(model.parameters\(\)"):
            HSADMM(model, optimizer, None, FLAT, 0.5)
    with pytest.raises(TypeError, match=r"comm is a object; .*prunex.torch.communicator\(group\)"):
        HSADMM(model, sgd, object(), FLAT, 0.5)
    for families in ("conv1", {"conv1.weight": 0}, [FLAT]):
        with pytest.raises(TypeError, match="families: wanted a list of what find_groups"):
            HSADMM(model, sgd, None, families, 0.5)


def test_a_compiled_model_is_its_plain_one():
    """Wrappers as torch.compile's change the names of parameters, not what is pruned."""

    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self._orig_mod = inner

        def forward(self, x):
            return self._orig_mod(x)

    model = Wrapper(Flat())
    sgd = torch.optim.SGD(model.parameters(), 0.05)
    admm = HSADMM(model, sgd, None, find_groups(model, X[:1]), 0.5, local_steps=1)
    train(admm, 12)
    assert admm.state.names == [name for name, _ in model._orig_mod.named_parameters()]
    assert any(not mask.all() for mask in admm.masks().values())


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


@pytest.mark.parametrize(
    "structure", ["filter", "channel", "both", "column", "kernel", "block", "nm"]
)
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

# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of H-SADMM (reports F5 and E2)."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from hsadmm_training import X, Y, parameters, start, train
from hsadmm_world import World

from prunex.torch.hsadmm import FINETUNE, FROZEN
from prunex.torch.schedule import Ramp


def everything(admm):
    """All that decides how training goes on, as one list of tensors."""
    s = admm.state
    momenta = [
        v for p in s.thetas for v in admm.optimizer.state.get(p, {}).values() if torch.is_tensor(v)
    ]
    masks = [torch.from_numpy(m) for m in admm.masks().values()]
    return (
        [
            parameters(admm),
            s.u,
            s.v,
            s.z_i,
            s.z,
            torch.from_numpy(s.rho1),
            torch.from_numpy(s.rho2),
        ]
        + momenta
        + masks
    )


def batches(admm, steps):
    """The same minibatches for a step number, whoever asks."""
    for step in steps:
        g = torch.Generator().manual_seed(50 * step + admm.exchange.rank)
        pick = torch.randint(0, len(X), (8,), generator=g)
        admm.zero_grad()
        F.cross_entropy(admm.model(X[pick]), Y[pick]).backward()
        admm.step()


@pytest.mark.parametrize("nodes", [(1,), (2, 2)])
@pytest.mark.parametrize("before", [3, 8, 15, 25])
def test_F5_three_save_load_three_is_six_straight(nodes, before):
    """In the ramp, in the middle of a round, frozen, and in fine-tuning."""
    options = dict(density=Ramp(0.5, 0, 2), local_steps=2, freeze_after=2)

    def lead(admm):
        for step in range(before):
            if step == 22:
                admm.finish()
            batches(admm, [step])

    def straight(comm):
        admm = start(comm, **options)
        lead(admm)
        batches(admm, range(100, 106))
        return [t.clone() for t in everything(admm)], admm.phase, admm.rounds

    def broken(comm):
        admm = start(comm, **options)
        lead(admm)
        batches(admm, range(100, 103))
        file = io.BytesIO()
        torch.save({"admm": admm.state_dict(), "model": admm.model.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file)
        fresh = start(comm, seed=77, **options)
        fresh.model.load_state_dict(saved["model"])
        fresh.load_state_dict(saved["admm"])
        batches(fresh, range(103, 106))
        return [t.clone() for t in everything(fresh)], fresh.phase, fresh.rounds

    for (a, phase, rounds), (b, phase_b, rounds_b) in zip(
        World(nodes).run(straight), World(nodes).run(broken)
    ):
        assert (phase, rounds) == (phase_b, rounds_b)
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert torch.equal(x, y)
        assert phase == {3: "admm", 8: "frozen", 15: FROZEN, 25: FINETUNE}[before]


def test_F5_state_pickles_without_handles():
    def rank(comm):
        admm = train(start(comm), 4)
        saved = pickle.loads(pickle.dumps(admm.state_dict()))
        assert torch.equal(saved["u"], admm.state.u)
        before = saved["u"].clone()
        train(admm, 4)
        assert torch.equal(saved["u"], before)  # a copy, not a view

    World((1, 1)).run(rank)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda s: s["shapes"].__setitem__(0, [9]), r"another model: conv1.weight is \[9\] there"),
        (lambda s: s["names"].__setitem__(0, "x"), "another model"),
        (
            lambda s: s["masks"].__setitem__("conv1", torch.ones(5)),
            "other pruning groups: conv1 has 5",
        ),
        (lambda s: s["world"].__setitem__(2, 3), "rank 3 of 1"),
        (lambda s: s.__setitem__("version", 9), "version 9"),
    ],
)
def test_E2_a_foreign_checkpoint_is_refused_untouched(change, message):
    admm = World((1,)).run(lambda c: train(start(c), 5))[0]
    saved = copy.deepcopy(admm.state_dict())
    change(saved)
    before = [t.clone() for t in everything(admm)]
    with pytest.raises(ValueError, match=message):
        admm.load_state_dict(saved)
    assert all(torch.equal(a, b) for a, b in zip(before, everything(admm)))

# SPDX-License-Identifier: Apache-2.0
"""The proximal gradient of local steps: put together over steps, or added by SGD's own decay."""

import pytest
import torch
from hsadmm_training import parameters, start, train
from hsadmm_world import World
from torch import nn

from prunex.torch.hsadmm import HSADMM


class Point(nn.Module):
    """Eight numbers one away from z_i - u, whose loss has no gradient."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.arange(8.0))


class OwnSGD(torch.optim.SGD):
    """The same arithmetic; not torch's own class, whose weight decay HSADMM knows."""


def moves(pull_every, rate=0.01, steps=8, **options):
    """How far each local step has moved a parameter that only the proximal term moves."""
    model = Point()
    admm = HSADMM(
        model,
        torch.optim.SGD(model.parameters(), rate),
        None,
        (),
        1.0,
        local_steps=steps,
        pull_every=pull_every,
        **options,
    )
    with torch.no_grad():
        model.w.add_(1.0)
    out = []
    for _ in range(steps - 1):  # the last one ends with a round
        before = model.w.detach().clone()
        model.w.grad = torch.zeros(8)
        admm.step()
        out.append(float((before - model.w.detach()).mean()))
    return out


def test_every_step_by_default():
    assert all(move == pytest.approx(0.001 * 0.999**i, rel=1e-3) for i, move in enumerate(moves(1)))


def test_put_together():
    """Steps 3 and 6 of 8 pull, three times as strongly."""
    found = moves(3)
    assert [move != 0 for move in found] == [False, False, True, False, False, True, False]
    assert found[2] == pytest.approx(0.003, rel=1e-3)


def test_fewer_where_the_step_would_be_long():
    """lr rho1 steps stays at or below 0.1: here two steps, not eight."""
    found = moves(8, rate=0.5, rho1=0.1)
    assert [move != 0 for move in found] == [False, True] * 3 + [False]
    assert all(move != 0 for move in moves(8, rate=2.0, rho1=0.1))


def test_the_rounds_last_step_pulls_what_is_left():
    model = Point()
    admm = HSADMM(
        model, torch.optim.SGD(model.parameters(), 0.01), None, (), 1.0, local_steps=2, pull_every=5
    )
    with torch.no_grad():
        model.w.add_(1.0)
    for _ in range(2):
        model.w.grad = torch.zeros(8)
        admm.step()
    assert torch.allclose(model.w.grad, torch.full((8,), 0.2))  # 2 steps x rho1 x distance


def test_steps_that_are_left_go_into_the_checkpoint():
    model = Point()
    admm = HSADMM(model, torch.optim.SGD(model.parameters(), 0.01), None, (), 1.0, pull_every=4)
    model.w.grad = torch.zeros(8)
    admm.step()
    saved = admm.state_dict()
    admm.step()
    admm.load_state_dict(saved)
    assert admm._unpulled == saved["unpulled"] == 1


def test_a_bad_number_is_refused():
    with pytest.raises(ValueError, match="pull_every is 0"):
        moves(0)


@pytest.mark.parametrize("momentum, nesterov", [(0.0, False), (0.9, False), (0.9, True)])
def test_sgds_own_decay_is_the_same_sum(momentum, nesterov):
    def make(kind):
        return lambda ps: kind(ps, 0.05, momentum=momentum, nesterov=nesterov, weight_decay=1e-2)

    def rank(comm):
        one = start(comm, optimizer=make(torch.optim.SGD))
        other = start(comm, optimizer=make(OwnSGD))
        for admm in (one, other):
            train(admm, 12)
            assert admm.optimizer.param_groups[0]["weight_decay"] == 1e-2
        assert one._decay.usable(one.state) and not other._decay.usable(other.state)
        assert torch.allclose(parameters(one), parameters(other), atol=1e-5)
        return parameters(one)

    results = World((2, 1)).run(rank)
    assert all(torch.equal(r, results[0]) or r.shape == results[0].shape for r in results)


def test_the_decay_is_given_back_after_an_error():
    model = Point()
    admm = HSADMM(model, torch.optim.SGD(model.parameters(), 0.01, weight_decay=0.5), None, (), 1.0)
    model.w.grad = torch.zeros(8)
    admm.optimizer.step = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        admm.step()
    assert admm.optimizer.param_groups[0]["weight_decay"] == 0.5


@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_without_a_decay_the_pull_is_in_the_gradient(decay):
    model = Point()
    admm = HSADMM(
        model, torch.optim.SGD(model.parameters(), 0.01, weight_decay=decay), None, (), 1.0
    )
    assert admm._decay.usable(admm.state) == bool(decay)
    rates = [dict(params=[model.w], lr=0.1, weight_decay=decay, maximize=True)]
    other = HSADMM(model, torch.optim.SGD(rates, 0.1), None, (), 1.0)
    assert not other._decay.usable(other.state)


def test_what_else_the_optimizer_holds_is_not_pulled():
    model, foreign = Point(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*model.parameters(), foreign], 0.1, weight_decay=1e-2)
    admm = HSADMM(model, optimizer, None, (), 1.0)
    model.w.grad, foreign.grad = torch.zeros(8), torch.zeros(3)
    admm.step()
    assert torch.allclose(foreign.detach(), torch.full((3,), 1 - 0.1 * 1e-2))

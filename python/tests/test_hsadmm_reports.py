# SPDX-License-Identifier: Apache-2.0
"""Public reports that concern the optimizer, by id (E.., F..: groups; R..: rows of the table of
concrete reports)."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hsadmm_training import X, Y, parameters, start, train
from hsadmm_world import World
from torch import nn

from prunex.torch.groups import manual_family
from prunex.torch.hsadmm import FINETUNE, HSADMM
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
        admm = start(
            comm,
            density=Constant(0.5),
            seed=1,
            optimizer=lambda p: torch.optim.SGD(p, 0.1),
            freeze_after=1,
        )
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
        worst = max(
            float((a - b).detach().abs().max()) for a, b in zip(single.parameters(), admm.model.parameters())
        )
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
        # The product in fp32: torch before 2.1 has none of fp16 on a CPU.
        x = torch.relu(F.linear(x, self.a.weight.float(), self.a.bias.float()))
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
            torch.float16,
            torch.bfloat16,
            torch.float32,
        ]
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
            admm = start(
                comm,
                [family],
                Constant(0.5),
                build=lambda: Weight(form),
                local_steps=1,
                freeze_after=2,
            )
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
        admm = start(
            comm,
            [family],
            Constant(0.5),
            build=Rows,
            local_steps=1,
            hysteresis=0.0,
            freeze_after=99,
            balance=None,
        )
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
    reports = world.run(lambda c: train(start(c, density=Ramp(0.2, 1, 6), freeze_after=2), 20))[
        0
    ].reports
    for (sent, _), r in zip(world.wire, reports):
        assert sent <= r.total and (sent < r.total) == (r.density < 1.0)

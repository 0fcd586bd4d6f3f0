# SPDX-License-Identifier: Apache-2.0
"""H-SADMM solves problems whose answer is known."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hsadmm_models import ResNet
from hsadmm_training import start
from hsadmm_world import World
from torch import nn

from prunex.torch.groups import find_groups, manual_family
from prunex.torch.hsadmm import FROZEN
from prunex.torch.schedule import Ramp


def least_squares(nodes, families_of, density, rounds, **options):
    """Every rank has 24 rows of one system of its own; the optimum is that of all rows."""
    size = sum(nodes)
    g = torch.Generator().manual_seed(3)
    a = torch.randn(size, 24, 8, generator=g)
    true = torch.zeros(8)
    true[[1, 4, 6]] = torch.tensor([2.0, -3.0, 1.5])
    b = a @ true + 0.05 * torch.randn(size, 24, generator=g)

    def rank(comm):
        build = lambda: nn.Linear(8, 1, bias=False)
        admm = start(
            comm,
            families_of(build()),
            density,
            build=build,
            local_steps=20,
            optimizer=lambda p: torch.optim.SGD(p, 0.1),
            **options,
        )
        for _ in range(rounds * 20):
            admm.zero_grad()
            F.mse_loss(admm.model(a[comm.rank])[:, 0], b[comm.rank]).backward()
            admm.step()
        return admm

    return World(nodes).run(rank), a.reshape(-1, 8), b.reshape(-1)


@pytest.mark.parametrize("nodes", [(1, 1), (2, 2), (1, 2)])
def test_converges_to_the_pooled_optimum(nodes):
    """Convex, no pruning: z goes to the least-squares solution of all ranks' data."""
    admms, a, b = least_squares(nodes, lambda m: (), 1.0, 60, rho1=1.0, rho2=1.0)
    best = torch.linalg.lstsq(a, b[:, None]).solution[:, 0]
    assert (admms[0].state.z - best).abs().max() < 5e-3
    assert admms[0].reports[-1].r < 0.05 * admms[0].reports[0].r
    assert any(r.converged for r in admms[0].reports) or admms[0].reports[-1].r < 1e-2


def test_finds_the_support():
    """Three of eight columns carry the signal: they are kept, the mask settles, z is the optimum
    on them."""
    admms, a, b = least_squares(
        (2, 2),
        lambda m: [manual_family(m, "columns", [("weight", 1)])],
        Ramp(3 / 8, 2, 6),
        60,
        rho1=1.0,
        rho2=1.0,
    )
    admm = admms[0]
    assert admm.phase == FROZEN
    assert np.flatnonzero(admm.masks()["columns"]).tolist() == [1, 4, 6]
    best = torch.linalg.lstsq(a[:, [1, 4, 6]], b[:, None]).solution[:, 0]
    assert (admm.state.z[[1, 4, 6]] - best).abs().max() < 5e-3


def test_trains_a_residual_network():
    """A learnable task, half the channels: after fine-tuning it is learnt."""
    g = torch.Generator().manual_seed(9)
    centres = torch.randn(3, 1, 8, 8, generator=g)
    labels = torch.randint(0, 3, (120,), generator=g)
    images = centres[labels] + 0.5 * torch.randn(120, 1, 8, 8, generator=g)
    families = find_groups(ResNet(classes=3), images[:1])

    def rank(comm):
        admm = start(
            comm, families, Ramp(0.5, 1, 4), build=lambda: ResNet(classes=3), local_steps=4
        )
        pick = torch.Generator().manual_seed(comm.rank)
        for step in range(60):
            if step == 44:
                admm.finish()
            i = torch.randint(0, 120, (16,), generator=pick)
            admm.zero_grad()
            F.cross_entropy(admm.model(images[i]), labels[i]).backward()
            admm.step()
        admm.model.eval()
        return float((admm.model(images).argmax(1) == labels).float().mean())

    accuracy = World((1, 1)).run(rank)
    assert accuracy[0] == accuracy[1] and accuracy[0] > 0.9

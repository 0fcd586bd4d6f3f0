# SPDX-License-Identifier: Apache-2.0
"""A small training run of H-SADMM on one rank of a world."""

import threading

import torch
import torch.nn.functional as F
from hsadmm_models import Flat
from hsadmm_world import exchange_of

from prunex.torch.groups import find_groups
from prunex.torch.hsadmm import HSADMM

X = torch.randn(96, 1, 8, 8, generator=torch.Generator().manual_seed(5))
Y = torch.randint(0, 3, (96,), generator=torch.Generator().manual_seed(6))
FLAT = find_groups(Flat(), X[:1])
SEEDED = threading.Lock()


def start(comm, families=FLAT, density=0.5, seed=0, build=Flat, optimizer=None, **options):
    """An HSADMM on a fresh model; every rank has a seed of its own, rank 0's model counts."""
    with SEEDED:  # ranks are threads and share the generator
        torch.manual_seed(seed + 100 * comm.rank)
        model = build()
    make = optimizer or (lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9))
    options.setdefault("local_steps", 2)
    return HSADMM(
        model,
        make(model.parameters()),
        comm,
        families,
        density,
        exchange=exchange_of(comm),
        **options,
    )


def train(admm, steps, seed=0, each=None):
    """Minibatches of this rank's own."""
    g = torch.Generator().manual_seed(1000 * seed + admm.exchange.rank)
    for _ in range(steps):
        pick = torch.randint(0, len(X), (8,), generator=g)
        admm.zero_grad()
        F.cross_entropy(admm.model(X[pick]), Y[pick]).backward()
        _, report = admm.step()
        if report is not None and each is not None:
            each(report)
    return admm


def parameters(admm):
    return torch.cat([p.detach().reshape(-1).float() for p in admm.model.parameters()])

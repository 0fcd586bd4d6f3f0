# SPDX-License-Identifier: Apache-2.0
"""H-SADMM in real processes, fine-tuned by DDP with the hook after finish(exchange=False)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from hsadmm_models import Flat  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from prunex.torch import (  # noqa: E402
    HSADMM,
    MaskedParameters,
    PrunexState,
    find_groups,
    prunex_hook,
    shrink,
)
from prunex.torch.hsadmm import FINETUNE  # noqa: E402
from worlds import init_gloo, run_ranks  # noqa: E402

X = torch.randn(96, 1, 8, 8, generator=torch.Generator().manual_seed(5))
Y = torch.randint(0, 3, (96,), generator=torch.Generator().manual_seed(6))


def start(comm):
    torch.manual_seed(comm.rank)
    model = Flat()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return HSADMM(model, optimizer, comm, find_groups(model, X[:1]), density=0.5, local_steps=2)


def steps(admm, model, numbers):
    for step in numbers:
        g = torch.Generator().manual_seed(50 * step + admm.exchange.rank)
        pick = torch.randint(0, len(X), (8,), generator=g)
        admm.zero_grad()
        F.cross_entropy(model(X[pick]), Y[pick]).backward()
        admm.step()


def wrap(admm, comm):
    model = DistributedDataParallel(admm.model)
    masks = MaskedParameters(model)
    masks.set_all(admm.mask_specs())
    model.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    return model, masks


def weights(admm):
    return torch.cat([p.detach().reshape(-1) for p in admm.model.parameters()]).numpy().copy()


def tuned(rank, size, by_ddp):
    comm = init_gloo(rank, size)
    admm = start(comm)
    steps(admm, admm.model, range(8))
    admm.finish(exchange=not by_ddp)
    model, masks = wrap(admm, comm) if by_ddp else (admm.model, None)
    before = comm.stats()
    steps(admm, model, range(8, 14))
    after = comm.stats()
    if by_ddp:
        assert masks.density() < 0.8 and not masks.revived()
        assert after.calls_compact > before.calls_compact and after.violations == before.violations
    return weights(admm)


def of_the_default_group(rank, size):
    """Nothing but the model is given: neither a communicator nor a model without wrapper."""
    init_gloo(rank, size).close()
    torch.manual_seed(rank)
    model = Flat()
    wrapped = DistributedDataParallel(Flat())
    families = find_groups(wrapped, X[:1])
    names = [f.name for f in families]
    assert names and names == [f.name for f in find_groups(model, X[:1])]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    admm = HSADMM(model, optimizer, families=families, density=0.5, local_steps=2)
    steps(admm, model, range(12))
    admm.finish()
    assert (admm.exchange.size, admm.exchange.M) == (size, 2)
    small = shrink(wrapped, families, admm.masks())
    assert small.parameters_after < small.parameters_before
    return weights(admm)


def test_without_a_communicator_it_is_the_default_groups():
    """Ranks that train alone, each a model of its own, would be noticed by nobody."""
    out = run_ranks(of_the_default_group, nodes=(0, 0, 1))
    assert all((o == out[0]).all() for o in out)


def test_F2_fine_tuning_by_ddp_equals_fine_tuning_by_hsadmm():
    """Whoever averages the gradients, it is done once, under the same masks."""
    ours, ddps = run_ranks(tuned, False), run_ranks(tuned, True)
    for results in (ours, ddps):
        assert all((r == results[0]).all() for r in results)
    assert abs(ours[0] - ddps[0]).max() <= 1e-5


def straight(rank, size, finish_at, end):
    comm = init_gloo(rank, size)
    admm = start(comm)
    model = admm.model
    for step in range(end):
        if step == finish_at:
            admm.finish(exchange=False)
            model, _ = wrap(admm, comm)
        steps(admm, model, [step])
    return weights(admm)


def save(rank, size, finish_at, end, folder):
    comm = init_gloo(rank, size)
    admm = start(comm)
    model = admm.model
    for step in range(end):
        if step == finish_at:
            admm.finish(exchange=False)
            model, _ = wrap(admm, comm)
        steps(admm, model, [step])
    saved = {"admm": admm.state_dict(), "model": admm.model.state_dict()}
    torch.save(saved, f"{folder}/rank{rank}.pt")


def resume(rank, size, first, finish_at, end, folder):
    comm = init_gloo(rank, size)
    admm = start(comm)
    saved = torch.load(f"{folder}/rank{rank}.pt")
    admm.model.load_state_dict(saved["model"])
    admm.load_state_dict(saved["admm"])
    model = admm.model
    if first > finish_at:
        assert admm.phase == FINETUNE and not admm.exchange_gradients
        model, _ = wrap(admm, comm)
    for step in range(first, end):
        if step == finish_at:
            admm.finish(exchange=False)
            model, _ = wrap(admm, comm)
        steps(admm, model, [step])
    return weights(admm)


@pytest.mark.parametrize("at", [5, 11])
def test_F5_R18_checkpoints_across_processes(at, tmp_path):
    """Saved in the middle of a round, and in fine-tuning by DDP; new processes go on alike."""
    run_ranks(save, 8, at, str(tmp_path))
    resumed = run_ranks(resume, at, 8, 14, str(tmp_path))
    for ours, expected in zip(resumed, run_ranks(straight, 8, 14)):
        assert abs(ours - expected).max() <= 1e-5

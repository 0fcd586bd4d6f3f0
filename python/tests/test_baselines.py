# SPDX-License-Identifier: Apache-2.0
"""The hooks that PruneX is compared with."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from models import assert_close, batch, cnn, ddp, state_of, train  # noqa: E402
from prunex._library import library  # noqa: E402
from prunex.torch import DenseState, TopKState, dense_hook, powersgd, topk_hook  # noqa: E402
from worlds import init_gloo, run_ranks  # noqa: E402

needs_collectives = pytest.mark.skipif(
    not hasattr(library(), "prunex_all_gather"), reason="libprunex has no all_gather"
)


def dense(rank, size):
    comm = init_gloo(rank, size)
    plain, ours = ddp(cnn()), ddp(cnn())
    ours.register_comm_hook(DenseState(comm), dense_hook)
    train(plain, rank, 3)
    train(ours, rank, 3)
    assert_close(state_of(ours), state_of(plain), 1e-6)


def test_dense():
    run_ranks(dense)


def everything(rank, size):
    """Density 1 with few ranks is the mean itself, and leaves no error behind."""
    comm = init_gloo(rank, size)
    plain, ours = ddp(cnn()), ddp(cnn())
    state = TopKState(comm, density=0.49)
    ours.register_comm_hook(state, topk_hook)
    sums = None
    for step in range(3):
        for model in (plain, ours):
            model.zero_grad()
            model(batch(rank, 0)).square().mean().backward()
        # Without a step in between the gradients repeat: what was sent plus what was kept back is
        # the sum of all gradients so far.
        got = {n: p.grad.clone() for n, p in ours.module.named_parameters()}
        sums = got if sums is None else {n: sums[n] + g for n, g in got.items()}
    for name, parameter in ours.module.named_parameters():
        kept_back = state.error_of(parameter, torch.float32).clone().view(parameter.shape)
        comm.all_reduce(kept_back, op="avg")
        total = sums[name] + kept_back
        assert_close(
            {name: total}, {name: 3 * dict(plain.module.named_parameters())[name].grad}, 1e-5
        )
    return {n: float(g.double().sum()) for n, g in sums.items()}


@needs_collectives
def test_topk_loses_nothing():
    out = run_ranks(everything, nodes=(0, 1))
    assert out[0] == out[1]


def fewer_bytes(rank, size):
    comm = init_gloo(rank, size)
    model = ddp(cnn(), bucket_cap_mb=25)
    model.register_comm_hook(TopKState(comm, density=0.05, start=1), topk_hook)
    train(model, rank, 1)
    first = comm.stats().bytes_wire_sent
    train(model, rank, 1)
    return first, comm.stats().bytes_wire_sent - first


@needs_collectives
def test_topk_sends_less():
    for first, second in run_ranks(fewer_bytes, nodes=(0, 1)):
        assert second < 0.25 * first


def power(rank, size):
    init_gloo(rank, size)
    model = ddp(cnn())
    state, hook = powersgd(rank=1)
    model.register_comm_hook(state, hook)
    losses = train(model, rank, 6)
    assert losses[-1] < losses[0]


def test_powersgd_runs():
    run_ranks(power, nodes=(0, 1))
    with pytest.raises(ValueError, match="start"):
        powersgd(start=1)

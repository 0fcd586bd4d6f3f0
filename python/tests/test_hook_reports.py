# SPDX-License-Identifier: Apache-2.0
"""Public reports about DDP communication hooks, by their id."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import prunex  # noqa: E402
from models import TORCH, assert_close, batch, cnn, ddp, state_of, train  # noqa: E402
from prunex import MaskSpec  # noqa: E402
from prunex.torch import MaskedParameters, PrunexState, checked, prunex_hook  # noqa: E402
from worlds import init_gloo, run_ranks  # noqa: E402


def ones(model, contract="lossless"):
    masks = MaskedParameters(model)
    masks.set_all(
        {
            name: MaskSpec.dims({0: np.ones(p.shape[0], bool)}, contract)
            for name, p in masks._params.items()
        }
    )
    return masks


def parity(rank, size, options):
    comm = init_gloo(rank, size)
    plain, ours = ddp(cnn(), **options), ddp(cnn(), **options)
    state = PrunexState(comm, ones(ours))
    ours.register_comm_hook(state, prunex_hook)
    train(plain, rank, 5)
    train(ours, rank, 5)
    assert_close(state_of(ours), state_of(plain), 1e-6)
    stats = comm.stats()
    assert stats.mismatches == 0 and stats.violations == 0
    assert stats.calls >= 5
    assert stats.calls_compact == 0  # nothing is dropped: the dense path
    state.close()
    return {name: value.sum().item() for name, value in state_of(ours).items()}


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_F2_divides_once(view, static):
    """All-ones masks: five iterations equal plain DDP, bit-identical on all ranks."""
    options = dict(gradient_as_bucket_view=view, static_graph=static)
    out = run_ranks(parity, options)
    assert all(o == out[0] for o in out)


def wrong_shape(rank, size):
    comm = init_gloo(rank, size)

    def bad(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer()[:-1].clone())
        return future

    model = ddp(cnn())
    model.register_comm_hook(comm, checked(bad))
    with pytest.raises(Exception, match="the bucket has"):
        model(batch(rank, 0)).sum().backward()


def test_F2_wrong_shape_is_caught():
    run_ranks(wrong_shape, nodes=(0, 1))


def permuted(rank, size, contract):
    comm = init_gloo(rank, size)
    model, plain = ddp(cnn()), ddp(cnn())
    masks = MaskedParameters(model)
    keep = np.arange(24) < 12
    masks.set("2.weight", MaskSpec.dims({0: keep if rank == 0 else keep[::-1].copy()}, contract))
    model.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    x = batch(rank, 0)
    if contract == "project":
        with pytest.raises(Exception, match="(?i)mask"):
            model(x).square().mean().backward()
        return None
    model(x).square().mean().backward()
    plain(x).square().mean().backward()
    ours = {n: p.grad for n, p in model.module.named_parameters()}
    assert_close(ours, {n: p.grad for n, p in plain.module.named_parameters()}, 1e-6)
    return comm.stats().mismatches


def test_F3_masks_differ_between_ranks_project():
    """No common result: the same error on both ranks, no hang."""
    run_ranks(permuted, "project", nodes=(0, 1))


def test_F3_masks_differ_between_ranks_lossless():
    """Dense on both ranks, counted."""
    assert all(m >= 1 for m in run_ranks(permuted, "lossless", nodes=(0, 1)))


def swapped(rank, size):
    """Rank 1 hands the parameters over in another order: another layout."""
    comm = init_gloo(rank, size)
    from prunex import Layout, register_mask

    mask = register_mask(
        None, MaskSpec.dims({0: np.arange(8) < 4}, "project"), (8, 4), None, "float32", "w"
    )
    segments = [(0, 32, mask)] if rank == 0 else [(8, 32, mask)]
    buffer = np.ones(40, np.float32)
    with pytest.raises(prunex.Mismatch):
        comm.all_reduce(buffer, layout=Layout(segments, 40))
    assert (buffer == 1).all()
    comm.all_reduce(buffer)
    assert (buffer == size).all()


def test_F3_layouts_differ_between_ranks():
    run_ranks(swapped, nodes=(0, 1))


def make_masks(model, contract):
    masks = MaskedParameters(model)
    a, b = np.arange(13) % 2 == 0, np.arange(24) % 3 != 0
    masks.set_all(
        {
            "0.weight": MaskSpec.dims({0: a}, contract),
            "0.bias": MaskSpec.dims({0: a}, contract),
            "2.weight": MaskSpec.dims({0: b, 1: a}, contract),
            "2.bias": MaskSpec.dims({0: b}, contract),
            "4.weight": MaskSpec.dims({1: b}, contract),
        }
    )
    return masks


def resume(rank, size, straight):
    comm = init_gloo(rank, size)

    def wrap(model, state):
        wrapped = ddp(model)
        wrapped.register_comm_hook(state, prunex_hook)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
        return wrapped, optimizer

    model = cnn()
    state = PrunexState(comm, make_masks(model, "project"))
    state.masks.apply_mask()
    model, optimizer = wrap(model, state)
    train(model, rank, 6 if straight else 3, optimizer=optimizer)
    if not straight:
        saved = io.BytesIO()
        torch.save(
            {"m": model.module.state_dict(), "o": optimizer.state_dict(), "s": pickle.dumps(state)},
            saved,
        )
        saved.seek(0)
        loaded = torch.load(saved, weights_only=False)
        fresh = cnn()
        fresh.load_state_dict(loaded["m"])
        state = pickle.loads(loaded["s"]).attach(fresh, comm)
        model, optimizer = wrap(fresh, state)
        optimizer.load_state_dict(loaded["o"])
        train(model, rank, 3, first=3, optimizer=optimizer)
        with pytest.raises(RuntimeError, match="register_comm_hook"):
            model.register_comm_hook(state, prunex_hook)
        model(batch(rank, 9)).sum().backward()
    assert not state.masks.revived()
    return {name: value.numpy() for name, value in state_of(model).items()}


def test_F5_R18_state_resumes():
    """3 + save + load + 3 = 6 straight, and a second registration does no damage."""
    straight = run_ranks(resume, True, nodes=(0, 1))
    resumed = run_ranks(resume, False, nodes=(0, 1))
    for name, value in straight[0].items():
        np.testing.assert_allclose(resumed[0][name], value, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(resumed[0][name], resumed[1][name])


def unattached(rank, size):
    comm = init_gloo(rank, size)
    model = cnn()
    state = pickle.loads(pickle.dumps(PrunexState(None, make_masks(model, "project"))))
    state.attach(comm=comm)
    model = ddp(model)
    model.register_comm_hook(state, prunex_hook)
    with pytest.raises(Exception, match="attach"):
        model(batch(rank, 0)).sum().backward()


def test_F5_loaded_state_without_model_says_so():
    run_ranks(unattached, nodes=(0,))


def several_backwards(rank, size):
    comm = init_gloo(rank, size)
    plain, ours = ddp(cnn(), static_graph=True), ddp(cnn(), static_graph=True)
    ours.register_comm_hook(PrunexState(comm, ones(ours)), prunex_hook)

    def two_forwards(model, step):
        return model(batch(rank, step)).square().mean() + model(batch(rank, step + 50)).abs().mean()

    def run(model):
        train(model, rank, 4, forward=two_forwards)

    run(plain)
    run(ours)
    assert_close(state_of(ours), state_of(plain), 1e-6)


@pytest.mark.skipif(
    TORCH < (2, 1), reason="DDP of this torch refuses two forwards under static_graph by itself"
)
def test_F8_static_graph_two_forwards():
    run_ranks(several_backwards, nodes=(0, 1))


def retained(rank, size):
    comm = init_gloo(rank, size)
    plain, ours = ddp(cnn()), ddp(cnn())
    ours.register_comm_hook(PrunexState(comm, ones(ours)), prunex_hook)
    for model in (plain, ours):
        for step in range(3):
            loss = model(batch(rank, step)).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
    grads = {n: p.grad for n, p in plain.module.named_parameters()}
    assert_close({n: p.grad for n, p in ours.module.named_parameters()}, grads, 1e-5)


def test_F8_double_backward():
    run_ranks(retained, nodes=(0, 1))


class MixedDtypes(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.a = nn.Linear(8, 16)
        self.b = nn.Linear(16, 12).to(torch.bfloat16)
        self.c = nn.Linear(12, 4).to(torch.float16)

    def forward(self, x):
        x = self.b(self.a(x).to(torch.bfloat16))
        return self.c(x.to(torch.float16)).float()


def mixed(rank, size):
    comm = init_gloo(rank, size)
    plain, ours = ddp(MixedDtypes()), ddp(MixedDtypes())
    masks = ones(ours)
    ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)

    def forward(model, step):
        generator = torch.Generator().manual_seed(step * 10 + rank)
        return model(torch.randn(6, 8, generator=generator)).square().mean()

    train(plain, rank, 4, forward=forward, lr=0.01)
    train(ours, rank, 4, forward=forward, lr=0.01)
    assert_close(state_of(ours), state_of(plain), 2e-2)
    name = "a.weight"
    assert_close({name: state_of(ours)[name]}, {name: state_of(plain)[name]}, 1e-3)


@pytest.mark.skipif(TORCH < (2, 1), reason="gloo of this torch reduces no bfloat16")
def test_F9_mixed_dtypes():
    run_ranks(mixed, nodes=(0, 1))

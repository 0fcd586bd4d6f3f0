# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend, over real processes on two emulated nodes."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from models import cnn, ddp, state_of, train  # noqa: E402
import prunex.torch  # noqa: E402
from prunex import MaskSpec  # noqa: E402
from prunex._library import library  # noqa: E402
from prunex.torch import MaskedParameters  # noqa: E402
from worlds import run_ranks  # noqa: E402

needs_collectives = pytest.mark.skipif(
    not hasattr(library(), "prunex_broadcast"), reason="libprunex has no collectives that move data"
)
needs_point = pytest.mark.skipif(
    not hasattr(library(), "prunex_send"), reason="libprunex has no send and receive"
)


def init(rank, size):
    import prunex.torch.backend  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("prunex", rank=rank, world_size=size, timeout=timedelta(seconds=30))
    return dist.distributed_c10d._get_default_group()


def reductions(rank, size):
    group = init(rank, size)
    assert dist.get_backend() == "prunex" and dist.get_rank() == rank
    x = torch.arange(1000.0) + rank
    dist.all_reduce(x)
    assert torch.equal(x, size * torch.arange(1000.0) + size * (size - 1) / 2)
    x = torch.full((5,), float(rank), dtype=torch.bfloat16)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    assert (x == size - 1).all()
    y = torch.full((3, 4), rank + 1, dtype=torch.int64)
    work = dist.all_reduce(y, async_op=True)
    done = work.get_future().wait()
    assert (done[0] == size * (size + 1) // 2).all() and work.is_completed()
    z = torch.zeros(6, 5).t()  # not contiguous: written back
    z += rank
    dist.all_reduce(z)
    assert (z == size * (size - 1) / 2).all()
    scalar = torch.tensor(2.0)
    dist.all_reduce(scalar)
    assert scalar == 2 * size
    with pytest.raises(Exception, match="SUM, AVG"):
        dist.all_reduce(torch.ones(3, dtype=torch.int32), op=dist.ReduceOp.BXOR)
    with pytest.raises(Exception, match="dtype"):
        dist.all_reduce(torch.ones(3, dtype=torch.int16))
    with pytest.raises(ValueError, match="^all_gather of 7 elements .* 4 ranks into 5"):
        group.all_gather_single(torch.ones(5), torch.ones(7))
    with pytest.raises(ValueError, match="masks is a dict; wanted a MaskedParameters"):
        prunex.torch.backend.use_masks({})
    assert group.comm.stats().calls >= 5
    dist.destroy_process_group()


def test_reductions():
    run_ranks(reductions)


def moves(rank, size):
    init(rank, size)
    for dtype in (torch.float32, torch.int16, torch.bool, torch.complex64):
        x = torch.arange(7).to(dtype) if rank == 1 else torch.zeros(7, dtype=dtype)
        dist.broadcast(x, src=1)
        assert torch.equal(x, torch.arange(7).to(dtype))
    parts = [torch.empty(2, 3) for _ in range(size)]
    dist.all_gather(parts, torch.full((2, 3), float(rank)))
    assert all((part == r).all() for r, part in enumerate(parts))
    whole = torch.empty(size * 4, dtype=torch.int64)
    dist.all_gather_into_tensor(whole, torch.full((4,), rank))
    assert torch.equal(whole.view(size, 4)[:, 0], torch.arange(size))
    out = torch.empty(3)
    dist.reduce_scatter(out, [torch.full((3,), float(10 * r + rank)) for r in range(size)])
    assert (out == size * 10 * rank + size * (size - 1) / 2).all()
    dist.reduce_scatter_tensor(out, torch.ones(3 * size))
    assert (out == size).all()
    dist.barrier()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert [o["rank"] for o in objects] == list(range(size))
    said = ["x" * 1000 if rank == 0 else None]
    dist.broadcast_object_list(said, src=0)
    assert said[0] == "x" * 1000
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = torch.ones(9)
    dist.all_reduce(x, group=halves[rank // 2])
    assert (x == 2).all()
    dist.barrier()
    dist.destroy_process_group()


@needs_collectives
def test_moves():
    run_ranks(moves)


def refused(rank, size):
    """Named, with what to do, on the ranks that call it; nothing is sent."""
    init(rank, size)
    one, all_of_them = torch.ones(size), list(torch.ones(size, size))
    at_root = all_of_them if rank == 0 else None
    for name, call in (
        ("reduce", lambda: dist.reduce(one, 0)),
        ("gather", lambda: dist.gather(one, at_root, 0)),
        ("scatter", lambda: dist.scatter(one, at_root, 0)),
        ("all_to_all", lambda: dist.all_to_all(list(torch.ones(size, size)), all_of_them)),
        ("all_to_all_single", lambda: dist.all_to_all_single(torch.ones(size), one)),
        ("recv from any source", lambda: dist.recv(one)),
    ):
        with pytest.raises(Exception, match=rf"prunex backend has no {name} of CPU .*'gloo'"):
            call()
    with pytest.raises(Exception, match="ReduceOp BAND is not"):
        dist.all_reduce(torch.ones(3, dtype=torch.int32), op=dist.ReduceOp.BAND)
    dist.all_reduce(one)
    assert (one == size).all()
    group = dist.new_group(list(range(size)), backend="gloo")
    dist.reduce(one, 0, group=group)
    assert rank != 0 or (one == size * size).all()


def test_calls_it_lacks_are_named():
    run_ranks(refused, nodes=(0, 1))


def point(rank, size):
    init(rank, size)
    x = torch.full((100,), float(rank))
    peer = (rank + 1) % size
    received = torch.empty(100)
    works = [dist.isend(x, peer), dist.irecv(received, (rank - 1) % size)]
    for work in works:
        work.wait()
    assert (received == (rank - 1) % size).all()
    # A receive that waits does not hold up the futures of other calls.
    later = dist.irecv(received, (rank - 1) % size, tag=5).get_future()
    y = torch.ones(3)
    dist.all_reduce(y, async_op=True).get_future().wait()
    assert (y == size).all()
    dist.send(x + 1, peer, tag=5)
    later.wait()
    assert (received == (rank - 1) % size + 1).all()
    dist.barrier()  # nobody leaves while others wait: these processes end without a goodbye
    dist.destroy_process_group()


@needs_point
def test_send_and_receive():
    run_ranks(point)


def masked_ddp(rank, size, view):
    group = init(rank, size)
    from prunex.torch.backend import use_masks

    plain, ours = ddp(cnn(), gradient_as_bucket_view=view), ddp(cnn(), gradient_as_bucket_view=view)
    train(plain, rank, 4)
    masks = MaskedParameters(ours)
    keep = np.arange(24) % 2 == 0
    masks.set("2.weight", MaskSpec.dims({0: keep}, "project"))
    use_masks(masks)
    before = group.comm.stats()
    ours.module[2].weight.grad = None
    train(ours, rank, 1)
    spent = group.comm.stats() - before
    got = ours.module[2].weight.grad
    zero = (got[~torch.from_numpy(keep)] == 0).all().item()
    use_masks(None)
    return zero, spent.dropped_nonzero


@needs_collectives
@pytest.mark.parametrize("view", [True, False])
def test_masks_without_a_hook(view):
    """With bucket views the mask takes effect; without, the gradient is the dense one."""
    for zero, _ in run_ranks(masked_ddp, view, nodes=(0, 1)):
        assert zero == view


def plain_ddp(rank, size):
    init(rank, size)
    model = ddp(cnn())
    train(model, rank, 4)
    return {name: value.numpy() for name, value in state_of(model).items()}


def gloo_ddp(rank, size):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=30))
    model = ddp(cnn())
    train(model, rank, 4)
    return {name: value.numpy() for name, value in state_of(model).items()}


@needs_collectives
def test_ddp_equals_gloo():
    ours, gloo = run_ranks(plain_ddp, nodes=(0, 1)), run_ranks(gloo_ddp, nodes=(0, 1))
    for name, value in gloo[0].items():
        np.testing.assert_allclose(ours[0][name], value, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(ours[0][name], ours[1][name])

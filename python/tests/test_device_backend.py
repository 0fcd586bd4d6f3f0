# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors in the backend, on stand-ins for CUDA and NCCL: no GPU is needed."""

from __future__ import annotations

from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import prunex.torch.device as device_module  # noqa: E402
from device_model import (  # noqa: E402
    NODES,
    ROWS,
    COLUMNS,
    KEEP,
    Bucket,
    gradient,
    masks_of,
    mean,
    model,
    settled,
)
from prunex import Unsupported  # noqa: E402
from prunex.torch.backend import PrunexProcessGroup  # noqa: E402
from standins import host, on_device, run_threads  # noqa: E402


def options(op):
    out = dist.AllreduceOptions()
    out.reduceOp = op
    return out


def group_of(rank, store):
    group = PrunexProcessGroup(store, rank.rank, len(NODES), timedelta(seconds=30))
    group._cuda.path.cuda = rank.cuda
    group.comm.close()
    group.comm = rank.comm  # of two nodes
    return group


def test_backend_reduces_like_nccl():
    store = dist.HashStore()

    def body(rank):
        group = group_of(rank, store)
        size = len(NODES)
        x = on_device(torch.arange(100.0) + rank.rank)
        work = group.allreduce([x], options(dist.ReduceOp.SUM))
        assert work.wait() and ("current", "waits for an event") in rank.cuda.log
        rank.cuda.main.synchronize()
        assert work.is_completed() and work.get_future().value()[0] is x
        assert torch.equal(host(x), size * torch.arange(100.0) + 6)
        for op, wanted in ((dist.ReduceOp.AVG, 2.5), (dist.ReduceOp.MAX, 4), (dist.ReduceOp.MIN, 1)):
            y = on_device(torch.full((3, 5), rank.rank + 1.0))
            group.allreduce([y], options(op)).wait()
            rank.cuda.main.synchronize()
            assert (host(y) == wanted).all(), op
        flags = on_device(torch.tensor([rank.rank == 1, False]))
        z = on_device(torch.complex(torch.ones(6), torch.full((6,), float(rank.rank))))
        group.allreduce([flags]).wait()
        group.allreduce([z]).wait()
        rank.cuda.main.synchronize()
        assert host(flags).tolist() == [True, False]
        assert (host(z) == torch.complex(torch.tensor(4.0), torch.tensor(6.0))).all()
        group.shutdown()

    run_threads(NODES, body)


def test_backend_compacts_ddps_buckets():
    store = dist.HashStore()

    def body(rank):
        group = group_of(rank, store)
        module = model()
        bucket = Bucket(module, gradient(rank.rank))
        module.weight, module.bias = (
            torch.nn.Parameter(torch.zeros(ROWS, COLUMNS)),
            torch.nn.Parameter(torch.zeros(ROWS)),
        )
        group.use_masks(masks_of(module, "project"))
        # As gradient_as_bucket_view does it.
        cut = ROWS * COLUMNS
        module.weight.grad = host(bucket.buffer())[:cut].view(ROWS, COLUMNS)
        module.bias.grad = host(bucket.buffer())[cut:]
        group.allreduce([bucket.buffer()], options(dist.ReduceOp.AVG)).wait()
        rank.cuda.main.synchronize()
        assert torch.equal(host(bucket.buffer()), mean(len(NODES)))
        compact = settled(group.comm, 2).calls_compact
        group.shutdown()
        return compact

    assert run_threads(NODES, body) == [1] * len(NODES)


class Nccl:
    """An NCCL group that writes down what it is asked."""

    def __init__(self, log):
        self.log = log

    def allreduce(self, tensors, opts=None):
        self.log.append(("nccl", tensors[0].dtype))
        outer = self

        class Work:
            def wait(self):
                outer.log.append(("nccl work is waited for",))

        return Work()

    def reduce(self, tensors, opts=None):
        self.log.append(("nccl", "reduce"))

    def alltoall(self, outputs, inputs, opts=None):
        self.log.append(("nccl", "alltoall"))


def test_backend_leaves_to_nccl_what_the_library_does_not_take():
    store = dist.HashStore()

    def body(rank):
        group = group_of(rank, store)
        group._nccl_group = Nccl(rank.cuda.log)
        group.allreduce([on_device(torch.ones(4, dtype=torch.int16))], options(dist.ReduceOp.SUM))
        group.allreduce([on_device(torch.ones(4, 3)).t()], options(dist.ReduceOp.SUM))
        group.allreduce([on_device(torch.ones(4, dtype=torch.int32))], options(dist.ReduceOp.BXOR))
        group.reduce([on_device(torch.ones(4))])
        group.alltoall([on_device(torch.ones(4))], [on_device(torch.ones(4))])
        assert [entry[1] for entry in rank.cuda.log if entry[0] == "nccl"] == [
            torch.int16, torch.float32, torch.int32, "reduce", "alltoall",
        ]  # fmt: skip
        assert group.comm.stats().calls == 0, "nothing had to be agreed on"
        group.shutdown()

    run_threads(NODES, body)


def test_backend_without_the_device_path_keeps_the_contract(monkeypatch):
    def optional(name):
        raise Unsupported("no GPU")

    monkeypatch.setattr(device_module, "optional", optional)
    store = dist.HashStore()

    def body(rank):
        group = group_of(rank, store)
        group._nccl_group = Nccl(rank.cuda.log)
        module = model()
        bucket = Bucket(module, gradient(rank.rank, zeros=False))
        group.use_masks(masks_of(module, "project"))
        module.weight.grad = host(bucket.buffer())[: ROWS * COLUMNS].view(ROWS, COLUMNS)
        work = group.allreduce([bucket.buffer()], options(dist.ReduceOp.SUM))
        assert work.get_future().value()[0] is bucket.buffer()
        left = bucket.gradients()[0]
        assert (host(left)[~torch.tensor(KEEP)] == 0).all()
        assert (host(left)[torch.tensor(KEEP)] != 0).all()
        names = [entry for entry in rank.cuda.log if entry[0].startswith("nccl") or entry[0] == "use"]
        assert names[:3] == [
            ("nccl", torch.float32), ("use", "side"), ("nccl work is waited for",),
        ]  # fmt: skip
        group.shutdown()

    run_threads(NODES, body)

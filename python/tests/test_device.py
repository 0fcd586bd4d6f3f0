# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors in the hook and the backend, on stand-ins for CUDA and NCCL: no GPU is needed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import prunex.torch.device as device_module  # noqa: E402
import prunex.torch.hook as hook_module  # noqa: E402
from prunex import Layout, MaskSpec, Unsupported, register_mask  # noqa: E402
from prunex.torch import MaskedParameters, PrunexState, prunex_hook  # noqa: E402
from prunex.torch.backend import PrunexProcessGroup  # noqa: E402
from prunex.torch.device import DevicePath  # noqa: E402
from standins import DEVICE, Cuda, OnDevice, cuda, host, on_device, run_threads  # noqa: E402

NODES = (0, 0, 1, 1)
ROWS, COLUMNS = 24, 50
KEEP = [row % 3 == 0 for row in range(ROWS)]


class Bucket:
    """What DDP hands to a hook: a masked matrix and a dense vector behind it."""

    def __init__(self, model, values):
        self._buffer = on_device(values)
        self._parameters = [model.weight, model.bias]

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters

    def gradients(self):
        weight, bias = self._parameters
        cut = weight.numel()
        return [self._buffer[:cut].view(weight.shape), self._buffer[cut:]]

    def is_last(self):
        return True


def model():
    return torch.nn.Linear(COLUMNS, ROWS)


def masks_of(module, contract):
    masks = MaskedParameters(module)
    masks.set("weight", MaskSpec.dims({0: KEEP}, contract))
    return masks


def gradient(rank, zeros=True):
    """Whole numbers; zero in dropped rows, or not."""
    weight = (torch.arange(ROWS * COLUMNS, dtype=torch.float32) % 17 + rank + 1).view(ROWS, COLUMNS)
    if zeros:
        weight[~torch.tensor(KEEP)] = 0
    return torch.cat([weight.reshape(-1), torch.arange(float(ROWS)) * (rank + 1)])


def mean(size, zeros=True, project=False):
    out = sum(gradient(rank, zeros) for rank in range(size)) / size
    if project:
        out[: ROWS * COLUMNS].view(ROWS, COLUMNS)[~torch.tensor(KEEP)] = 0
    return out


def state_of(rank, masks):
    state = PrunexState(rank.comm, masks)
    state._device = DevicePath(lambda: rank.comm, rank.cuda)
    return state


def settled(comm, calls):
    """Counters with so many calls in them: their headers are compared behind the caller's back."""
    end = time.monotonic() + 30
    while comm.stats().calls < calls and time.monotonic() < end:
        time.sleep(0.01)
    assert comm.stats().calls == calls, comm.stats()
    return comm.stats()


# ---- the library, by a stream


def test_the_call_goes_to_the_given_stream_and_compacts():
    def body(rank):
        spec = MaskSpec.elements([True, False] * 500, "project")
        mask = register_mask(None, spec, (1000,), dtype="float32")
        layout = Layout([(0, 1000, mask)], 1000)
        x = on_device(torch.full((1000,), float(rank.rank + 1)))
        assert rank.comm.all_reduce(x, layout=layout, stream=rank.cuda.main) is x
        request = rank.comm.all_reduce(x, layout=layout, stream=rank.cuda.main, async_op=True)
        assert request.done() and request.wait() is x
        rank.cuda.main.synchronize()
        assert (host(x)[::2] == 40).all() and (host(x)[1::2] == 0).all()
        return settled(rank.comm, 2)

    stats = run_threads(NODES, body)
    assert all(s.calls_compact == 2 for s in stats), stats


def test_without_a_stream_it_is_the_current_one(monkeypatch):
    asked = []

    def body(rank):
        def current_stream(device):
            asked.append(device)
            return rank.cuda.main

        if rank.rank == 0:
            monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
        x = on_device(torch.ones(10))
        rank.comm.all_reduce(x)
        rank.cuda.main.synchronize()
        assert (host(x) == 1).all()

    run_threads((0,), body)
    assert asked == [DEVICE]


def test_other_calls_say_that_they_take_host_memory():
    def body(rank):
        for call in (rank.comm.broadcast, lambda x: rank.comm.all_gather(x, x)):
            with pytest.raises(Unsupported, match="cuda:0; host memory is needed"):
                call(on_device(torch.ones(4)))
        with pytest.raises(Exception, match="stream"):
            rank.comm.all_reduce(torch.ones(4), stream=rank.cuda.main)

    run_threads((0,), body)


# ---- the hook


@pytest.mark.parametrize("contract", ["project", "lossless", "sampled"])
def test_hook_reduces_on_a_stream_beside_the_backward(contract):
    def body(rank):
        module = model()
        state = state_of(rank, masks_of(module, contract))
        for round_ in range(3):
            bucket = Bucket(module, gradient(rank.rank))
            future = prunex_hook(state, bucket)
            assert future.done(), "the host is not made to wait"
            rank.cuda.main.wait_event(state._device._stream(DEVICE).record_event())
            rank.cuda.main.synchronize()
            assert future.value() is bucket.buffer()
            assert torch.equal(host(bucket.buffer()), mean(len(NODES))), round_
        return settled(rank.comm, 4), rank.cuda.log  # with the agreement

    for stats, log in run_threads(NODES, body):
        assert stats.calls_compact == 3, stats
        assert log[:7] == [
            ("side", "waits for", "current"),  # for the backward so far
            ("keep for", "side"),
            ("use", "side"),
            ("result on", "side"),  # the future notes how far the reduction's stream is
            ("side", "records an event"),
            ("use", "current"),
            ("side", "records an event"),  # this test's
        ], log


def test_hook_does_not_run_ahead_of_the_backward():
    def body(rank):
        module = model()
        state = state_of(rank, masks_of(module, "project"))
        bucket = Bucket(module, gradient(rank.rank))
        prunex_hook(state, bucket)  # arms the plan, which may wait
        state._device._stream(DEVICE).synchronize()
        # The gradients of the next round are still being computed when the hook is called.
        rank.barrier.wait()
        cuda.standin_hold(1)
        rank.barrier.wait()
        bucket.buffer().fill_(-1)
        values = gradient(rank.rank, zeros=False)
        rank.cuda.main.copy(bucket.buffer(), values)
        future = prunex_hook(state, bucket)
        event = state._device._stream(DEVICE).record_event()
        assert future.done() and not event.query()
        rank.barrier.wait()
        cuda.standin_hold(0)
        rank.cuda.main.wait_event(event)
        rank.cuda.main.synchronize()
        assert event.query()
        assert torch.equal(host(bucket.buffer()), mean(len(NODES), zeros=False, project=True))

    run_threads(NODES, body)


def test_hook_goes_dense_where_a_lossless_mask_is_broken():
    def body(rank):
        module = model()
        state = state_of(rank, masks_of(module, "lossless"))
        bucket = Bucket(module, gradient(rank.rank, zeros=False))
        prunex_hook(state, bucket)
        state._device._stream(DEVICE).synchronize()
        assert torch.equal(host(bucket.buffer()), mean(len(NODES), zeros=False))
        return settled(rank.comm, 2).violations

    assert run_threads(NODES, body) == [1] * len(NODES)


class Spy:
    """A communicator that writes down what it is asked."""

    rank, size = 0, 4

    def __init__(self, log, error=None):
        self.log, self.error = log, error

    def all_reduce(self, flat, op="sum", layout=None, stream=None):
        if stream is None:  # the agreement, in host memory
            return flat
        self.log.append(("all_reduce", flat.dtype, op, layout, stream.name))
        if self.error is not None:
            raise self.error
        return flat


@pytest.mark.parametrize("dtype,op", [(torch.float16, "sum"), (torch.bfloat16, "avg")])
def test_compressed_gradients_are_widened_on_the_reductions_stream(dtype, op):
    fake = Cuda()
    state = PrunexState(Spy(fake.log), compress=dtype)
    state._device = DevicePath(lambda: state.comm, fake)
    bucket = Bucket(model(), torch.full((ROWS * COLUMNS + ROWS,), 8.0))
    copied = []

    class Watched(OnDevice):
        def copy_(self, other):
            copied.append((other.dtype, fake.current.name))
            return super().copy_(other)

    bucket._buffer = bucket._buffer.as_subclass(Watched)
    future = prunex_hook(state, bucket)
    assert future.value() is bucket.buffer()
    assert [entry for entry in fake.log if entry[0] == "all_reduce"] == [
        ("all_reduce", dtype, op, None, "side")
    ]
    assert copied == [(dtype, "side")]
    assert fake.log.index(("side", "waits for", "current")) < fake.log.index(("use", "side"))


def test_the_program_for_gpus_runs_on_a_cpu():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ddp_device.py")), "--device", "cpu", "--only", "hook"],
        capture_output=True, text=True, timeout=120, check=False,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    )  # fmt: skip
    assert done.returncode == 0 and "hook on cpu: all is well" in done.stdout, done


# ---- where there is no device path


def all_reduce_of_threads(ranks):
    """torch.distributed.all_reduce among threads: blocking, of the host."""
    given = {}

    class Dist:
        @staticmethod
        def get_world_size(group=None):
            return ranks

        @staticmethod
        def all_reduce(tensor, group=None, async_op=False):
            rank, barrier = group
            given[rank] = host(tensor).clone()
            barrier.wait()
            tensor.copy_(sum(given[r] for r in range(ranks)))
            barrier.wait()
            future = torch.futures.Future()
            future.set_result([tensor])

            class Work:
                def get_future(self):
                    return future

            return Work()

    return Dist


def test_one_rank_without_the_libraries_is_noticed_by_all(monkeypatch, caplog):
    lacking = {}
    real = device_module.optional

    def optional(name):
        if name == "prunex_device_ready" and threading.get_ident() in lacking:
            raise Unsupported("no CUDA driver: libcuda.so.1 cannot be opened")
        return real(name)

    monkeypatch.setattr(device_module, "optional", optional)
    monkeypatch.setattr(hook_module, "dist", all_reduce_of_threads(len(NODES)))

    def body(rank):
        if rank.rank == 2:
            lacking[threading.get_ident()] = True
        module = model()
        state = state_of(rank, masks_of(module, "project"))
        state.group = (rank.rank, rank.barrier)
        for _ in range(2):
            bucket = Bucket(module, gradient(rank.rank, zeros=False))
            assert prunex_hook(state, bucket).wait() is bucket.buffer()
            wanted = mean(len(NODES), zeros=False, project=True)
            assert torch.equal(host(bucket.buffer()), wanted)
        return settled(rank.comm, 1).calls

    with caplog.at_level(logging.WARNING, logger="prunex.torch"):
        calls = run_threads(NODES, body)
    assert calls == [1] * len(NODES), "they agree once"
    said = sorted(record.getMessage() for record in caplog.records)
    assert len(said) == len(NODES)
    assert sum("rank 2 lacks it" in text for text in said) == 3
    assert sum("no CUDA driver" in text for text in said) == 1


def test_what_nccl_lacks_is_found_in_the_first_call(caplog):
    fake = Cuda()
    spy = Spy(fake.log, Unsupported("rank 1: NCCL 2.7 or newer is needed"))
    path = DevicePath(lambda: spy, fake)
    x = on_device(torch.ones(5))
    with caplog.at_level(logging.WARNING, logger="prunex.torch"):
        assert path.all_reduce(x, "sum", None, lambda: x) is None
        assert path.all_reduce(x, "sum", None, lambda: x) is None
    assert [r.getMessage().count("NCCL 2.7 or newer") for r in caplog.records] == [1]
    assert sum(entry[0] == "all_reduce" for entry in fake.log) == 1

    path = DevicePath(lambda: spy, fake)
    spy.error = None
    assert path.all_reduce(x, "sum", None, lambda: x) is not None
    spy.error = Unsupported("not while a graph is captured")
    with pytest.raises(Unsupported, match="captured"):
        path.all_reduce(x, "sum", None, lambda: x)


def test_a_group_of_other_ranks_is_refused(monkeypatch):
    monkeypatch.setattr(hook_module, "dist", all_reduce_of_threads(7))
    state = PrunexState(Spy([]))
    state._device._has = False
    with pytest.raises(Exception, match="7 ranks, PruneX's communicator 4"):
        prunex_hook(state, Bucket(model(), gradient(0)))


# ---- the backend


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


def test_backend_leaves_to_nccl_what_the_library_does_not_take():
    store = dist.HashStore()

    def body(rank):
        group = group_of(rank, store)
        group._nccl_group = Nccl(rank.cuda.log)
        group.allreduce([on_device(torch.ones(4, dtype=torch.int16))], options(dist.ReduceOp.SUM))
        group.allreduce([on_device(torch.ones(4, 3)).t()], options(dist.ReduceOp.SUM))
        group.allreduce([on_device(torch.ones(4, dtype=torch.int32))], options(dist.ReduceOp.BXOR))
        assert [entry[1] for entry in rank.cuda.log if entry[0] == "nccl"] == [
            torch.int16, torch.float32, torch.int32,
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

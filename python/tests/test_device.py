# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors in the library and the hook, on stand-ins for CUDA and NCCL: no GPU is needed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import prunex.torch.hook as hook_module  # noqa: E402
from device_model import (  # noqa: E402
    NODES,
    ROWS,
    COLUMNS,
    Bucket,
    gradient,
    masks_of,
    mean,
    model,
    settled,
    threads_without_libraries,
)
from prunex import Layout, MaskSpec, PeerLost, Unsupported, register_mask  # noqa: E402
from prunex._library import check, library  # noqa: E402
from prunex.torch import PrunexState, prunex_hook  # noqa: E402
from prunex.torch.device import DevicePath  # noqa: E402
from standins import DEVICE, Cuda, OnDevice, cuda, host, on_device, run_threads  # noqa: E402


def state_of(rank, masks):
    state = PrunexState(rank.comm, masks)
    state._device = DevicePath(lambda: rank.comm, rank.cuda)
    return state


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


def test_what_became_of_a_communicator_is_seen_without_a_call():
    def body(rank):
        x = on_device(torch.ones(10))
        rank.comm.all_reduce(x, stream=rank.cuda.main)
        rank.cuda.main.synchronize()
        assert rank.comm.async_error() is None
        rank.comm.barrier()
        if rank.rank == 1:
            check(library().prunex_comm_abort(rank.comm.handle))
        deadline = time.monotonic() + 60
        error = rank.comm.async_error()
        while error is None and time.monotonic() < deadline:
            time.sleep(0.01)
            error = rank.comm.async_error()
        assert isinstance(error, PeerLost) and "rank 1" in str(error), error

    run_threads(NODES, body)


# ---- the hook


@pytest.mark.parametrize("contract", ["project", "lossless", "sampled"])
def test_F10_hook_reduces_on_a_stream_beside_the_backward(contract):
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


def test_F10_hook_does_not_run_ahead_of_the_backward():
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

    def all_reduce(self, flat, recv=None, op="sum", layout=None, scope="world", stream=None):
        assert recv is None and scope == "world"
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
    lacking = threads_without_libraries(monkeypatch)
    monkeypatch.setattr(hook_module, "dist", all_reduce_of_threads(len(NODES)))

    def body(rank):
        if rank.rank == 2:
            lacking.add(threading.get_ident())
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

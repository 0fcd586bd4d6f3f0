# SPDX-License-Identifier: Apache-2.0
"""H-SADMM's exchange of CUDA tensors, on stand-ins for CUDA and NCCL: values stay on the device."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from device_model import COLUMNS, KEEP, NODES, ROWS, settled, threads_without_libraries  # noqa: E402
from prunex import MaskSpec  # noqa: E402
from prunex.torch import hsadmm_exchange  # noqa: E402
from prunex.torch.device import DevicePath  # noqa: E402
from prunex.torch.hsadmm_exchange import Exchange  # noqa: E402
from standins import OnDevice, host, on_device, run_threads  # noqa: E402

MASKED = ROWS * COLUMNS
COUNT = MASKED + ROWS


class Kept(OnDevice):
    """A tensor that does not leave its device."""

    def cpu(self, *args, **kwargs):
        raise AssertionError("copied to the host")


def exchange_of(rank):
    exchange = Exchange(rank.comm)
    exchange._device = DevicePath(lambda: rank.comm, rank.cuda, instead="way of host memory")
    return exchange


def use_masks(exchange):
    """A masked matrix and a vector behind it."""
    state = SimpleNamespace(
        names=["weight", "bias"],
        offsets=[0, MASKED, COUNT],
        count=COUNT,
        shapes={"weight": (ROWS, COLUMNS), "bias": (ROWS,)},
        strides=[(COLUMNS, 1), (1,)],
        dtype=torch.float32,
        families=[],
        masks={},
    )
    exchange.use_masks(state, 0)


@pytest.fixture
def masked(monkeypatch):
    spec = {"weight": MaskSpec.dims({0: KEEP}, "project")}
    monkeypatch.setattr(hsadmm_exchange, "specs", lambda *a, **k: spec)


def values(rank):
    return (torch.arange(float(COUNT)) % 13) + rank


def projected(tensor):
    out = tensor.clone()
    out[:MASKED].view(ROWS, COLUMNS)[~torch.tensor(KEEP)] = 0
    return out


def kept(tensor):
    return on_device(tensor).as_subclass(Kept)


def test_means_over_node_leaders_and_world_stay_on_the_device(masked):
    def body(rank):
        exchange = exchange_of(rank)
        use_masks(exchange)
        theta, mean = kept(values(rank.rank)), kept(torch.zeros(COUNT))
        assert exchange.node_mean(theta, mean) is mean
        node = NODES[rank.rank]
        everywhere = kept(torch.full((COUNT,), -1.0))
        end = exchange.begin_leaders_mean(mean, everywhere)
        before = list(rank.cuda.log)
        end()
        assert rank.cuda.log[len(before) :] == [("current", "waits for an event")]
        assert exchange.world_mean_(theta, masked=True) is theta
        small = exchange.from_rank_0_(kept(torch.full((3,), float(rank.rank + 5))))
        rank.cuda.main.synchronize()
        assert torch.equal(host(mean), values(2 * node + 0.5))
        assert torch.equal(host(everywhere), projected(values(1.5)))
        assert torch.equal(host(theta), projected(values(1.5)))
        assert (host(small) == 5).all()
        stats = settled(rank.comm, 5)  # with the question who has what it takes
        exchange.close()
        return stats.calls_compact

    assert run_threads(NODES, body) == [2] * len(NODES)


class Copied(OnDevice):
    def cpu(self, *args, **kwargs):
        return host(self).clone()


def test_where_a_rank_lacks_the_libraries_all_go_through_host_memory(masked, monkeypatch, caplog):
    lacking = threads_without_libraries(monkeypatch)

    def body(rank):
        if rank.rank == 2:
            lacking.add(threading.get_ident())
        exchange = exchange_of(rank)
        use_masks(exchange)
        theta = on_device(values(rank.rank)).as_subclass(Copied)
        mean = on_device(torch.zeros(COUNT)).as_subclass(Copied)
        everywhere = on_device(torch.full((COUNT,), -1.0)).as_subclass(Copied)
        exchange.node_mean(theta, mean)
        exchange.begin_leaders_mean(mean, everywhere)()
        assert torch.equal(host(mean), values(2 * NODES[rank.rank] + 0.5))
        assert torch.equal(host(everywhere), projected(values(1.5)))
        exchange.close()

    with caplog.at_level(logging.WARNING, logger="prunex.torch"):
        run_threads(NODES, body)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(NODES), said
    assert all("by way of host memory" in line for line in said), said
    assert sum("no CUDA driver" in line for line in said) == 1

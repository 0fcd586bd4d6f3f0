# SPDX-License-Identifier: Apache-2.0
"""An in-process world: ranks are threads, sums are in rank order, volume is counted."""

import threading

import numpy as np

from prunex.torch.hsadmm_exchange import Exchange
from prunex.torch.projection import Budget, choose

TIMEOUT = 60


class FakeMask:
    def __init__(self, spec, shape, strides):
        self.spec, self.shape, self.strides = spec, tuple(shape), tuple(strides)

    def update(self, spec):
        self.spec = spec

    def close(self):
        pass

    def flat(self):
        """Kept places in memory order."""
        keep = self.spec.to_array(self.shape)
        order = sorted(range(len(self.shape)), key=lambda d: -self.strides[d])
        return keep.transpose(order).reshape(-1)


class FakeLayout:
    def __init__(self, segments, count):
        self.segments, self.count = segments, count

    def close(self):
        pass

    def keep(self):
        out = np.ones(self.count, bool)
        for offset, count, mask in self.segments:
            if mask is not None:
                out[offset : offset + count] = mask.flat()
        return out


class Library:
    """What prunex gives: register_mask and Layout."""

    @staticmethod
    def register_mask(array, spec, shape=None, strides=None, dtype=None, name=""):
        assert array is None and dtype is not None and spec.contract == "project"
        spec.to_array(shape)
        return FakeMask(spec, shape, strides)

    Layout = FakeLayout


class World:
    """nodes: ranks of each node, in order."""

    def __init__(self, nodes=(1,)):
        self.nodes = list(nodes)
        self.size = sum(nodes)
        self.barrier = threading.Barrier(self.size, timeout=TIMEOUT)
        self.slots = [None] * self.size
        self.wire = []  # elements each leaders' exchange put on the wire, with their size
        self.agreed = []  # groups of every agreement

    def run(self, function):
        """function(comm) on every rank; its results by rank. The first failure is raised."""
        results, errors = [None] * self.size, []

        def main(rank):
            try:
                results[rank] = function(Comm(self, rank))
            except BaseException as error:  # the test's thread must see it
                errors.append((rank, error))
                self.barrier.abort()

        threads = [threading.Thread(target=main, args=(r,), daemon=True) for r in range(self.size)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(TIMEOUT * 2)
            assert not t.is_alive(), "a rank hangs"
        for _, error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        assert not errors, errors
        return results

    def gather(self, rank, value):
        self.slots[rank] = value
        self.barrier.wait()
        values = list(self.slots)
        self.barrier.wait()
        return values


class Comm:
    def __init__(self, world, rank):
        self.world, self.rank, self.size = world, rank, world.size
        ends = np.cumsum(world.nodes)
        self.node = int(np.searchsorted(ends, rank, side="right"))
        self.num_nodes = len(world.nodes)
        self.local_size = world.nodes[self.node]
        self.local_rank = rank - int(ends[self.node] - self.local_size)
        self.is_leader = self.local_rank == 0

    def _first(self, node):
        return sum(self.world.nodes[:node])

    def all_reduce(self, send, recv=None, op="sum", layout=None, scope="world", async_op=False):
        assert op in ("sum", "avg") and send.is_contiguous()
        keep = None if layout is None else layout.keep()
        values = self.world.gather(self.rank, (send.clone(), scope, send.numel(), keep))
        assert len({v[1:3] for v in values}) == 1, "ranks make different calls"
        for v in values:
            assert (v[3] is None) == (keep is None)
            assert keep is None or (v[3] == keep).all(), "ranks have different masks"
        if scope == "node":
            first = self._first(self.node)
            ranks = range(first, first + self.local_size)
        elif scope == "leaders":
            ranks = [self._first(n) for n in range(self.num_nodes)]
        else:
            ranks = range(self.size)
        total = values[ranks[0]][0].clone()
        for r in ranks[1:]:
            total += values[r][0]
        if op == "avg":
            total /= len(ranks)
        if keep is not None:
            total[~torch_bool(keep)] = 0
        if scope == "leaders" and self.rank == 0:
            sent = send.numel() if keep is None else int(keep.sum())
            self.world.wire.append((sent, send.element_size()))
        target = send if recv is None else recv
        if async_op:
            return Later(target, total)
        target.copy_(total)
        return recv

    def agree_mask(
        self,
        scores,
        keep=None,
        layer_groups=None,
        layer_keep=None,
        weight=1.0,
        incumbents=None,
        hysteresis=0.0,
        mode="topk",
        scope="leaders",
    ):
        scores = np.asarray(scores, np.float32)
        assert np.isfinite(scores).all() and (scores >= 0).all()
        values = self.world.gather(self.rank, (scores * weight, tuple(layer_keep)))
        assert len({v[1] for v in values}) == 1, "ranks want different budgets"
        total = sum(values[self._first(n)][0] for n in range(self.num_nodes))
        if self.rank == 0:
            self.world.agreed.append(len(scores))
        return choose(total, Budget(tuple(layer_groups), tuple(layer_keep)), incumbents, hysteresis)


class Later:
    """A request that ends in wait(): what is computed meanwhile must not need the result."""

    def __init__(self, target, total):
        self.target, self.total = target, total
        target.fill_(float("nan"))

    def done(self):
        return False

    def wait(self):
        self.target.copy_(self.total)
        return self.target


def torch_bool(array):
    import torch

    return torch.from_numpy(array)


def exchange_of(comm):
    return Exchange(comm, Library)

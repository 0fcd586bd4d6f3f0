# SPDX-License-Identifier: Apache-2.0
"""The binding without torch: library, communicator, errors, statistics."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import prunex
from prunex import Communicator, Layout, MaskSpec, register_mask
from prunex._library import library, library_path
from worlds import free_port, run_ranks

PYTHON = Path(__file__).resolve().parent.parent


def run_python(code, **environment):
    env = {**os.environ, "PYTHONPATH": str(PYTHON), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )


def test_import_needs_no_torch():
    done = run_python(
        "import sys, prunex\nprunex.MaskSpec.dims({0: [True]})\nprunex.version()\n"
        "assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr == ""


def test_version():
    assert prunex.version() == prunex.__version__


def test_loaded_copy_is_taken():
    """A copy that is loaded already, as by NCCL's plugin, is the one that is used."""
    done = run_python(
        "import ctypes, os, sys\n"
        f"ctypes.CDLL({library_path()!r}, mode=os.RTLD_LOCAL)\n"
        "os.environ.pop('PRUNEX_LIBRARY', None)\n"
        "import prunex\nprint(prunex.library_path())"
    )
    assert done.stdout.strip() == library_path(), done.stderr


def test_second_copy_is_refused(tmp_path):
    copy = tmp_path / "libprunex.so"
    copy.write_bytes(Path(library_path()).read_bytes())
    done = run_python(
        "import ctypes, prunex\n"
        f"ctypes.CDLL({library_path()!r})\n"
        f"ctypes.CDLL({str(copy)!r})\n"
        "prunex.version()",
        PRUNEX_LIBRARY="",
    )
    assert done.returncode != 0
    assert "two copies" in done.stderr and str(copy) in done.stderr, done.stderr


def test_wrong_choice_is_an_error(tmp_path):
    done = run_python("import prunex; prunex.version()", PRUNEX_LIBRARY=str(tmp_path / "no.so"))
    assert "PRUNEX_LIBRARY" in done.stderr and "no.so" in done.stderr


def test_a_relative_choice_is_one_of_the_start(tmp_path):
    """The folder in which prunex was imported counts, whatever the program does after that."""
    (tmp_path / "libprunex.so").symlink_to(library_path())
    code = f"import os, sys; os.chdir({str(tmp_path)!r}); import prunex; os.chdir('/'); prunex.version()"
    done = run_python(code, PRUNEX_LIBRARY="./libprunex.so")
    assert done.returncode == 0, done.stderr
    done = run_python(code, PRUNEX_LIBRARY="elsewhere/libprunex.so")
    assert f"no file {tmp_path}/elsewhere/libprunex.so (relative to where" in done.stderr


def nan_scores(rank, size):
    comm = Communicator()
    with pytest.raises(prunex.Error) as caught:
        comm.agree_mask([1.0, 2.0, float("nan") if rank == 0 else 3.0], keep=1)
    assert comm.agree_mask([1.0, 2.0, 3.0], keep=1).tolist() == [False, False, True]
    comm.close()
    return type(caught.value).__name__, str(caught.value)


def test_a_score_that_is_not_a_number_is_named():
    """The rank that has it learns which; the other is pointed to that rank. Both may go on."""
    (kind, text), (other_kind, other_text) = run_ranks(nan_scores, nodes=(0, 1))
    assert kind == "InvalidArgument" and "score of group 2 is nan" in text
    assert other_kind == "Mismatch" and "refused its own, a score that is not finite" in other_text


def test_errors_are_what_python_calls_them():
    assert issubclass(prunex.InvalidArgument, (prunex.Error, ValueError))
    assert issubclass(prunex.InvalidArgument, ValueError)
    assert issubclass(prunex.Timeout, TimeoutError)
    assert issubclass(prunex.PeerLost, ConnectionError)
    assert issubclass(prunex.OutOfMemory, MemoryError)
    with pytest.raises(prunex.InvalidArgument) as caught:
        Communicator(rank=3, size=2, root="127.0.0.1:1")
    assert caught.value.code == 1 and "3" in str(caught.value)


def alone(**options):
    return Communicator(0, 1, root=f"127.0.0.1:{free_port()}", timeout=10, **options)


def test_one_rank():
    with alone() as comm:
        assert (comm.rank, comm.size, comm.num_nodes, comm.leader, comm.is_leader) == (
            0,
            1,
            1,
            0,
            True,
        )
        x = np.arange(5.0)
        assert comm.all_reduce(x) is x
        out = np.empty(5)
        assert comm.all_reduce(x, out) is out and (out == x).all()
        assert "1 node" in comm.topology()
        assert comm.stats().calls == 2
    with pytest.raises(prunex.InvalidHandle):
        comm.all_reduce(x)
    comm.close()


@pytest.mark.parametrize(
    "array, word",
    [
        (np.ones((4, 4), np.float32)[:, 0], "contiguous"),
        (np.ones((4, 4), np.float32).T, "contiguous"),
        (np.ones(4, np.float32)[::-1], "contiguous"),
        (np.ones(4, np.int16), "dtype"),
        ([1.0, 2.0], "list"),
    ],
)
def test_E6_refuses_what_it_cannot_reduce(array, word):
    with alone() as comm, pytest.raises(ValueError, match=word):
        comm.all_reduce(array)


def test_read_only_and_mismatched_buffers():
    with alone() as comm:
        x = np.ones(4, np.float32)
        x.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            comm.all_reduce(x)
        with pytest.raises(ValueError, match="5"):
            comm.all_reduce(x, np.ones(5, np.float32))
        with pytest.raises(ValueError, match="op"):
            comm.all_reduce(np.ones(4), op="xor")
        with pytest.raises(ValueError, match="scope"):
            comm.all_reduce(np.ones(4), scope="rack")
        with pytest.raises(ValueError, match="prunex.Layout"):
            comm.all_reduce(np.ones(4), layout=5)


def test_foreign_byte_order_is_refused():
    """NumPy calls '>f4' float32 too; summed as it lies it would be garbage."""
    foreign = np.dtype(np.float32).newbyteorder()
    with alone() as comm:
        with pytest.raises(ValueError, match="byte order"):
            comm.all_reduce(np.ones(4, foreign))
        with pytest.raises(ValueError, match="byte order"):
            comm.broadcast(np.ones(4, foreign))
    with pytest.raises(ValueError, match="byte order"):
        register_mask(np.ones(4, foreign), MaskSpec.dims({0: np.ones(4, bool)}))


def test_mismatched_types_are_named():
    with alone() as comm:
        with pytest.raises(ValueError, match="float32.*float64"):
            comm.all_reduce(np.ones(4, np.float32), np.ones(4))
        with pytest.raises(ValueError, match="float64.*float32"):
            comm.all_gather(np.ones(4, np.float32), np.ones(4))


def booleans(rank, size):
    with Communicator(timeout=20) as comm:
        for op, expected in (
            ("sum", [True, True, False]),
            ("max", [True, True, False]),
            ("prod", [True, False, False]),
            ("min", [True, False, False]),
        ):
            x = np.array([True, rank == 1, False])
            comm.all_reduce(x, op=op)
            assert x.view(np.uint8).tolist() == [int(e) for e in expected], op
        part = np.zeros(1, bool)
        comm.reduce_scatter(np.ones(size, bool), part)
        assert part.view(np.uint8).tolist() == [1]
        with pytest.raises(ValueError, match="booleans"):
            comm.all_reduce(np.ones(3, bool), op="avg")


def test_booleans_stay_booleans():
    """Sums of booleans are "any": a count in a bool's byte is no boolean, and 256 would be false."""
    run_ranks(booleans)


def test_zero_elements():
    with alone() as comm:
        comm.all_reduce(np.empty(0, np.float32))
        comm.all_reduce(np.empty((3, 0), np.float32))


def world(rank, size):
    with Communicator(timeout=20) as comm:
        total = size * (size + 1) / 2
        # by address
        keep = np.arange(6) % 2 == 0
        x = np.full((6, 4096), rank + 1, np.float32)
        x[~keep] = 0
        mask = register_mask(x, MaskSpec.dims({0: keep}), name="x")
        comm.all_reduce(x, op="sum")
        assert (x[keep] == total).all() and (x[~keep] == 0).all()
        stats = comm.stats()
        assert stats.hits == 1 and stats.calls_compact == 1
        # by layout, project: what is dropped becomes +0
        y = np.full(10 + x.size, rank + 1.0, np.float32)
        with register_mask(
            None, MaskSpec.dims({0: keep}, "project"), x.shape, dtype="float32"
        ) as m:
            with Layout([(10, x.size, m)], y.size) as layout:
                assert layout.info().kept == 10 + x.size // 2
                request = comm.all_reduce(y, op="avg", layout=layout, async_op=True)
                assert request.wait() is y and request.done() and request.wait() is y
                y.fill(1)
                m.update(MaskSpec.dims({0: ~keep}, "project", epoch=1))
                assert layout.info().kept == 10 + x.size // 2
                comm.all_reduce(y, layout=layout)
        inner = y[10:].reshape(x.shape)
        assert (inner[keep] == 0).all() and (inner[~keep] == size).all() and (y[:10] == size).all()
        # scopes
        z = np.ones(3)
        comm.all_reduce(z, scope="node")
        assert (z == comm.local_size).all()
        z = np.full(3, float(comm.node))
        comm.all_reduce(z if comm.is_leader else None, z, scope="leaders")
        assert (z == sum(range(comm.num_nodes))).all()
        # several in flight, done in any order
        parts = [np.full(1000, float(rank + i)) for i in range(20)]
        requests = [comm.all_reduce(p, async_op=True) for p in parts]
        for request in reversed(requests):
            request.wait()
        assert all((p == size * (size - 1) / 2 + i * size).all() for i, p in enumerate(parts))
        # agreement
        scores = np.zeros(8, np.float32)
        scores[[1, 5]] = 2
        scores[comm.node] += 1.5
        agreed = comm.agree_mask(scores, keep=3)
        assert agreed.sum() == 3 and agreed[1] and agreed[5]
        agreed = comm.agree_mask(scores, layer_groups=[4, 4], layer_keep=[1, 2])
        assert agreed[:4].sum() == 1 and agreed[4:].sum() == 2
        assert comm.agree_mask(scores, mode="union")[comm.node]
        incumbents = np.arange(8) == 7
        assert comm.agree_mask(np.ones(8), keep=1, incumbents=incumbents, hysteresis=0.25)[7]
        # a disagreement leaves the communicator usable
        before = np.ones(4 + rank % 2, np.float32)
        with pytest.raises(prunex.Mismatch):
            comm.all_reduce(before)
        assert (before == 1).all()
        good = np.ones(7)
        comm.all_reduce(good)
        assert (good == size).all()
        mask.close()
        return comm.local_rank


def test_world():
    assert run_ranks(world) == [0, 1, 0, 1]


def late(rank, size):
    if rank == 1:
        return None
    with pytest.raises(prunex.Timeout, match="1"):
        Communicator(timeout=2)


def test_missing_rank_is_named():
    run_ranks(late, nodes=(0, 1))


def lost(rank, size):
    comm = Communicator(timeout=20)
    comm.all_reduce(np.ones(3))
    if rank == 1:
        comm.close()
        return
    with pytest.raises((prunex.PeerLost, prunex.Timeout), match="1"):
        comm.all_reduce(np.ones(3))


def test_lost_rank_is_named():
    run_ranks(lost, nodes=(0, 1))


class DictStore:
    """No torch: any object with set and get will do. One process, so get finds or fails."""

    def __init__(self):
        self.data = {}

    def set(self, key, value):
        self.data[key] = value

    def get(self, key):
        return self.data[key]


def test_store_of_anything():
    store = DictStore()
    with Communicator(0, 1, store=store, timeout=5) as comm:
        comm.all_reduce(np.ones(2))


def test_requests_that_nobody_waits_for():
    """The buffers stay alive until the communicator is closed."""
    comm = alone()
    for _ in range(50):
        comm.all_reduce(np.ones(10000), async_op=True)
    comm.close()


def test_net_stats_without_a_plugin():
    stats = prunex.net_stats()
    assert stats.sent["raw"].messages == 0 and set(stats.received) == set(stats.sent)


def test_handles_do_not_pile_up():
    x = np.zeros((4, 4), np.float32)
    spec = MaskSpec.dims({0: [True, False, True, True]})
    for _ in range(300):
        mask = register_mask(x, spec)
        layout = Layout([(0, 16, mask)], 16)
        assert layout.info().kept == 12
        layout.close()
        mask.close()
    assert hasattr(library(), "prunex_stats")

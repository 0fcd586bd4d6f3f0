# SPDX-License-Identifier: Apache-2.0
"""Real processes for the tests: every rank a process, every wait with a deadline."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import sys
import time
import traceback
from typing import Any, Callable, List, Optional, Sequence

import pytest

DEADLINE = 90.0


def torchrun(node: int, nodes: int, ranks: int, port: int) -> List[str]:
    """The command that starts a node's ranks; the program and its options follow."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes)]
    command += ["--node_rank", str(node), "--nproc_per_node", str(ranks)]
    command += ["--master_addr", "127.0.0.1", "--master_port", str(port)]
    # Before 2.0 it fails on Python 3.11 where no rank's output is sent elsewhere; there is no rank 9.
    import torch

    return command + (["-r", "9:3", "-t", "9:3"] if torch.__version__.startswith("1.") else [])


def free_port() -> int:
    """A port outside the range that outgoing connections take theirs from."""
    while True:
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _rank(
    function: Callable[..., Any],
    rank: int,
    nodes: Sequence[int],
    port: int,
    torch_port: int,
    arguments: Sequence[Any],
    results: Any,
    environment: Sequence[Any],
) -> None:
    os.environ.update(
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(nodes)),
            "LOCAL_RANK": str(list(nodes[:rank]).count(nodes[rank])),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(torch_port),
            "PRUNEX_ROOT": f"127.0.0.1:{port}",
            "PRUNEX_NODE_ID": f"node{nodes[rank]}",
            "PRUNEX_TIMEOUT": "30",
            "PRUNEX_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            **dict(environment),
        }
    )
    try:
        results.put((rank, True, function(rank, len(nodes), *arguments)))
    except BaseException:
        results.put((rank, False, traceback.format_exc()))
    results.close()
    results.join_thread()
    sys.stdout.flush()


def _context() -> Any:
    """A server that has imported torch once, and forks a fresh process per rank from it."""
    context = multiprocessing.get_context("forkserver")
    # _dynamo: what DDP imports when it is first made.
    context.set_forkserver_preload(
        ["numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo", "torch.optim"]
    )
    return context


def run_ranks(
    function: Callable[..., Any],
    *arguments: Any,
    nodes: Sequence[int] = (0, 0, 1, 1),
    environment: Optional[dict] = None,
    deadline: float = DEADLINE,
) -> List[Any]:
    """Runs function(rank, size, *arguments) in a process per rank; returns what each returned.

    nodes: the emulated node of each rank. Fails the test if a rank raises, dies or is late.
    """
    context = _context()
    results = context.Queue()
    ports = free_port(), free_port()
    ranks = [
        context.Process(
            target=_rank,
            args=(
                function,
                rank,
                tuple(nodes),
                *ports,
                arguments,
                results,
                tuple((environment or {}).items()),
            ),
            daemon=True,
        )
        for rank in range(len(nodes))
    ]
    for process in ranks:
        process.start()
    out: dict = {}
    failures: List[str] = []
    end = time.monotonic() + deadline
    try:
        while len(out) < len(nodes) and not failures:
            try:
                rank, good, value = results.get(timeout=0.5)
            except Exception:
                dead = [r for r, p in enumerate(ranks) if not p.is_alive() and r not in out]
                if dead and results.empty():
                    failures.append(f"rank {dead[0]} died with code {ranks[dead[0]].exitcode}")
                elif time.monotonic() > end:
                    failures.append(f"only ranks {sorted(out)} ended within {deadline} s")
                continue
            if good:
                out[rank] = value
            else:
                failures.append(f"rank {rank}:\n{value}")
    finally:
        for process in ranks:
            process.join(timeout=5 if not failures else 0.5)
            if process.is_alive():
                process.kill()
                process.join(timeout=5)
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
    return [out[rank] for rank in range(len(nodes))]


def init_gloo(rank: int, size: int) -> Any:
    """The default group on gloo, and a prunex communicator met through its store."""
    import torch
    import torch.distributed as dist

    from datetime import timedelta

    from prunex.torch import communicator

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=40))
    return communicator(timeout=20)

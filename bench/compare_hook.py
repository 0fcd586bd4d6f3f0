# SPDX-License-Identifier: Apache-2.0
"""Time of a DDP iteration: PyTorch's default (gloo) against prunex_hook, without masks and with
all-ones masks, which save nothing and show what the hook costs. On loopback, unlimited:

    build/tools/prunex run -n 4 --nodes 2 -- python3 bench/compare_hook.py [--rounds N] [--json FILE]

The contenders take turns, a few iterations each per round; rank 0 prints medians over rounds, and of
the ratio to the default in the same round.
"""

import argparse
import json
import os
import statistics
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "python", "examples")]
from train_model import DigitsNet  # noqa: E402

from prunex import MaskSpec  # noqa: E402
from prunex.torch import MaskedParameters, PrunexState, prunex_hook  # noqa: E402


def contender(kind: str, comm):
    """(one iteration of a DDP model, its communicator)."""
    torch.manual_seed(0)
    model = DigitsNet()
    ddp = DDP(model, gradient_as_bucket_view=True)
    if kind != "default":
        masks = None
        if kind == "all-ones":
            masks = MaskedParameters(model)
            ones = {
                name: MaskSpec.dims({0: np.ones(p.shape[0], bool)})
                for name, p in model.named_parameters()
                if p.dim() == 4
            }
            masks.set_all(ones)
        state = PrunexState(comm, masks)
        comm = state.comm
        ddp.register_comm_hook(state, prunex_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    images, labels = torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,))

    def iteration() -> None:
        optimizer.zero_grad()
        F.cross_entropy(ddp(images), labels).backward()
        optimizer.step()

    return iteration, comm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--iterations", type=int, default=5, help="per contender and round")
    parser.add_argument("--json", help="FILE, or - for stdout")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    contenders, comm = {}, None
    for kind in ("default", "no masks", "all-ones"):
        contenders[kind], comm = contender(kind, comm)
    times = {kind: [] for kind in contenders}
    work = {kind: [] for kind in contenders}  # seconds of the processor, all threads of this rank
    for number in range(options.rounds + 1):
        order = list(contenders)
        for kind in order[number % 3 :] + order[: number % 3]:
            dist.barrier()
            begin, worked = time.perf_counter(), time.process_time()
            for _ in range(options.iterations):
                contenders[kind]()
            dist.barrier()
            if number:  # the first round settles DDP's buckets
                times[kind].append((time.perf_counter() - begin) * 1e3 / options.iterations)
                work[kind].append((time.process_time() - worked) * 1e3 / options.iterations)
    if dist.get_rank() == 0:
        rows = {}
        for kind, found in times.items():
            ratio = statistics.median(a / b for a, b in zip(found, times["default"]))
            cpu = statistics.median(work[kind])
            rows[kind] = {
                "iteration_ms": statistics.median(found),
                "ratio": ratio,
                "cpu_ms": cpu,
            }
            print(
                f"{kind:10} {rows[kind]['iteration_ms']:8.2f} ms  {ratio:.3f} x default  "
                f"(rank 0 worked {cpu:.2f} ms)",
                file=sys.stderr,
            )
        document = {"schema": "prunex-hook", "version": 1, "torch": torch.__version__}
        document.update(world=dist.get_world_size(), nodes=comm.num_nodes, results=rows)
        if options.json == "-":
            print(json.dumps(document))
        elif options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(document, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Trains a residual network on scikit-learn's digits in several ways, one after the other.

Under plain torchrun, one per node; compare_training.py does that on an emulated cluster:

    torchrun --nnodes 2 --node_rank $NODE_RANK --nproc_per_node 2 --master_addr $MASTER_ADDR \\
        --master_port $MASTER_PORT train_cnn.py --methods dense,prunex --seconds 30 --json out.json

Each method starts from the same parameters and reads the same images. With --seconds each has the
same time, tests not counted; with --iterations the same number of minibatches. The JSON document is
described in docs/pytorch.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from datetime import timedelta
from typing import Any, Dict, List

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import prunex  # noqa: F401
except ImportError:  # a checkout that is not installed
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import train_methods  # noqa: E402
from train_measure import Meter, digest, phases_of, same_everywhere  # noqa: E402
from train_model import Digits, DigitsNet  # noqa: E402

DEFAULT = "dense,dense-prunex,topk,topk-0.01,powersgd-1,powersgd-4,powersgd-16,prunex"
GO, TEST, STOP = 0, 1, 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--methods", default=DEFAULT, help="comma-separated; prunex-KEEP, topk-D, powersgd-R")
    add("--seconds", type=float, help="of training per method; dense-prunex a quarter of it")
    add("--iterations", type=int, help="minibatches per method instead")
    add("--seed", type=int, default=0)
    add("--keep", type=float, default=0.4, help="share of inner channels that prunex keeps")
    add("--topk-density", type=float, help="of topk; default: prunex's density of elements")
    add("--batch", type=int, default=32, help="images per rank and step")
    add("--lr", type=float, default=0.05)
    add("--weight-decay", type=float, default=1e-4)
    add("--local-steps", type=int, default=4, help="E: minibatches between H-SADMM's rounds")
    add("--admm-share", type=float, default=0.5, help="of the training; the rest is fine-tuning")
    add("--width", type=float, default=1.0, help="of the network's inner channels")
    add("--tests", type=int, default=8, help="of the accuracy during the training")
    add("--timeout", type=float, default=120.0, help="seconds that a rank waits for another")
    add("--json", default="-", help="where rank 0 writes the results; -: stdout")
    options = parser.parse_args()
    options.methods = [name for name in options.methods.split(",") if name]
    for name in options.methods:
        if not train_methods.known(name):
            parser.error(
                f"--methods: {name!r} is none of {DEFAULT}, prunex-KEEP, topk-D, powersgd-R"
            )
    if (options.seconds is None) == (options.iterations is None):
        parser.error("give --seconds or --iterations")
    if not 0 < options.admm_share < 1:
        parser.error(f"--admm-share {options.admm_share} is not between 0 and 1")
    options.topk_density = options.topk_density or options.keep
    return options


class Plan:
    """When to test and when to stop: rank 0 decides, by its clock, and tells the others."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        # Only its time per iteration is wanted.
        part = 0.25 if name == "dense-prunex" else 1.0
        self.seconds = options.seconds * part if options.seconds else None
        self.iterations = max(4, round(options.iterations * part)) if options.iterations else None
        self.tests, self.tested = max(1, options.tests), 0

    def fraction(self, iterations: int, elapsed: float) -> float:
        if self.iterations is not None:
            return iterations / self.iterations
        return elapsed / self.seconds

    def decide(self, iterations: int, elapsed: float) -> Any:
        """(GO, TEST or STOP, share of the training that is over), the same on all ranks."""
        fraction = self.fraction(iterations, elapsed)
        code = GO
        if fraction >= 1.0:
            code = STOP
        elif fraction * self.tests >= self.tested + 1:
            code = TEST
        message = torch.tensor([float(code), fraction], dtype=torch.float64)
        dist.broadcast(message, 0)
        code = int(message[0])
        if code == TEST:
            self.tested = int(float(message[1]) * self.tests)
        return code, float(message[1])


def accuracy(method: train_methods.Method, data: Digits) -> float:
    """Each rank tests its own model on its part of the test set. Collective."""
    counts = torch.tensor(data.correct(method.model), dtype=torch.float64)
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


class Bar:
    """A progress bar of rank 0 on stderr where that is a terminal, else one line per method."""

    def __init__(self, name: str) -> None:
        self.bar = None
        self.shown = dist.get_rank() == 0
        if self.shown and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            form = "{desc:14} {percentage:3.0f}% |{bar:24}| {elapsed} {postfix}"
            # Some terminals tell no size; tqdm would draw nothing there.
            size = shutil.get_terminal_size((100, 24))
            self.bar = tqdm(
                total=1.0,
                desc=name,
                bar_format=form,
                file=sys.stderr,
                ncols=size.columns,
                nrows=size.lines,
            )

    def update(self, fraction: float, text: str) -> None:
        if self.bar is not None:
            self.bar.n = min(fraction, 1.0)
            self.bar.set_postfix_str(text, refresh=True)

    def close(self, line: str) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.shown:
            print(line, file=sys.stderr, flush=True)


def train(name: str, options: argparse.Namespace) -> Dict[str, Any]:
    """One method from start to end."""
    torch.manual_seed(options.seed)
    data = Digits(dist.get_rank(), dist.get_world_size(), options.batch, options.seed)
    method = train_methods.make(name, DigitsNet(options.width), options)
    plan, meter, bar = Plan(name, options), Meter(method), Bar(name)
    batches, points, iterations, fraction, loss = data.batches(), [], 0, 0.0, 0.0
    dist.barrier()
    while True:
        images, labels = next(batches)
        phase = method.phase
        loss = meter.measured(lambda: method.step(images, labels), phase)
        iterations += 1
        if not method.ready():
            continue
        code, fraction = plan.decide(iterations, meter.elapsed)
        if code != GO:
            points.append(
                {
                    "time_s": round(meter.elapsed, 4),
                    "iteration": iterations,
                    "bytes_sent": meter.sent,
                    "phase": phase,
                    "loss": loss,
                    "accuracy": accuracy(method, data),
                }
            )
        shown = f", accuracy {100 * points[-1]['accuracy']:.1f} %" if points else ""
        bar.update(fraction, f"iteration {iterations}, {phase}, loss {loss:.3f}{shown}")
        if code == STOP:
            break
        meter.measured(lambda: method.advance(fraction), "")
    columns = meter.gathered()
    run = {
        "method": name,
        "seed": options.seed,
        "parameters": sum(p.numel() for p in method.model.parameters()),
        "iterations": iterations,
        "time_s": meter.elapsed,
        "accuracy": points[-1]["accuracy"],
        "points": points,
        "phases": phases_of(columns),
        "columns": columns,
        "same_parameters": same_everywhere(digest(method.model.parameters())),
        "same_masks": same_everywhere(digest(method.masks())),
        **method.results(),
    }
    method.close()
    bar.close(
        f"{name}: {iterations} iterations in {meter.elapsed:.1f} s, accuracy "
        f"{100 * run['accuracy']:.1f} %"
    )
    return run


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", os.environ.get("PRUNEX_SOCKET_IFNAME", ""))
    if not os.environ["GLOO_SOCKET_IFNAME"]:
        del os.environ["GLOO_SOCKET_IFNAME"]
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
    begin = time.time()
    runs: List[Dict[str, Any]] = []
    for name in options.methods:
        runs.append(train(name, options))
    nodes: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(nodes, os.environ.get("PRUNEX_NODE_ID") or os.uname().nodename)
    if dist.get_rank() == 0:
        document = {
            "schema": "prunex-training",
            "version": 1,
            "world": dist.get_world_size(),
            "nodes": len(set(nodes)),
            "network": os.environ.get("NETLAB_MODE", "none"),
            "rate": os.environ.get("NETLAB_RATE", "none"),
            "torch": torch.__version__,
            "seconds": options.seconds,
            "iterations": options.iterations,
            "batch_per_rank": options.batch,
            "local_steps": options.local_steps,
            "wall_s": time.time() - begin,
            "runs": runs,
        }
        text = json.dumps(document)
        if options.json == "-":
            print(text)
        else:
            with open(options.json, "w", encoding="utf-8") as file:
                file.write(text + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

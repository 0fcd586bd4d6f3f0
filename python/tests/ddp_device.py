#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with the hook and with the backend, two ranks on one device, two nodes.

  ddp_device.py [--device cuda|cpu] [--only hook|backend]

Gradients are compared with those of both halves of the batch on one rank. 77: torch has no such
device. On a GPU scripts/gpu-check.sh runs it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
import traceback
from datetime import timedelta

ROUNDS, RANKS, SECONDS = 4, 2, 80


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def model_of(torch, device):
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3), torch.nn.Flatten(),
        torch.nn.Linear(8 * 10 * 10, 10),
    ).to(device)  # fmt: skip


def batch(torch, rank, round_):
    generator = torch.Generator().manual_seed(100 * round_ + rank)
    return torch.randn(4, 3, 12, 12, generator=generator)


def wanted(torch, device, round_):
    """Mean gradients over ranks, zero in dropped filters."""
    model = model_of(torch, device)
    for rank in range(RANKS):
        (model(batch(torch, rank, round_).to(device)).square().mean() / RANKS).backward()
    model[0].weight.grad[::2] = 0
    return [p.grad for p in model.parameters()]


def train(rank, way, device_name, ports):
    os.environ.update(
        NCCL_HOSTID=f"ddp-device-{rank}", PRUNEX_NODE_ID=f"ddp-device-{rank}", NCCL_SOCKET_IFNAME="lo",
        PRUNEX_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo", NCCL_MAX_CTAS="2", NCCL_IB_DISABLE="1",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ports[0]), OMP_NUM_THREADS="1",
    )  # fmt: skip
    import torch
    import torch.distributed as dist

    from prunex import MaskSpec
    from prunex.torch import MaskedParameters, PrunexState, prunex_hook
    from prunex.torch.backend import use_masks

    device = torch.device(device_name)
    dist.init_process_group(
        "gloo" if way == "hook" else "prunex", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    model = model_of(torch, device)
    masks = MaskedParameters(model)
    masks.set("0.weight", MaskSpec.dims({0: [i % 2 == 1 for i in range(16)]}, "project"))
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=way == "backend")
    state = None
    if way == "hook":
        state = PrunexState(masks=masks)
        ddp.register_comm_hook(state, prunex_hook)
    else:
        use_masks(masks)
    for round_ in range(ROUNDS):
        ddp.zero_grad(set_to_none=False)
        ddp(batch(torch, rank, round_).to(device)).square().mean().backward()
        # The backend's masks are found from the second backward on: gradients are in the buckets then.
        if way == "backend" and round_ == 0:
            continue
        for (name, parameter), expected in zip(model.named_parameters(), wanted(torch, device, round_)):
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    group = dist.distributed_c10d._get_default_group()
    comm = state.comm if state is not None else group.comm
    path = state._device if state is not None else group._cuda.path
    if device.type == "cuda":
        torch.cuda.synchronize()
        assert path._has, "the device path was not taken"
    assert comm.stats().calls_compact > 0, comm.stats()
    dist.destroy_process_group()


def rank_main(rank, way, device, ports):
    try:
        train(rank, way, device, ports)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # nothing of a driver's may hold the end up


def run(way, device):
    context = multiprocessing.get_context("spawn")
    ports = [free_port()]
    ranks = [context.Process(target=rank_main, args=(r, way, device, ports), daemon=True) for r in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(SECONDS)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    print(f"{way} on {device}: {'all is well' if codes == [0] * RANKS else f'exit status {codes}'}")
    return codes == [0] * RANKS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--only", choices=["hook", "backend"])
    options = parser.parse_args()
    device = options.device
    try:
        import numpy  # noqa: F401
        import torch
    except ImportError as missing:
        print(missing)
        return 77
    if device == "cuda" and not torch.cuda.is_available():
        print("this torch has no CUDA, or no GPU")
        return 77
    ways = [options.only] if options.only else ["hook", "backend"]
    return 0 if all([run(way, device) for way in ways]) else 1


if __name__ == "__main__":
    sys.exit(main())

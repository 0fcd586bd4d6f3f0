# SPDX-License-Identifier: Apache-2.0
"""PruneX in an ordinary DistributedDataParallel program: train, prune, fine-tune with fewer bytes.

    torchrun --nproc_per_node 4 ddp_hook.py

runs it on one node, where nothing crosses a network; on several nodes start torchrun on each as
usual, or emulate them on one machine with scripts/netlab.sh. The three lines are marked.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import prune

from prunex.torch import MaskedParameters, PrunexState, prunex_hook  # 1


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 256, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 256, 4),
    )


def minibatch(generator: torch.Generator, count: int = 32):
    """Images of noise; the class is the brightest quarter."""
    images = torch.randn(count, 1, 8, 8, generator=generator)
    quarters = F.avg_pool2d(images, 4).flatten(1)
    return images + F.interpolate(quarters.view(-1, 1, 2, 2), scale_factor=4.0), quarters.argmax(1)


def train(ddp: nn.Module, steps: int, generator: torch.Generator) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(ddp.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    for _ in range(steps):
        images, labels = minibatch(generator)
        optimizer.zero_grad()
        F.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
    return optimizer


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    images, labels = minibatch(torch.Generator().manual_seed(1), 500)
    return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--checkpoint", help="where rank 0 saves model and masks")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(100 + rank)

    model = network()
    ddp = DDP(model)
    state = PrunexState()  # no masks: whole buckets, hierarchically
    ddp.register_comm_hook(state, prunex_hook)
    train(ddp, options.steps, generator)
    before, dense = state.stats(), accuracy(model)

    # Every rank has the same weights, hence finds the same filters. Pruning replaces parameters
    # (weight becomes weight_orig and a mask), so DDP is made anew.
    for layer in (model[0], model[3]):
        prune.ln_structured(layer, "weight", amount=0.75, n=2, dim=0)
    ddp = DDP(model)
    state = PrunexState(state.comm, MaskedParameters(model).from_prune(model))  # 2
    ddp.register_comm_hook(state, prunex_hook)  # 3
    train(ddp, options.steps, generator)

    after = state.stats() - before
    if rank == 0:
        # A state pickles with its masks. After loading: state.attach(model), then register it.
        if options.checkpoint:
            torch.save({"model": model.state_dict(), "prunex": state}, options.checkpoint)
        print(f"accuracy: {dense:.3f} dense, {accuracy(model):.3f} with a quarter of the filters")
        print(
            f"calls: {after.calls_compact} compact, {after.calls_dense} dense, "
            f"{after.violations} with a dropped gradient that was not zero"
        )
        if before.bytes_wire_sent:
            ratio = after.bytes_wire_sent / before.bytes_wire_sent
            print(f"bytes between nodes: {ratio:.3f} of those before pruning")
    dist.barrier()
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

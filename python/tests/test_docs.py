# SPDX-License-Identifier: Apache-2.0
"""The code in docs/pytorch.md and README.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import prunex  # noqa: E402
from worlds import init_gloo, run_ranks  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent


def block(file: str, holds: str) -> str:
    """The one block of Python in a page that holds a text."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = [code for code in re.findall(r"```python\n(.*?)```", text, re.S) if holds in code]
    assert len(found) == 1, f"{file}: {len(found)} blocks hold {holds!r}"
    return found[0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        self.fc = nn.Linear(12, 3)

    def forward(self, x):
        return self.fc(F.relu(self.conv2(F.relu(self.conv1(x)))).mean((2, 3)))


def names(rank: int, steps: int = 4) -> dict:
    """What the page takes for granted: a model, its data, and what PyTorch gives."""
    model = Net()
    generator = torch.Generator().manual_seed(rank)
    loader = [
        (torch.randn(6, 1, 5, 5, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2]))
        for _ in range(steps)
    ]
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        "loader": loader,
        "loss": F.cross_entropy,
        "example_input": loader[0][0][:1],
        "DDP": DDP,
        "dist": dist,
        "prunex": prunex,
    }


def hook(rank, size, file):
    init_gloo(rank, size).close()
    given = names(rank)
    prune.ln_structured(given["model"].conv2, "weight", amount=0.5, n=2, dim=0)
    given["ddp"] = DDP(given["model"])
    exec(block(file, "register_comm_hook(state, prunex_hook)"), given)
    for x, y in given["loader"]:
        F.cross_entropy(given["ddp"](x), y).backward()
    assert given["state"].stats().calls_compact >= 4
    assert given["state"].stats().violations == 0


@pytest.mark.parametrize("file", ["docs/pytorch.md", "README.md"])
def test_hook(file):
    run_ranks(hook, file, nodes=(0, 1))


def admm(rank, size):
    init_gloo(rank, size).close()
    given = names(rank, 48)
    from prunex.torch import MaskedParameters, PrunexState, prunex_hook

    given.update(MaskedParameters=MaskedParameters, PrunexState=PrunexState)
    given.update(prunex_hook=prunex_hook)
    code = block("docs/pytorch.md", "admm.finish(exchange=False)")
    exec(code.replace("local_steps=8", "local_steps=3"), given)
    assert given["report"] is not None and given["masks"].density() < 0.75
    assert not given["masks"].revived()
    return torch.cat([p.detach().flatten() for p in given["model"].parameters()]).tolist()


def test_hsadmm():
    out = run_ranks(admm, nodes=(0, 1))
    assert out[0] == out[1]


def test_masks():
    given = names(0)
    model = given["model"]
    prune.ln_structured(model.conv2, "weight", amount=0.5, n=2, dim=0)
    from prunex.torch import MaskedParameters

    given.update(
        MaskedParameters=MaskedParameters,
        groups=[[("fc", "in", [2, 5])]],
        keep_filters=np.arange(8) % 2 == 0,
        keep_channels=[True],
    )
    code = block("docs/pytorch.md", "from_groups")
    if not hasattr(torch.optim.Optimizer, "register_step_post_hook"):
        code = re.sub(r"masks\.hold\(.*", "", code)
    exec(code, given)
    assert given["masks"].masked_names() == ["conv2.weight_orig", "fc.weight", "conv1.weight"]
    assert not given["masks"].revived()


def backend(rank, size):
    given = names(rank)
    exec(block("docs/pytorch.md", 'init_process_group("prunex")'), given)
    assert dist.get_backend() == "prunex" and dist.get_world_size() == size
    ddp = DDP(given["model"], gradient_as_bucket_view=True)
    for x, y in given["loader"]:
        F.cross_entropy(ddp(x), y).backward()
    dist.destroy_process_group()


def test_backend():
    run_ranks(backend, nodes=(0, 1))

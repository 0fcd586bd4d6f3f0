# SPDX-License-Identifier: Apache-2.0
"""One masked matrix and a vector behind it, as a bucket in the stand-ins' device memory."""

from __future__ import annotations

import threading
import time

import prunex.torch.device as device_module
import torch

from prunex import MaskSpec, Unsupported
from prunex.torch import MaskedParameters
from standins import on_device

NODES = (0, 0, 1, 1)
ROWS, COLUMNS = 24, 50
KEEP = [row % 3 == 0 for row in range(ROWS)]


def threads_without_libraries(monkeypatch):
    """A set: the threads (ranks) in it find neither CUDA nor NCCL."""
    lacking = set()
    real = device_module.optional

    def optional(name):
        if name == "prunex_device_ready" and threading.get_ident() in lacking:
            raise Unsupported("no CUDA driver: libcuda.so.1 cannot be opened")
        return real(name)

    monkeypatch.setattr(device_module, "optional", optional)
    return lacking


class Bucket:
    """What DDP hands to a hook: a masked matrix and a dense vector behind it."""

    def __init__(self, model, values):
        self._buffer = on_device(values)
        self._parameters = [model.weight, model.bias]

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters

    def gradients(self):
        weight, bias = self._parameters
        cut = weight.numel()
        return [self._buffer[:cut].view(weight.shape), self._buffer[cut:]]

    def is_last(self):
        return True


def model():
    return torch.nn.Linear(COLUMNS, ROWS)


def masks_of(module, contract):
    masks = MaskedParameters(module)
    masks.set("weight", MaskSpec.dims({0: KEEP}, contract))
    return masks


def gradient(rank, zeros=True):
    """Whole numbers; zero in dropped rows, or not."""
    weight = (torch.arange(ROWS * COLUMNS, dtype=torch.float32) % 17 + rank + 1).view(ROWS, COLUMNS)
    if zeros:
        weight[~torch.tensor(KEEP)] = 0
    return torch.cat([weight.reshape(-1), torch.arange(float(ROWS)) * (rank + 1)])


def mean(size, zeros=True, project=False):
    out = sum(gradient(rank, zeros) for rank in range(size)) / size
    if project:
        out[: ROWS * COLUMNS].view(ROWS, COLUMNS)[~torch.tensor(KEEP)] = 0
    return out


def settled(comm, calls):
    """Counters with so many calls in them: their headers are compared behind the caller's back."""
    end = time.monotonic() + 30
    while comm.stats().calls < calls and time.monotonic() < end:
        time.sleep(0.01)
    assert comm.stats().calls == calls, comm.stats()
    return comm.stats()

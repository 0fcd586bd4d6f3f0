# SPDX-License-Identifier: Apache-2.0
"""What a mask keeps, in the tensor's logical shape."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class MaskSpec:
    """Kept places of one tensor. Make one with dims, blocks, nm or elements."""

    kind: str
    keep: dict | None = None
    block: tuple | None = None
    cells: np.ndarray | None = None
    nm_: tuple | None = None
    contract: str = "lossless"
    epoch: int = 0

    @classmethod
    def dims(cls, keep, contract="lossless", epoch=0):
        keep = {int(d): np.asarray(k, bool) for d, k in keep.items()}
        return cls("dims", keep=keep, contract=contract, epoch=epoch)

    @classmethod
    def blocks(cls, block, cells, contract="lossless", epoch=0):
        cells = np.asarray(cells, bool)
        return cls("blocks", block=tuple(block), cells=cells, contract=contract, epoch=epoch)

    @classmethod
    def nm(cls, n, m, dim, cells, contract="lossless", epoch=0):
        cells = np.asarray(cells, bool)
        return cls("nm", nm_=(n, m, dim), cells=cells, contract=contract, epoch=epoch)

    @classmethod
    def elements(cls, array, contract="lossless", epoch=0):
        return cls("elements", cells=np.asarray(array, bool), contract=contract, epoch=epoch)

    def to_array(self, shape):
        shape = tuple(shape)
        if self.kind == "dims":
            out = np.ones(shape, bool)
            for d, k in self.keep.items():
                out &= k.reshape([-1 if i == d else 1 for i in range(len(shape))])
            return out
        if self.kind == "blocks":
            edge = [b or s for b, s in zip(self.block, shape)]
            grid = [-(-s // b) for s, b in zip(shape, edge)]
            cells = self.cells.reshape(grid)
            return cells[np.ix_(*[np.arange(s) // b for s, b in zip(shape, edge)])]
        return self.cells.reshape(shape)

    def kept(self, shape):
        return int(self.to_array(shape).sum())

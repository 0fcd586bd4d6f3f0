# SPDX-License-Identifier: Apache-2.0
"""Atoms: one number per output channel of every producer, joined where channels must agree.

A tensor in the graph carries a *label tensor*: the atom of every element, with size 1 along the
dimensions it does not vary in. Atom 0 (FIXED) stands for channels that may not be pruned; joining
an atom with it pins that atom.
"""

from __future__ import annotations

import numpy as np
import torch

FIXED = 0


class Atoms:
    """Union-find over atoms; the smallest atom of a class is its root, so FIXED stays FIXED."""

    def __init__(self) -> None:
        self._parent = np.zeros(1, np.int64)
        self.owner: list[str] = [""]

    def new(self, count: int, owner: str) -> np.ndarray:
        """`count` fresh atoms made by the layer `owner`."""
        first = len(self._parent)
        atoms = np.arange(first, first + count, dtype=np.int64)
        self._parent = np.concatenate([self._parent, atoms])
        self.owner.extend([owner] * count)
        return atoms

    def find(self, atoms) -> np.ndarray:
        """Roots of `atoms`, same shape."""
        roots = self._parent[np.asarray(atoms, np.int64)]
        while True:
            up = self._parent[roots]
            if np.array_equal(up, roots):
                return roots
            roots = up

    def join(self, a, b) -> None:
        """Joins a[i] with b[i] for all i."""
        pairs = np.stack([np.ravel(self.find(a)), np.ravel(self.find(b))], 1)
        for x, y in np.unique(pairs, axis=0):
            x, y = sorted((int(self.find(x)), int(self.find(y))))
            self._parent[y] = x

    def pin(self, atoms) -> None:
        roots = np.unique(self.find(atoms))
        self.join(roots, np.zeros_like(roots))

    def is_fixed(self, label: torch.Tensor) -> bool:
        """Whether every element may not be pruned (which says nothing about shapes)."""
        return not self.find(label.numpy()).any()


def fixed(dims: int) -> torch.Tensor:
    """Label of a tensor of `dims` dimensions that may not be pruned at all."""
    return torch.zeros((1,) * dims, dtype=torch.int64)


def along(atoms: np.ndarray, dim: int, dims: int) -> torch.Tensor:
    """Label that varies along dimension `dim` only."""
    shape = [1] * dims
    shape[dim] = len(atoms)
    return torch.from_numpy(np.ascontiguousarray(atoms)).reshape(shape)


def squeeze_label(label: torch.Tensor) -> torch.Tensor:
    """The same label with size 1 wherever it does not vary."""
    for d in range(label.dim()):
        if label.shape[d] > 1:
            first = label.narrow(d, 0, 1)
            if bool((label == first).all()):
                label = first
    return label.clone()


def varies(label: torch.Tensor) -> list[int]:
    """Dimensions a label varies in."""
    return [d for d, size in enumerate(label.shape) if size > 1]

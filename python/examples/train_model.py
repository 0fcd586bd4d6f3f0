# SPDX-License-Identifier: Apache-2.0
"""The network and the images of train_cnn.py: scikit-learn's digits, 1797 images of 8 x 8 pixels."""

from __future__ import annotations

from typing import Iterator, Tuple

import torch
import torch.nn.functional as F
from torch import nn

Batch = Tuple[torch.Tensor, torch.Tensor]
TEST_IMAGES = 540


# Of BatchNorm's running statistics: a slow link leaves time for few iterations.
MOMENTUM = 0.2


class Block(nn.Module):
    """A residual block whose inner width is a free choice: those channels are what is pruned."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner, momentum=MOMENTUM)
        self.conv2 = nn.Conv2d(inner, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs, momentum=MOMENTUM)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.BatchNorm2d(outputs, momentum=MOMENTUM),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.down(x))


class DigitsNet(nn.Module):
    """2.1 million parameters at width 1, most of them where the maps are 2 x 2: many bytes for
    little arithmetic. width scales all inner channels."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        inner = max(16, int(512 * width))
        self.stem = nn.Conv2d(1, 32, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(32, momentum=MOMENTUM)
        self.block1 = Block(32, max(8, int(64 * width)), 64)
        self.block2 = Block(64, inner, 128)
        self.block3 = Block(128, inner, 128)
        self.fc = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn(self.stem(x))), 2)
        x = F.max_pool2d(self.block1(x), 2)
        x = self.block3(self.block2(x))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Digits:
    """One rank's share: minibatches of the training set, and a part of the test set.

    The split into training and test images is the same for every seed; the order of the training
    images depends on the seed, and each pass over them is cut among the ranks.
    """

    def __init__(self, rank: int, size: int, batch: int, seed: int) -> None:
        from sklearn.datasets import load_digits

        found = load_digits()
        images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16.0
        images = (images - images.mean()) / images.std()
        labels = torch.tensor(found.target, dtype=torch.int64)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2026))
        test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
        self.images, self.labels = images[train], labels[train]
        self.test = images[test[rank::size]], labels[test[rank::size]]
        self.example = images[:1]
        self.rank, self.size, self.batch, self.seed = rank, size, batch, seed

    def batches(self) -> Iterator[Batch]:
        """Minibatches of this rank without end; all ranks have as many per pass."""
        for epoch in range(10**9):
            generator = torch.Generator().manual_seed(self.seed * 100003 + epoch)
            order = torch.randperm(len(self.labels), generator=generator)
            per_step = self.batch * self.size
            for begin in range(0, len(order) - per_step + 1, per_step):
                pick = order[begin + self.rank : begin + per_step : self.size]
                yield self.images[pick], self.labels[pick]

    @torch.no_grad()
    def correct(self, model: nn.Module) -> Tuple[int, int]:
        """(right answers, images) of this rank's part of the test set."""
        was = model.training
        model.eval()
        images, labels = self.test
        right = int((model(images).argmax(1) == labels).sum())
        model.train(was)
        return right, len(labels)

# SPDX-License-Identifier: Apache-2.0
"""Shrinking: the small model computes what the masked one does."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hsadmm_models import Attention, Depthwise, Flat, Grouped, ResNet, UNet
from torch import nn

from prunex.torch.groups import find_groups, manual_family
from prunex.torch.projection import all_scores, budget, choose, split
from prunex.torch.shrink import ShrinkError, recalibrate, shrink

IMAGE = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def lively(model, seed=0):
    """Random weights and statistics everywhere, so that nothing is right by being 0 or 1."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, t in list(model.named_parameters()) + list(model.named_buffers()):
            if t.dtype.is_floating_point:
                t.copy_(torch.rand(t.shape, generator=g) - (0 if "var" in name else 0.5))
    return model


def chosen(model, families, density=0.5):
    scores = all_scores(families, dict(model.named_parameters()))
    return split(families, choose(scores, budget(families, density)))


CASES = {
    "resnet": (ResNet, IMAGE, {}),
    "resnet_tied": (ResNet, IMAGE, {"residual": "tie"}),
    "flatten": (Flat, IMAGE, {}),
    "depthwise": (Depthwise, torch.randn(2, 4, 5, 5), {}),
    "unet": (UNet, IMAGE, {}),
    "grouped": (Grouped, IMAGE, {}),
    "mlp": (Attention, torch.randn(2, 5, 16), {"heads": False}),
    "torch_transformer": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), 2),
        torch.randn(2, 5, 16),
        {"heads": False},
    ),
    "channel_only": (ResNet, IMAGE, {"structure": "channel"}),
    "filter_only": (ResNet, IMAGE, {"structure": "filter"}),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_masked_model(case):
    build, x, options = CASES[case]
    model = lively(build())
    families = find_groups(model, x, **options)
    assert families
    result = shrink(model, families, chosen(model, families), x)
    assert result.difference is not None  # shrink() itself holds it against its bound
    assert result.parameters_after < 0.8 * result.parameters_before or case.startswith("mlp")
    # The small model trains: shapes agree in backward too.
    out = result.model(x)
    out.sum().backward()
    assert all(p.grad is not None for p in result.model.parameters())


def test_sizes_of_modules_follow():
    model = lively(Depthwise())
    x = torch.randn(2, 4, 5, 5)
    families = find_groups(model, x)
    small = shrink(model, families, chosen(model, families), x).model
    assert (small.deep.groups, small.deep.in_channels, small.deep.out_channels) == (6, 6, 6)
    assert small.bn1.num_features == 6 and small.expand.out_channels == 6
    assert small.project.in_channels == 6 and small.squeeze.out_channels == 2


def test_model_itself_is_unchanged():
    model = lively(ResNet())
    before = copy.deepcopy(model.state_dict())
    families = find_groups(model, IMAGE)
    shrink(model, families, chosen(model, families), IMAGE)
    for name, t in model.state_dict().items():
        assert torch.equal(t, before[name])


def test_heads_stay_masked_and_are_named():
    model = lively(Attention())
    x = torch.randn(2, 5, 16)
    families = find_groups(model, x)
    result = shrink(model, families, chosen(model, families), x)
    assert result.left_masked == ("q",)
    assert result.model.q.out_features == 16 and result.model.up.out_features == 12


def test_a_channel_that_is_not_zero_is_found():
    class Sigmoid(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.b(torch.sigmoid(self.a(x)))  # 0.5 where a is 0

    model, x = lively(Sigmoid()), torch.randn(3, 4)
    families = find_groups(model, x, structure="filter")
    with pytest.raises(ShrinkError, match="structure='both'"):
        shrink(model, families, chosen(model, families), x)
    families = find_groups(model, x, structure="both")
    assert shrink(model, families, chosen(model, families), x).difference < 1e-5


def test_size_written_into_forward_is_reported():
    class Fixed(Flat):
        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.relu(self.conv2(x)).view(-1, 128)
            return self.fc2(torch.relu(self.fc1(x)))

    model = lively(Fixed())
    families = find_groups(model, IMAGE)
    with pytest.raises(ShrinkError, match="does not run"):
        shrink(model, families, chosen(model, families), IMAGE)


def test_empty_family_is_refused():
    model = lively(Flat())
    families = find_groups(model, IMAGE)
    masks = {f.name: np.zeros(f.groups, bool) for f in families}
    with pytest.raises(ShrinkError, match="keeps no group"):
        shrink(model, families, masks)


def test_manual_family_with_flatten():
    model = lively(Flat())
    family = manual_family(
        model, "hand", [("conv2.weight", 0), ("conv2.bias", 0), ("fc1.weight", 1)]
    )
    assert family.groups == 8 and family.members[2].index.tolist() == [i // 16 for i in range(128)]
    keep = np.array([1, 0, 1, 1, 0, 0, 1, 0], bool)
    result = shrink(model, [family], {"hand": keep}, IMAGE)
    assert result.model.fc1.in_features == 64


def test_recalibrate_gives_the_mean_over_batches():
    model = lively(ResNet())
    batches = [torch.randn(16, 1, 8, 8) for _ in range(4)]
    weight = model.stem.weight.detach().clone()
    assert recalibrate(model, batches) == 4
    means = torch.stack([model.stem(b).mean((0, 2, 3)) for b in batches]).mean(0)
    assert torch.allclose(model.bn.running_mean, means, atol=1e-6)
    assert torch.equal(model.stem.weight, weight) and model.bn.momentum == 0.1 and model.training

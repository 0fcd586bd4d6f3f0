# SPDX-License-Identifier: Apache-2.0
"""Pruning groups: every kind, residual safety, and models that cannot be traced."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hsadmm_models import Attention, Branchy, Depthwise, Flat, Grouped, ResNet, UNet
from torch import nn

from prunex.torch.groups import Family, find_groups, layer_families, manual_family
from prunex.torch.groups_trace import UntraceableError

IMAGE = torch.randn(2, 1, 8, 8)


def members(family, *, masked_only=False):
    return {(m.name, m.dim) for m in family.members if m.masked or not masked_only}


def by_name(families):
    return {f.name: f for f in families}


def test_resnet_prunes_inner_convolutions_only():
    families = by_name(find_groups(ResNet(), IMAGE))
    assert set(families) == {"block1.conv1", "block2.conv1"}
    f = families["block2.conv1"]
    assert members(f) == {
        ("block2.conv1.weight", 0),
        ("block2.bn1.weight", 0),
        ("block2.bn1.bias", 0),
        ("block2.bn1.running_mean", 0),
        ("block2.bn1.running_var", 0),
        ("block2.conv2.weight", 1),
    }
    # One filter: 8*9 own weights, scale and shift, 16*9 of the consumer.
    assert f.groups == 16 and f.sizes.tolist() == [8 * 9 + 2 + 16 * 9] * 16


def test_resnet_tied_additions_share_one_mask():
    families = by_name(find_groups(ResNet(), IMAGE, residual="tie"))
    stem = members(families["stem"])
    assert {("stem.weight", 0), ("block1.conv2.weight", 0), ("block2.down.0.weight", 1)} <= stem
    last = members(families["block2.conv2"])
    assert {("block2.conv2.weight", 0), ("block2.down.0.weight", 0), ("fc.weight", 1)} <= last


@pytest.mark.parametrize("residual", ["skip", "tie"])
@pytest.mark.parametrize("build", [ResNet, Flat, Depthwise, UNet, Grouped])
def test_inputs_and_outputs_are_never_pruned(build, residual):
    model = build()
    x = torch.randn(2, 4, 5, 5) if build is Depthwise else IMAGE
    families = find_groups(model, x, residual=residual)
    last = {"ResNet": "fc", "Flat": "fc2", "UNet": "head", "Grouped": "b"}.get(build.__name__)
    for f in families:
        assert (f"{last}.weight", 0) not in members(f) and (f"{last}.bias", 0) not in members(f)
        for m in f.members:
            if m.dim == 1 and model.get_parameter(m.name).shape[1] == 1:
                raise AssertionError("the image's own channel was pruned")


def test_flatten_repeats_a_channel():
    families = by_name(find_groups(Flat(), IMAGE))
    fc = {m.name: m for m in families["conv2"].members}["fc1.weight"]
    assert fc.index.tolist() == [i // 16 for i in range(128)]
    assert families["fc1"].groups == 12  # Linear rows with the next layer's columns


def test_depthwise_is_its_own_consumer():
    families = by_name(find_groups(Depthwise(), torch.randn(2, 4, 5, 5)))
    f = families["expand"]
    assert {
        ("expand.weight", 0),
        ("deep.weight", 0),
        ("bn2.bias", 0),
        ("excite.weight", 0),
        ("squeeze.weight", 1),
        ("project.weight", 1),
    } <= members(f)
    assert "project" not in families  # meets the residual input


def test_conv_transpose_filters_are_dimension_1():
    families = by_name(find_groups(UNet(), IMAGE))
    up = {(m.name, m.dim): m for m in families["up"].members}
    assert ("up.weight", 1) in up and ("up.weight", 0) in members(families["enc2"])
    # cat([up, enc1]): five channels of `up`, then six of enc1, in one convolution.
    assert up[("dec.weight", 1)].index.tolist() == [0, 1, 2, 3, 4] + [-1] * 6
    enc1 = {(m.name, m.dim): m for m in families["enc1"].members}
    assert enc1[("dec.weight", 1)].index.tolist() == [-1] * 5 + [0, 1, 2, 3, 4, 5]


def test_grouped_convolution_stays_balanced():
    families = by_name(find_groups(Grouped(), IMAGE))
    a = {(m.name, m.dim): m for m in families["a"].members}
    assert a[("a.weight", 0)].index.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert a[("g.weight", 1)].index.tolist() == [0, 1, 2, 3]
    assert families["g"].groups == 6


SDPA = pytest.mark.parametrize(
    "sdpa",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif(
                not hasattr(F, "scaled_dot_product_attention"),
                reason="this torch has no scaled_dot_product_attention",
            ),
        ),
    ],
)


@pytest.mark.parametrize("fused", [False, True])
@SDPA
def test_attention_out_of_linear_layers(fused, sdpa):
    model = Attention(fused=fused, sdpa=sdpa)
    families = find_groups(model, torch.randn(2, 5, 16))
    heads = next(f for f in families if f.kind == "heads")
    wanted = [h for h in range(4) for _ in range(4)]
    got = {(m.name, m.dim): m.index.tolist() for m in heads.members}
    assert heads.groups == 4 and got[("out.weight", 1)] == wanted
    if fused:
        assert got[("qkv.weight", 0)] == wanted * 3
    else:
        assert all(got[(f"{n}.weight", 0)] == wanted for n in "qkv")
    assert ("out.weight", 0) not in got
    mlp = next(f for f in families if f.kind != "heads")
    assert members(mlp) == {("up.weight", 0), ("up.bias", 0), ("down.weight", 1)}
    assert [f.kind for f in find_groups(model, torch.randn(2, 5, 16), heads=False)] == ["channels"]


def test_torch_transformer_modules():
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 3))
    families = by_name(find_groups(model, torch.randn(2, 5, 8)))
    assert len(families) == 4
    heads = families["1.layers.0.self_attn"]
    index = {m.name: m.index for m in heads.members}["1.layers.0.self_attn.in_proj_weight"]
    assert index.tolist() == [h for _ in range(3) for h in range(4) for _ in range(4)]
    assert families["1.layers.1.linear1"].groups == 24


def zeroed(model, family, keep):
    """A copy with the family's dropped groups zeroed in its masked parameters."""
    out = copy.deepcopy(model)
    kept = np.append(keep, True)
    with torch.no_grad():
        for m in family.members:
            if m.masked and m.role != "buffer":
                drop = torch.from_numpy(np.flatnonzero(~kept[m.index]))
                out.get_parameter(m.name).index_fill_(m.dim, drop, 0)
    return out


@SDPA
def test_a_dropped_head_is_gone(sdpa):
    """Zeroing a head's group leaves the other heads' part of the output as it was."""
    model, x = Attention(sdpa=sdpa).eval(), torch.randn(2, 5, 16)
    heads = next(f for f in find_groups(model, x) if f.kind == "heads")
    a = zeroed(model, heads, np.array([1, 0, 1, 1], bool))
    b = copy.deepcopy(model)
    with torch.no_grad():
        b.out.weight[:, 4:8] = 0  # head 1's columns alone
        assert torch.allclose(a(x), b(x), atol=1e-6)


def test_groups_of_dropped_channels_do_not_act():
    """What is dropped in "both" can hold anything before the consumer without a change."""
    model = ResNet().eval()
    f = by_name(find_groups(model, IMAGE))["block2.conv1"]
    keep = np.arange(16) % 3 > 0
    a = zeroed(model, f, keep)
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.block2.conv1.weight[~keep] = 7.0
        b.block2.bn1.bias[~keep] = 3.0
        assert torch.equal(a(IMAGE), b(IMAGE))


@pytest.mark.parametrize(
    "structure, masked",
    [
        ("filter", {("conv2.weight", 0), ("conv2.bias", 0)}),
        ("channel", {("fc1.weight", 1)}),
        ("both", {("conv2.weight", 0), ("conv2.bias", 0), ("fc1.weight", 1)}),
    ],
)
def test_structure_says_what_is_masked(structure, masked):
    f = by_name(find_groups(Flat(), IMAGE, structure=structure))["conv2"]
    assert members(f, masked_only=True) == masked and len(members(f)) == 3


@pytest.mark.parametrize(
    "structure, name, groups, tile",
    [
        ("column", "conv2.weight", 6 * 9, (0, 1, 1, 1)),
        ("column", "fc2.weight", 12, (0, 1)),
        ("kernel", "conv2.weight", 8 * 6, (1, 1, 0, 0)),
        ("block", "conv2.weight", 2 * 2, (4, 4, 0, 0)),
        ("block", "fc2.weight", 1 * 3, (4, 4)),
    ],
)
def test_structures_inside_a_weight(structure, name, groups, tile):
    f = by_name(find_groups(Flat(), structure=structure))[name]
    assert (f.groups, f.tile) == (groups, tile)
    assert f.sizes.sum() == Flat().get_parameter(name).numel()


def test_block_edges_are_partial():
    f = by_name(find_groups(Flat(), structure="block"))["conv2.weight"]  # 8 x 6 in tiles of 4 x 4
    assert f.sizes.tolist() == [4 * 4 * 9, 4 * 2 * 9] * 2


def test_column_of_conv_transpose_runs_over_its_outputs():
    f = by_name(find_groups(UNet(), structure="column"))["up.weight"]  # (8, 5, 2, 2)
    assert f.tile == (1, 0, 1, 1) and f.groups == 8 * 4


def test_nm_names_what_it_leaves_out():
    families, left = layer_families(Flat(), "nm", nm=(2, 4), exclude=["fc2"])
    assert {f.name for f in families} == {"fc1.weight"}
    assert left["fc2.weight"] == "excluded" and "multiple of 4" in left["conv1.weight"]
    _, left = layer_families(Depthwise(), "nm")
    assert "grouped" in left["deep.weight"]


def test_untraceable_module_is_named():
    model, x = Branchy(), torch.randn(1, 4)
    with pytest.raises(UntraceableError, match="'inner' .Switch.*opaque.*manual_family") as caught:
        find_groups(model, x)
    assert caught.value.module == "inner"
    assert find_groups(model, x, opaque=["inner"]) == []  # both neighbours touch it


def test_unknown_operations_stay_dense():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            x = torch.cumsum(self.a(x), dim=-1)  # mixes a's outputs
            return self.c(F.relu(self.b(x)))

    assert [f.name for f in find_groups(Odd(), torch.randn(2, 4))] == ["b"]


def test_layer_norm_and_group_norm_pin():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 2, 3))
    assert find_groups(model, IMAGE) == []


def test_shared_layer_is_one_parameter():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.mid, self.b = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.b(F.relu(self.mid(F.relu(self.mid(F.relu(self.a(x)))))))

    (f,) = find_groups(Twice(), torch.randn(2, 4))
    assert {("a.weight", 0), ("mid.weight", 0), ("mid.weight", 1), ("b.weight", 1)} <= members(f)


def test_tied_weights_do_not_prune_the_output():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mid = nn.Embedding(11, 6), nn.Linear(6, 6)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(F.relu(self.mid(self.embed(x))))

    assert find_groups(Tied(), torch.zeros(2, 3, dtype=torch.long)) == []


def test_chunk_and_exclude_and_modes():
    class Gated(nn.Module):  # GLU: two halves of one layer multiplied
        def __init__(self):
            super().__init__()
            self.a, self.drop, self.b = nn.Linear(4, 12), nn.Dropout(0.5), nn.Linear(6, 2)

        def forward(self, x):
            u, v = self.a(x).chunk(2, dim=-1)
            return self.b(self.drop(u * torch.sigmoid(v)))

    model = Gated().train()
    model.drop.eval()
    (f,) = find_groups(model, torch.randn(2, 4))
    assert {m.name: m for m in f.members}["a.weight"].index.tolist() == list(range(6)) * 2
    assert model.training and model.a.training and not model.drop.training
    assert find_groups(model, torch.randn(2, 4), exclude=["b"]) == []


def test_statistics_are_not_touched_by_finding():
    model = ResNet()
    before = copy.deepcopy(model.state_dict())
    find_groups(model, IMAGE)
    assert all(torch.equal(t, before[k]) for k, t in model.state_dict().items())


def test_manual_family_errors_name_the_parameter():
    model = Flat()
    with pytest.raises(ValueError, match="no parameter or buffer 'conv9.weight'"):
        manual_family(model, "x", [("conv9.weight", 0)])
    with pytest.raises(ValueError, match="fc1.weight has 128 places.*multiple of 12"):
        manual_family(model, "x", [("fc2.weight", 1), ("fc1.weight", 1)])
    with pytest.raises(ValueError, match="no dimension 2"):
        manual_family(model, "x", [("fc1.weight", 2)])


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="structure is 'rows'; known"):
        find_groups(Flat(), IMAGE, structure="rows")
    with pytest.raises(ValueError, match="needs example="):
        find_groups(Flat())
    assert isinstance(find_groups(Flat(), IMAGE)[0], Family)

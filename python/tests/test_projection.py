# SPDX-License-Identifier: Apache-2.0
"""Scores, budgets, choice and projection against plain definitions."""

import itertools

import numpy as np
import pytest
import torch
from hsadmm_models import Flat, ResNet, UNet
from torch import nn

from prunex.torch import projection as pj
from prunex.torch.groups import find_groups
from prunex.torch.schedule import Constant, Ramp, Steps, as_schedule, cubic, linear

IMAGE = torch.randn(1, 1, 8, 8)


def integers(model, seed=0):
    """Small integers as weights: sums of squares are exact."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randint(-4, 5, p.shape, generator=g).float())
    return dict(model.named_parameters())


def expand(family, mask, name, shape):
    """Kept elements of a parameter, from the definition of a member."""
    out = np.ones(shape, bool)
    if family.tile is not None:
        grid = [-(-s // (t or s)) for s, t in zip(shape, family.tile)]
        for at in itertools.product(*map(range, shape)):
            cell = tuple(i // (t or s) for i, t, s in zip(at, family.tile, shape))
            out[at] = mask.reshape(grid)[cell]
        return out
    for m in family.members:
        if m.name == name and m.masked:
            line = np.array([g < 0 or mask[g] for g in m.index])
            out &= line.reshape([-1 if d == m.dim else 1 for d in range(len(shape))])
    return out


@pytest.mark.parametrize("structure", ["filter", "channel", "both", "column", "kernel"])
def test_score_is_what_dropping_loses(structure):
    model = Flat()
    tensors = integers(model)
    for f in find_groups(model, IMAGE, structure=structure):
        scores = pj.family_scores(f, tensors).numpy()
        for g in (0, f.groups - 1):
            mask = np.arange(f.groups) != g
            lost = 0.0
            for m in {m.name: m for m in f.members if m.scored}.values():
                gone = ~expand(f, mask, m.name, tuple(tensors[m.name].shape))
                lost += float(
                    tensors[m.name].detach().numpy()[gone].astype(np.float64).__pow__(2).sum()
                )
            assert scores[g] == lost


def test_partial_tiles_are_scored_by_their_mean():
    model = nn.Sequential(nn.Linear(6, 4, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(2.0)
    (f,) = find_groups(model, structure="block")
    assert pj.family_scores(f, dict(model.named_parameters())).tolist() == [64.0, 64.0]


def test_projection_is_the_nearest_point():
    """Exact: no other mask with the budget is nearer to the summed z~_i (all masks tried)."""
    model = Flat()
    f = {x.name: x for x in find_groups(model, IMAGE, structure="filter")}["conv1"]
    nodes = [integers(Flat(), seed) for seed in range(3)]
    scores = sum(pj.all_scores([f], t) for t in nodes)
    best = pj.choose(scores, pj.budget([f], 0.5))

    def loss(mask):
        return sum(float(pj.family_scores(f, t)[torch.from_numpy(~mask)].sum()) for t in nodes)

    losses = []
    for chosen in itertools.combinations(range(f.groups), 3):
        mask = np.zeros(f.groups, bool)
        mask[list(chosen)] = True
        losses.append(loss(mask))
    assert loss(best) == min(losses)


@pytest.mark.parametrize("structure", ["filter", "channel", "both", "column", "kernel", "block"])
def test_project_selects(structure):
    model = UNet()
    tensors = {n: t.detach() for n, t in integers(model).items()}
    tensors["dec.weight"][0, 0, 0, 0] = float("nan")
    families = find_groups(model, IMAGE, structure=structure)
    rng = np.random.default_rng(0)
    masks = {f.name: rng.random(f.groups) < 0.5 for f in families}
    masks = {k: m if m.any() else ~m for k, m in masks.items()}
    out = pj.project(families, masks, tensors)
    described = pj.specs(families, masks, {n: tuple(t.shape) for n, t in tensors.items()})
    dropped = pj.Dropped(families, masks, {n: tuple(t.shape) for n, t in tensors.items()})
    for name, t in tensors.items():
        keep = np.ones(tuple(t.shape), bool)
        for f in families:
            if name in f.parameters():
                keep &= expand(f, masks[f.name], name, tuple(t.shape))
        got = out[name].numpy()
        assert np.array_equal(got[keep], t.numpy()[keep], equal_nan=True)
        assert not np.signbit(got[~keep]).any() and (got[~keep] == 0).all()  # +0, NaN too
        if name in described:
            assert np.array_equal(described[name].to_array(t.shape), keep)
            assert described[name].contract == "project" and dropped.kept[name] == keep.sum()
        else:
            assert keep.all()


def test_nm_keeps_n_of_every_m():
    model = nn.Sequential(nn.Conv2d(8, 3, 3, bias=False))
    tensors = integers(model)
    (f,) = find_groups(model, structure="nm", nm=(2, 4))
    limits = pj.budget([f], 0.5)
    masks = pj.split([f], pj.choose(pj.all_scores([f], tensors), limits))
    keep = pj.specs([f], masks, {"0.weight": (3, 8, 3, 3)})["0.weight"].to_array((3, 8, 3, 3))
    windows = keep.transpose(0, 2, 3, 1).reshape(-1, 4)
    assert (windows.sum(1) == 2).all()
    values = np.abs(tensors["0.weight"].detach().numpy()).transpose(0, 2, 3, 1).reshape(-1, 4)
    for kept, v in zip(windows, values):
        assert v[kept].min() >= v[~kept].max()
    assert pj.budget([f], 1.0).full


def test_ties_go_to_the_lower_index():
    """§4.4 row 2: equal scores must not be broken by chance."""
    assert pj.top_k([1, 1, 1, 1], 2).tolist() == [True, True, False, False]
    assert pj.top_k([0, 2, 2, 2], 2).tolist() == [False, True, True, False]


def test_hysteresis_protects_incumbents():
    before = np.array([True, False, False])
    assert pj.top_k([1.0, 1.2, 0.1], 1, before, 0.25).tolist() == [True, False, False]
    assert pj.top_k([1.0, 1.3, 0.1], 1, before, 0.25).tolist() == [False, True, False]
    assert pj.top_k([1.0, 1.2, 0.1], 1, before, 0.0).tolist() == [False, True, False]


def test_budget_per_layer_has_a_floor():
    families = find_groups(ResNet(), IMAGE)
    assert pj.budget(families, 0.5).layer_keep == (4, 8)
    assert pj.budget(families, 0.01).layer_keep == (1, 1)


def test_global_budget_never_empties_a_family():
    families = find_groups(ResNet(), IMAGE)
    limits = pj.budget(families, 0.25, "global")
    assert limits.layer_groups == (24,) and limits.layer_keep == (6,)
    scores = np.r_[np.zeros(8), np.arange(16)].astype(np.float32)
    keep = pj.choose(scores, limits)
    floor = pj.with_floor(families, keep)
    assert floor.layer_keep == (1, 5) and sum(floor.layer_keep) == 6
    assert pj.with_floor(families, np.ones(24, bool)) is None


def test_weights_span_layers():
    """Exact projection with penalties per layer: w_l ||.||^2."""
    model = Flat()
    tensors = integers(model)
    f = find_groups(model, IMAGE, structure="filter")[0]
    plain = pj.family_scores(f, tensors)
    assert torch.equal(pj.family_scores(f, tensors, {"conv1.weight": 3.0}), 3.0 * plain)


def test_schedules():
    assert [cubic(0.5, 2, 6)(t) for t in (0, 2, 6, 99)] == [1.0, 1.0, 0.5, 0.5]
    assert cubic(0.5, 0, 4)(2) == 0.5 + 0.5 * 0.125 and linear(0.5, 0, 4)(2) == 0.75
    assert Steps({3: 0.7, 5: 0.4})(2) == 1.0 and Steps({3: 0.7, 5: 0.4})(4) == 0.7
    assert Steps({3: 0.7, 5: 0.4}).target == 0.4 and Constant(0.3)(0) == 0.3
    assert as_schedule(0.4) == Ramp(0.4, 2, 8) and as_schedule(Constant(1)).target == 1
    falling = [cubic(0.2, 1, 9)(t / 4) for t in range(40)]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize("value", [0, -0.1, 1.5, float("nan")])
def test_density_out_of_range_is_named(value):
    with pytest.raises(ValueError, match="above 0, at most 1"):
        as_schedule(value)

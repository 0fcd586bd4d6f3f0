# SPDX-License-Identifier: Apache-2.0
"""MaskedParameters: pruned weights stay zero, masks from other tools; one process."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import prunex  # noqa: E402
from models import FILTERS, batch, cnn, masked, train  # noqa: E402
from prunex import MaskSpec, Unsupported  # noqa: E402
from prunex.torch import MaskedParameters, PrunexState, prunex_hook  # noqa: E402
from worlds import free_port  # noqa: E402


@pytest.mark.parametrize("kind", ["sgd", "momentum", "decay", "adamw"])
def test_R21_R22_pruned_weights_stay_zero(kind):
    """Momentum and weight decay do not revive what apply_mask has cleared."""
    model = cnn()
    optimizer = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    }[kind](model.parameters())
    train(model, 0, 4, optimizer=optimizer)
    masks = masked(model)
    assert masks.revived()
    masks.apply_mask(optimizer)
    assert not masks.revived()
    for step in range(5):
        optimizer.zero_grad()
        model(batch(0, step)).square().mean().backward()
        for name in masks.masked_names():  # as the hook leaves them
            p = masks.parameter(name)
            p.grad *= torch.from_numpy(masks.spec(name).to_array(tuple(p.shape)))
        optimizer.step()
    assert not masks.revived()


def test_R21_momentum_revives_without_the_optimizer():
    """What the helper is for: the same steps with the optimizer's state left as it was."""
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, 0, 4, optimizer=optimizer)
    masks = masked(model)
    masks.apply_mask()
    optimizer.zero_grad()
    model(batch(0, 9)).square().mean().backward()
    for name in masks.masked_names():
        p = masks.parameter(name)
        p.grad *= torch.from_numpy(masks.spec(name).to_array(tuple(p.shape)))
    optimizer.step()
    assert masks.revived()


def test_optimizers_only():
    model = cnn()
    masks = masked(model)
    for use in (masks.hold, masks.apply_mask):
        with pytest.raises(ValueError, match="Sequential is not an optimizer"):
            use(model)
    if not hasattr(torch.optim.Optimizer, "register_step_post_hook"):
        with pytest.raises(Unsupported, match=r"call masks.apply_mask\(optimizer\) after"):
            masks.hold(torch.optim.SGD(model.parameters(), 0.1))


@pytest.mark.skipif(
    not hasattr(torch.optim.Optimizer, "register_step_post_hook"), reason="torch before 2.0"
)
def test_hold():
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    masks = MaskedParameters(model)
    masks.set("7.weight", MaskSpec.dims({0: np.arange(11) < 6}))
    handle = masks.hold(optimizer)
    train(model, 0, 3, optimizer=optimizer)
    assert not masks.revived()
    handle.remove()
    train(model, 0, 3, optimizer=optimizer)
    assert masks.revived()


def test_masked_parameters_are_all_or_nothing():
    masks = MaskedParameters(cnn())
    with pytest.raises(ValueError, match="0.weight"):
        masks.set_all(
            {"2.bias": MaskSpec.dims({0: FILTERS}), "0.weight": MaskSpec.dims({0: FILTERS})}
        )
    assert len(masks) == 0
    with pytest.raises(ValueError, match="nope"):
        masks.set("nope", MaskSpec.dims({}))


def test_masked_parameters_pickle():
    model = cnn()
    masks = masked(model)
    again = pickle.loads(pickle.dumps(masks)).bind(copy.deepcopy(model))
    assert again.specs() == masks.specs() and again.density() == masks.density() < 0.6
    loose = pickle.loads(pickle.dumps(masks))
    for use in (
        loose.density,
        loose.apply_mask,
        loose.revived,
        lambda: loose.parameter("2.weight"),
        lambda: loose.set("2.weight", masks.spec("2.weight")),
    ):
        with pytest.raises(ValueError, match=r"have no model: call bind\(model\)"):
            use()
    with pytest.raises(ValueError, match="2.weight|0.weight"):
        pickle.loads(pickle.dumps(masks)).bind(nn.Linear(2, 2))


def test_names_and_masks_of_the_wrong_kind_are_told_what_is_wanted():
    model = cnn()
    masks, spec = MaskedParameters(model), MaskSpec.dims({0: FILTERS})
    for name, told in (
        ("module.2.weight", "use '2.weight'"),
        ("module._orig_mod.2.weight", "use '2.weight'"),
        ("conv.weight", "the first ones are: 0.weight"),
        (model[2].weight, "^a mask is set by name, not by Parameter: use '2.weight'$"),
        (torch.ones(3), "model.named_parameters"),
    ):
        for value in (spec, None):
            with pytest.raises(ValueError, match=told):
                masks.set(name, value)
    for wrong in (torch.ones(24, 13, 3, 3, dtype=torch.bool), {0: FILTERS}, FILTERS):
        with pytest.raises(ValueError, match="mask of '2.weight' is a .*MaskSpec.infer"):
            masks.set("2.weight", wrong)
    prune.ln_structured(model[2], "weight", amount=0.5, n=2, dim=0)
    with pytest.raises(ValueError, match="use '2.weight_orig': it is pruned"):
        MaskedParameters(model).set("2.weight", spec)
    for source in (model[2].weight_orig, model.parameters(), [("a", 3)], ["2.weight"], [(1, 2)]):
        with pytest.raises(ValueError, match="named_parameters"):
            MaskedParameters(source)
    assert len(masks) == 0 and len(list(MaskedParameters(model.named_parameters()))) == 8


def test_hook_states_of_the_wrong_kind_are_told_what_is_wanted():
    """Where they are made or first used, not as an attribute that some object lacks."""
    masks = MaskedParameters(cnn())
    with pytest.raises(ValueError, match=r"MaskedParameters.*PrunexState\(masks=...\)"):
        PrunexState(masks)
    for wrong in ({"2.weight": MaskSpec.dims({0: FILTERS})}, [masks]):
        with pytest.raises(ValueError, match=r"wanted a MaskedParameters: .*set_all"):
            PrunexState(masks=wrong)
    for wrong in (None, masks):
        with pytest.raises(ValueError, match=r"register_comm_hook\(PrunexState"):
            prunex_hook(wrong, None)


class Dep:
    """Shaped like Torch-Pruning's Dependency."""

    class Target:
        def __init__(self, module):
            self.module = module

    def __init__(self, module, handler):
        self.target, self.handler = Dep.Target(module), handler


def prune_out_channels():
    pass


def prune_in_channels():
    pass


def test_from_groups():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.ConvTranspose2d(8, 5, 2),
        nn.Flatten(),
        nn.Linear(5, 4),
    )
    group = [
        (Dep(model[0], prune_out_channels), [1, 4]),
        (Dep(model[1], prune_out_channels), [1, 4]),
        (Dep(model[2], prune_out_channels), [1, 4]),
        (Dep(model[3], prune_in_channels), [1, 4]),
        (Dep(None, prune_out_channels), [1, 4]),
    ]
    masks = MaskedParameters(model).from_groups(
        model, [group, [("3", "out", [0]), ("5", "in", [0])]]
    )
    keep = np.ones(8, bool)
    keep[[1, 4]] = False
    assert masks.spec("0.weight") == MaskSpec.dims({0: keep}, "project")
    assert masks.spec("1.bias") == MaskSpec.dims({0: keep}, "project")
    assert masks.spec("2.weight") == MaskSpec.dims({0: keep}, "project")
    assert masks.spec("3.weight") == MaskSpec.dims({0: keep, 1: np.arange(5) > 0}, "project")
    assert masks.spec("5.weight") == MaskSpec.dims({1: np.arange(5) > 0}, "project")
    before = masks.specs()
    for groups, told in (
        ([[("0", "out", [8])]], "0.weight: index 8 is outside dimension 0 of size 8"),
        ([[("0", "out", torch.tensor([1, -1]))]], "index -1 is outside"),
        ([[("0", "out", [True] * 8)]], "not bool; .*flatnonzero"),
        ([[("0", "out", torch.ones(8, dtype=torch.bool))]], "not bool; .*flatnonzero"),
        ([[("0", "out", [0.5])]], "not float64"),
        ([[("conv1", "out", [0])]], "no module 'conv1'; the first ones are: 0, 1"),
        ([("0", "out", [0])], "groups are lists of such items"),
        ([[("0", "filters", [0])]], "'out' or 'in'"),
    ):
        with pytest.raises(ValueError, match=told):
            masks.from_groups(model, groups)
    assert masks.specs() == before
    masks.from_groups(model, [[("5", "in", torch.tensor([4]))], [("5", "in", np.array([3]))]])
    assert masks.spec("5.weight") == MaskSpec.dims({1: np.arange(5) < 3}, "project")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(4, 4)[:, 0],
        lambda: torch.ones(4, 3).t(),
        lambda: torch.ones(4).expand(2, 4),
    ],
)
def test_E6_non_contiguous_tensors(make):
    with prunex.Communicator(0, 1, root=f"127.0.0.1:{free_port()}", timeout=10) as comm:
        with pytest.raises(ValueError, match="contiguous.*strides"):
            comm.all_reduce(make())


def test_E6_negated_views():
    """Of such a view the memory holds the opposite values."""
    with prunex.Communicator(0, 1, root=f"127.0.0.1:{free_port()}", timeout=10) as comm:
        view = torch._neg_view(torch.ones(4))
        with pytest.raises(ValueError, match="resolve_neg"):
            comm.all_reduce(view)
        comm.all_reduce(view.resolve_neg())

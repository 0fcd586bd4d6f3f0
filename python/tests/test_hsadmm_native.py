# SPDX-License-Identifier: Apache-2.0
"""H-SADMM's passes in the library against the same steps by torch's operations."""

import pytest
import torch
from hsadmm_models import Flat, ResNet
from hsadmm_training import FLAT, X, parameters, start, train
from hsadmm_world import World
from torch import nn

from prunex.torch.groups import find_groups
from prunex.torch.hsadmm import FROZEN, HSADMM
from prunex.torch.hsadmm_native import Native
from prunex.torch.hsadmm_state import HUGE, zeros
from prunex.torch.schedule import Ramp


def by_torch(monkeypatch):
    monkeypatch.setattr(Native, "of", staticmethod(lambda state: None))


def run(nodes, steps, families=FLAT, native=True, **options):
    def rank(comm):
        admm = start(comm, families, Ramp(0.4, 1, 4), **options)
        assert (admm.state.native is not None) == native
        train(admm, steps)
        s = admm.state
        return {
            "theta": parameters(admm),
            **{k: getattr(s, k).clone() for k in ("u", "v", "z_i", "z", "u_mean")},
            "masks": admm.masks(),
            "reports": admm.reports,
            "phase": admm.phase,
        }

    return World(nodes).run(rank)


def same(one, other):
    for a, b in zip(one, other):
        assert a["phase"] == b["phase"]
        assert all((a["masks"][k] == b["masks"][k]).all() for k in b["masks"])
        for key in ("theta", "u", "v", "z_i", "z", "u_mean"):
            bound = 1e-5 * (1.0 + float(b[key].abs().max()))
            assert float((a[key] - b[key]).abs().max()) <= bound, key
        for x, y in zip(a["reports"], b["reports"]):
            assert (x.mask_flips, x.kept, x.rho1, x.rho2) == (y.mask_flips, y.kept, y.rho1, y.rho2)
            for key in ("r1", "s1", "r2", "s2"):
                assert getattr(x, key) == pytest.approx(getattr(y, key), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("structure", ["both", "column", "kernel", "block", "nm"])
def test_every_structure(structure, monkeypatch):
    families = find_groups(Flat(), X[:1], structure=structure)
    native = run((2, 2), 12, families)
    by_torch(monkeypatch)
    same(native, run((2, 2), 12, families, native=False))


@pytest.mark.parametrize(
    "options",
    [
        dict(score="z_tilde"),
        dict(budget="global"),
        dict(balance="layer"),
        dict(balance=None, rho1=0.3, rho2=0.2),
        dict(local_steps=3, pull_every=2),
        dict(optimizer=lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, weight_decay=1e-2)),
    ],
    ids=["z_tilde", "global", "layer", "fixed", "pull_every", "decayed"],
)
def test_every_option(options, monkeypatch):
    native = run((1, 2), 12, **options)
    by_torch(monkeypatch)
    same(native, run((1, 2), 12, native=False, **options))


def test_channels_last(monkeypatch):
    options = dict(
        families=find_groups(ResNet(), X[:1]),
        build=lambda: ResNet().to(memory_format=torch.channels_last),
    )
    native = run((1, 2), 8, **options)
    by_torch(monkeypatch)
    same(native, run((1, 2), 8, native=False, **options))


@pytest.mark.parametrize("nodes", [(1,), (3,), (1, 2)])
def test_through_the_freeze(nodes, monkeypatch):
    native = run(nodes, 20, freeze_round=6)
    assert native[0]["phase"] == FROZEN
    by_torch(monkeypatch)
    same(native, run(nodes, 20, native=False, freeze_round=6))


class Odd(nn.Module):
    """Parameters of every stride, one without elements."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Parameter(torch.randn(5, 3))
        self.turned = nn.Parameter(torch.randn(4, 6).t())
        self.strided = nn.Parameter(torch.randn(7, 2)[:, 0])
        self.none = nn.Parameter(torch.zeros(0, 3))
        self.one = nn.Parameter(torch.randn(2, 1, 3, 1))


@pytest.mark.parametrize("turned", [False, True])
def test_gradients_of_any_stride(turned):
    """g + rho (theta - z_i + u), in place, whatever the memory order of theta and of g."""
    torch.manual_seed(3)
    model = Odd()
    admm = HSADMM(model, torch.optim.SGD(model.parameters(), 1.0), None, (), 1.0)
    state, wanted, held = admm.state, [], []
    assert state.native is not None
    for i, p in enumerate(model.parameters()):
        state.views["u"][i].normal_()
        with torch.no_grad():
            p.add_(1.0)
        g = torch.randn_like(p)
        p.grad = g.t().contiguous().t() if turned and g.dim() == 2 else g
        held.append(p.grad)
        z_i, u = state.views["z_i"][i], state.views["u"][i]
        wanted.append(g + 0.1 * (p.detach() - z_i + u))
    admm._prepare_gradients()
    for p, g, want in zip(model.parameters(), held, wanted):
        assert p.grad is g and torch.allclose(g, want, atol=1e-6)


@pytest.mark.parametrize("kind", ["float64", "bfloat16", "mixed"])
def test_other_types_go_through_torch(kind):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    if kind == "mixed":
        model[1].bfloat16()
    else:
        model.to(getattr(torch, kind))
    admm = HSADMM(model, torch.optim.SGD(model.parameters(), 0.1), None, (), 1.0, local_steps=1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    _, report = admm.step()
    assert admm.state.native is None and report.r1 == 0.0


def test_a_library_without_them_is_all_right(monkeypatch):
    monkeypatch.setattr("prunex.torch.hsadmm_native._calls", lambda: None)
    assert run((1, 1), 4, native=False)[0]["reports"]


def test_duals_are_settled_before_anybody_sees_them():
    """rho u is the unscaled dual: with a new penalty, pending or not, it is what it was."""
    model = Flat()
    state = HSADMM(model, torch.optim.SGD(model.parameters(), 0.1), None, FLAT, 1.0).state
    state.z.fill_(1.0)
    for name in ("u", "v", "u_mean"):
        state.flat["y" if name == "v" else name].fill_(4.0 if name == "v" else 3.0)
        state.pending[name] *= 0.5
        state.pending[name][0] *= 4.0
        first = state.offsets[1]
        for _ in range(2):
            assert (getattr(state, name)[:first] == 6.0).all()
            assert (getattr(state, name)[first:] == 1.5).all()


@pytest.mark.parametrize("count", [1, 1000, HUGE // 4, 1_000_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_buffers_are_zero_and_apart(count, dtype):
    parts = zeros(3, count, dtype, torch.device("cpu"))
    assert all(p.numel() == count and p.dtype == dtype and not p.any() for p in parts)
    for i, part in enumerate(parts):
        part.fill_(i + 1)
    assert all(bool((p == i + 1).all()) for i, p in enumerate(parts))
    assert all(p.data_ptr() % p.element_size() == 0 for p in parts)

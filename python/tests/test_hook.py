# SPDX-License-Identifier: Apache-2.0
"""The DDP hook in every mode of DDP, against plain DDP; reports of the field named R<row>."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

from models import (  # noqa: E402
    FILTERS,
    assert_close,
    batch,
    cnn,
    ddp,
    gradients,
    masked,
    specs,
    state_of,
    train,
)
from prunex import MaskSpec  # noqa: E402
from prunex.torch import MaskedParameters, PrunexState, prunex_hook  # noqa: E402
from worlds import init_gloo, run_ranks  # noqa: E402


def assert_masked(ours, plain, masks, bound=1e-6):
    """Kept elements equal plain DDP's; dropped ones are +0."""
    for name, value in plain.items():
        spec = masks.spec(name)
        keep = torch.ones_like(value, dtype=torch.bool)
        if spec is not None:
            keep = torch.from_numpy(spec.to_array(tuple(value.shape)))
        assert_close({name: ours[name][keep]}, {name: value[keep]}, bound)
        dropped = ours[name][~keep]
        assert (dropped == 0).all() and not torch.signbit(dropped).any(), name


def modes(rank, size, options, layout, accumulate):
    comm = init_gloo(rank, size)
    base = cnn()
    if layout == "channels_last":
        base = base.to(memory_format=torch.channels_last)
    plain, ours = ddp(copy.deepcopy(base), **options), ddp(copy.deepcopy(base), **options)
    masks = masked(ours)
    state = PrunexState(comm, masks)
    ours.register_comm_hook(state, prunex_hook)
    for step in range(4):
        for model in (plain, ours):
            model.zero_grad()
            if accumulate:
                with model.no_sync():
                    model(batch(rank, 100 + step)).square().mean().backward()
            model(batch(rank, step)).square().mean().backward()
        assert_masked(gradients(ours), gradients(plain), masks)
    stats = comm.stats()
    assert stats.dropped_nonzero > 0 and stats.mismatches == 0 and stats.violations == 0
    state.close()


@pytest.mark.parametrize(
    "options, layout, accumulate",
    [
        ({}, "row-major", False),
        ({"gradient_as_bucket_view": True}, "row-major", True),  # R10, R13
        ({"static_graph": True, "gradient_as_bucket_view": True}, "row-major", False),
        ({"static_graph": True}, "channels_last", False),  # R12
        ({"gradient_as_bucket_view": True}, "channels_last", False),  # R12
        ({"find_unused_parameters": True}, "row-major", False),
        ({"bucket_cap_mb": 25}, "row-major", False),
    ],
)
def test_modes_equal_plain_ddp(options, layout, accumulate):
    run_ranks(modes, options, layout, accumulate)


class Branches(nn.Module):
    """Uses one of two layers, by step and rank."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b, self.out = nn.Linear(9, 15), nn.Linear(9, 15), nn.Linear(15, 3)

    def forward(self, x, first):
        return self.out(torch.relu(self.a(x) if first else self.b(x)))


def unused(rank, size):
    comm = init_gloo(rank, size)
    options = dict(find_unused_parameters=True)
    plain, ours = ddp(Branches(), **options), ddp(Branches(), **options)
    masks = MaskedParameters(ours)
    masks.set("a.weight", MaskSpec.dims({0: np.arange(15) < 9}, "project"))
    ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    for step in range(4):
        x = torch.randn(5, 9, generator=torch.Generator().manual_seed(step * 7 + rank))
        for model in (plain, ours):
            model.zero_grad()
            model(x, (rank + step) % 2 == 0).square().mean().backward()
        assert_masked(gradients(ours), gradients(plain), masks)


def test_R9_R19_unused_parameters_differ_between_ranks():
    run_ranks(unused, nodes=(0, 1))


def never_used(rank, size):
    """R19: a parameter and an output that no loss ever uses, under static_graph."""
    comm = init_gloo(rank, size)
    plain, ours = ddp(Branches(), static_graph=True), ddp(Branches(), static_graph=True)
    masks = MaskedParameters(ours)
    for name in ("a.weight", "b.weight"):
        masks.set(name, MaskSpec.dims({0: np.arange(15) < 9}, "project"))
    ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    for step in range(4):
        x = torch.randn(5, 9, generator=torch.Generator().manual_seed(step * 7 + rank))
        for model in (plain, ours):
            model.zero_grad()
            model(x, True)[:, :2].square().mean().backward()
        assert_masked(gradients(ours), gradients(plain), masks)


def test_R19_static_graph_with_unused_parameters():
    run_ranks(never_used, nodes=(0, 1))


def uneven(rank, size):
    """Ranks that have run out of inputs stand in with zeros until all have."""
    from torch.distributed.algorithms.join import Join

    comm = init_gloo(rank, size)
    plain, ours = ddp(cnn()), ddp(cnn())
    masks = masked(ours)
    ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    for model in (plain, ours):
        with Join([model]):
            for step in range(2 + rank):
                model.zero_grad()
                model(batch(rank, step)).square().mean().backward()
    assert_masked(gradients(ours), gradients(plain), masks)
    assert comm.stats().mismatches == 0


def test_join_of_uneven_inputs():
    run_ranks(uneven, nodes=(0, 1))


def lossless_in_graph(rank, size):
    comm = init_gloo(rank, size)

    def pruned():
        model = cnn()
        prune.custom_from_mask(
            model[2],
            "weight",
            torch.from_numpy(FILTERS).float()[:, None, None, None].expand(24, 13, 3, 3),
        )
        return model

    plain, ours = ddp(pruned()), ddp(pruned())
    masks = MaskedParameters(ours).from_prune(ours)
    assert masks.spec("2.weight_orig").kind == "dims"
    ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    train(plain, rank, 4)
    train(ours, rank, 4)
    assert_close(state_of(ours), state_of(plain), 1e-6)
    stats = comm.stats()
    assert stats.violations == 0 and stats.calls_compact > 0
    assert stats.dropped_nonzero == 0
    return stats.bytes_wire_sent < stats.bytes_dense or not comm.is_leader


def test_lossless_with_the_mask_in_the_graph():
    """torch.nn.utils.prune: gradients are zero where the mask is (some of them -0)."""
    assert all(run_ranks(lossless_in_graph))


def straight_through(rank, size):
    """R23: gradients of masked weights that are not zero by design: dense, once said, not wrong."""
    comm = init_gloo(rank, size)
    plain, ours = ddp(cnn()), ddp(cnn())
    masks = masked(ours, "lossless")
    ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    for step in range(3):
        for model in (plain, ours):
            model.zero_grad()
            model(batch(rank, step)).square().mean().backward()
        assert_close(gradients(ours), gradients(plain), 1e-6)
    assert comm.stats().violations > 0


def test_R23_gradients_that_are_not_zero_go_dense():
    run_ranks(straight_through, nodes=(0, 1))


def differing_prune(rank, size):
    """R1, R2: pruned after wrapping with another seed per rank."""
    comm = init_gloo(rank, size)
    model = ddp(cnn())
    reference = cnn()
    for inner in (model.module, reference):
        torch.manual_seed(rank)
        prune.random_structured(inner[2], "weight", amount=0.5, dim=0)
    masks = MaskedParameters(model).from_prune(model)
    model.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    model(batch(rank, 0)).square().mean().backward()
    reference(batch(rank, 0)).square().mean().backward()
    mean = reference[2].weight_orig.grad.clone()
    comm.all_reduce(mean, op="avg")
    assert_close({"g": model.module[2].weight_orig.grad}, {"g": mean}, 1e-6)
    return comm.stats().mismatches


def test_R1_R2_masks_of_different_seeds_are_noticed():
    assert all(m > 0 for m in run_ranks(differing_prune, nodes=(0, 1)))


def changing(rank, size):
    """R3, R11: masks that change while training, and the bucket layout with them."""
    comm = init_gloo(rank, size)
    plain, ours = ddp(cnn()), ddp(cnn())
    masks = masked(ours)
    state = PrunexState(comm, masks)
    ours.register_comm_hook(state, prunex_hook)
    for step in range(6):
        masks.set_all(specs("project", shift=step))
        if step == 4:
            masks.set("2.weight", None)
        for model in (plain, ours):
            model.zero_grad()
            model(batch(rank, step)).square().mean().backward()
        assert_masked(gradients(ours), gradients(plain), masks)
    # R5: another wrapper around the same model, other buckets, the same state's masks
    ours = ddp(ours.module, bucket_cap_mb=0.001)
    plain = ddp(plain.module, bucket_cap_mb=0.001)
    ours.register_comm_hook(state, prunex_hook)
    for step in range(3):
        for model in (plain, ours):
            model.zero_grad()
            model(batch(rank, step)).square().mean().backward()
        assert_masked(gradients(ours), gradients(plain), masks)


def test_R3_R5_R11_masks_and_buckets_change():
    run_ranks(changing, nodes=(0, 1))


def two_models(rank, size):
    """Two DDP models on one communicator, as in a GAN."""
    comm = init_gloo(rank, size)
    pairs = []
    for _ in range(2):
        plain, ours = ddp(cnn()), ddp(cnn())
        masks = masked(ours)
        ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
        pairs.append((plain, ours, masks))
    for step in range(3):
        for plain, ours, masks in pairs:
            for model in (plain, ours):
                model.zero_grad()
                model(batch(rank, step)).square().mean().backward()
            assert_masked(gradients(ours), gradients(plain), masks)


def test_several_models():
    run_ranks(two_models, nodes=(0, 1))


def compressed(rank, size, name):
    """R16, R17: 16-bit transport; the same mask, half the bytes, the dense hook's result."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    comm = init_gloo(rank, size)
    dtype = getattr(torch, name)
    full, ours, plain = ddp(cnn()), ddp(cnn()), ddp(cnn())
    spent = []
    for model, compress in ((full, None), (ours, dtype)):
        before = comm.stats()
        model.register_comm_hook(PrunexState(comm, masked(model), compress), prunex_hook)
        model(batch(rank, 0)).square().mean().backward()
        spent.append((comm.stats() - before).bytes_wire_sent)
    if dtype == torch.float16:
        plain.register_comm_hook(None, default_hooks.fp16_compress_hook)
    plain(batch(rank, 0)).square().mean().backward()
    assert ours.module[0].weight.grad.dtype == torch.float32
    assert_masked(
        gradients(ours), gradients(plain), masked(ours), 4e-3 if name == "float16" else 2e-2
    )
    return (not comm.is_leader) or spent[1] < 0.62 * spent[0]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_R16_R17_compression(name):
    assert all(run_ranks(compressed, name))


def clipped(rank, size):
    """R26: the norm of accumulated, reduced gradients is that of plain DDP, and equal on all ranks."""
    comm = init_gloo(rank, size)
    plain, ours = ddp(cnn()), ddp(cnn())
    masks = MaskedParameters(ours)
    ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    norms = []
    for model in (plain, ours):
        with model.no_sync():
            model(batch(rank, 1)).square().mean().backward()
        model(batch(rank, 0)).square().mean().backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
    assert abs(norms[0] - norms[1]) <= 1e-5 * norms[0]
    return norms[1]


def test_R26_clip_norm():
    norms = run_ranks(clipped, nodes=(0, 1))
    assert norms[0] == norms[1]


def sparse(rank, size):
    """R14, R15: sparse gradients pass through the process group."""
    comm = init_gloo(rank, size)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.table, self.out = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.table(x))

    plain, ours = ddp(Model()), ddp(Model())
    ours.register_comm_hook(PrunexState(comm, MaskedParameters(ours)), prunex_hook)
    for model in (plain, ours):
        model(torch.tensor([rank, 3, 5])).square().mean().backward()
    a, b = ours.module.table.weight.grad, plain.module.table.weight.grad
    assert torch.allclose(a.to_dense(), b.to_dense(), atol=1e-6)


def test_R14_R15_sparse_gradients():
    run_ranks(sparse, nodes=(0, 1))


def dying(rank, size):
    """A rank that leaves in the middle: backward raises on the other, naming it; no hang."""
    comm = init_gloo(rank, size)
    model = ddp(cnn())
    model.register_comm_hook(PrunexState(comm, masked(model)), prunex_hook)
    for step in range(3):  # after the second DDP itself says nothing on gloo any more
        model(batch(rank, step)).square().mean().backward()
    if rank == 1:
        comm.close()
        return
    with pytest.raises(Exception, match="(?i)rank 1"):
        model(batch(rank, 1)).square().mean().backward()


def test_lost_rank_ends_the_backward():
    run_ranks(dying, nodes=(0, 1))

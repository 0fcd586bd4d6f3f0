# SPDX-License-Identifier: Apache-2.0
"""More reports on masks, buckets and hooks, named R<row>: how the hook behaves among its users' own
tools (checkpoints, registries, sharding, reassigned masks)."""

from __future__ import annotations

import os
import re
import weakref
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.nn.utils import prune  # noqa: E402

import models  # noqa: E402
import prunex.torch  # noqa: E402
from models import batch, cnn, ddp, masked  # noqa: E402
from prunex.torch import MaskedParameters, PrunexState, prunex_hook  # noqa: E402
from worlds import init_gloo, run_ranks  # noqa: E402


def backward(model, rank, step):
    model(batch(rank, step)).square().mean().backward()


def kept(values, masks):
    """The same values with those that the masks drop at zero."""
    out = {}
    for name, value in values.items():
        spec = masks.spec(name)
        out[name] = (
            value if spec is None else value * torch.from_numpy(spec.to_array(tuple(value.shape)))
        )
    return out


def agree_in(rank, size, folder):
    os.chdir(folder)
    os.environ["TMPDIR"] = folder
    comm = init_gloo(rank, size)
    got = []
    for step in range(20):  # a mask of each, one after the other, as a search makes them
        scores = np.random.default_rng(100 * step + comm.node).random(50)
        got.append(comm.agree_mask(scores, keep=10 + step).tolist())
    return got, os.listdir(folder)


def test_R4_masks_never_travel_by_files(tmp_path):
    """Ranks that share a folder do not race for a file in it: there is none."""
    results = run_ranks(agree_in, str(tmp_path))
    for masks, files in results:
        assert masks == results[0][0] and files == []
        assert [sum(mask) for mask in masks] == list(range(10, 30))


def rebuilt(rank, size):
    comm = init_gloo(rank, size)
    plain, ours = ddp(cnn()), ddp(cnn())
    masks = masked(ours)
    state, seen = PrunexState(comm, masks), []

    def hook(state, bucket):
        seen[-1].append(tuple(masks.name_of(p) for p in bucket.parameters()))
        return prunex_hook(state, bucket)

    hook.__annotations__ = prunex_hook.__annotations__
    ours.register_comm_hook(state, hook)
    for step in range(4):
        seen.append([])
        for model in (plain, ours):
            model.zero_grad()
            backward(model, rank, step)
        models.assert_close(models.gradients(ours), kept(models.gradients(plain), masks), 1e-6)
    return [sorted(step) for step in seen]


def test_R6_buckets_are_rebuilt_after_the_first_iteration():
    """The same bucket numbers hold other parameters then; masks follow the parameters."""
    steps = run_ranks(rebuilt)[0]
    assert steps[0] != steps[1] and steps[1] == steps[2] == steps[3]


def local_data(rank, size):
    comm = init_gloo(rank, size)
    plain, ours = ddp(cnn()), ddp(cnn())
    masks = masked(ours, "lossless")
    ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    for step in range(3):
        for model in (plain, ours):
            model.zero_grad()
            # No gradient at all but on one rank, another in each step: only that one violates.
            scale = 1.0 if rank == step % size else 0.0
            (model(batch(rank, step)).square().mean() * scale).backward()
        models.assert_close(models.gradients(ours), models.gradients(plain), 1e-6)
    return comm.stats().calls


def test_R7_calls_do_not_depend_on_local_data():
    """What one rank's gradients hold must not give it more or fewer collectives than the others."""
    calls = run_ranks(local_data)
    assert calls[0] > 0 and calls == [calls[0]] * len(calls)


def test_R8_no_private_reducer_interfaces():
    """Those of DDP's reducer changed under their users' feet."""
    private = re.compile(r"\breducer\b|_rebuild_buckets|prepare_for_backward|_ddp_init_helper")
    for file in Path(prunex.torch.__file__).parent.glob("*.py"):
        assert not private.search(file.read_text(encoding="utf-8")), file.name


def let_go(rank, size, view, to_none):
    comm = init_gloo(rank, size)
    plain = ddp(cnn(), gradient_as_bucket_view=view)
    ours = ddp(cnn(), gradient_as_bucket_view=view)
    masks = masked(ours)
    ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    for step in range(4):
        for model in (plain, ours):
            for p in model.parameters():
                if p.grad is not None and not view:  # as fairscale's users do it
                    p.grad.detach_()
            model.zero_grad(set_to_none=to_none)
            backward(model, rank, step)
        models.assert_close(models.gradients(ours), kept(models.gradients(plain), masks), 1e-6)
    held = [weakref.ref(p.grad) for p in ours.parameters()]
    ours.zero_grad(set_to_none=True)
    if not view:  # DDP itself keeps the views of its buckets
        assert all(ref() is None for ref in held)


@pytest.mark.parametrize("view, to_none", [(False, True), (False, False), (True, True)])
def test_R13_gradients_are_let_go(view, to_none):
    run_ranks(let_go, view, to_none, nodes=(0, 1))


def reassigned(rank, size):
    comm = init_gloo(rank, size)

    def pruned():
        model = cnn()
        keep = torch.from_numpy(models.FILTERS).float()[:, None, None, None].expand(24, 13, 3, 3)
        prune.custom_from_mask(model[2], "weight", keep)
        return model

    plain, ours = ddp(pruned()), ddp(pruned())
    masks = MaskedParameters(ours).from_prune(ours)
    before = masks.spec("2.weight_orig")
    ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    models.train(plain, rank, 2)
    models.train(ours, rank, 2)
    assert comm.stats().violations == 0
    for model in (plain, ours):  # other filters, in a new tensor
        model.module[2].weight_mask = model.module[2].weight_mask.roll(1, 0).clone()
    assert masks.spec("2.weight_orig") is before  # a store of its own, not the module's buffer
    models.train(plain, rank, 2, first=2)
    models.train(ours, rank, 2, first=2)
    models.assert_close(models.state_of(ours), models.state_of(plain), 1e-6)
    violations = comm.stats().violations
    assert violations > 0  # noticed, dense
    masks.from_prune(ours)
    assert masks.spec("2.weight_orig") != before
    compact = comm.stats().calls_compact
    models.train(plain, rank, 2, first=4)
    models.train(ours, rank, 2, first=4)
    models.assert_close(models.state_of(ours), models.state_of(plain), 1e-6)
    assert comm.stats().violations == violations and comm.stats().calls_compact > compact


def test_R20_reassigned_mask_buffers():
    """Stale masks never change a result, and from_prune takes the new ones."""
    run_ranks(reassigned)


def no_hooks(rank, size):
    comm = init_gloo(rank, size)
    ours = ddp(cnn())
    masks = masked(ours)
    ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    backward(ours, rank, 0)
    models.assert_close(models.gradients(ours), kept(models.gradients(ours), masks), 0)
    assert all(not p._backward_hooks for p in ours.parameters())
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in ours.module.modules())
    return float(models.gradients(ours)["2.weight"].abs().sum())


def test_R24_masking_gradients_costs_no_pass_of_its_own():
    """Dropped gradients come back as zeros from the call itself: no hook on parameters, modules."""
    results = run_ranks(no_hooks)
    assert results[0] > 0 and results == [results[0]] * len(results)


def sharded(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    init_gloo(rank, size)
    model = cnn()
    mesh = init_device_mesh("cpu", (size,))
    weight = distribute_tensor(model[2].weight.detach(), mesh, [Shard(0)])
    model[2].weight = torch.nn.Parameter(weight)
    masks = MaskedParameters(model)
    with pytest.raises(ValueError, match="'2.weight' is a DTensor.*DistributedDataParallel"):
        masks.set("2.weight", prunex.MaskSpec.dims({0: models.FILTERS}))
    assert len(masks) == 0


def test_R25_sharded_parameters_are_refused():
    pytest.importorskip(
        "torch.distributed.device_mesh", reason="no device mesh for DTensor in this torch"
    )
    run_ranks(sharded, nodes=(0, 1))


def registry(rank, size):
    """As accelerate and Lightning do it: wrapper(hook), registered by keywords."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks

    comm = init_gloo(rank, size)
    wrapper = hooks.fp16_compress_wrapper
    plain, dense, ours = ddp(cnn()), ddp(cnn()), ddp(cnn())
    masks = masked(ours)
    plain.register_comm_hook(state=None, hook=wrapper(hooks.allreduce_hook))
    dense.register_comm_hook(state=PrunexState(comm), hook=wrapper(prunex_hook))
    ours.register_comm_hook(state=PrunexState(comm, masks), hook=wrapper(prunex_hook))
    sent = []
    for model in (plain, dense, ours):
        before = comm.stats().bytes_wire_sent
        for step in range(3):
            model.zero_grad()
            backward(model, rank, step)
        sent.append(comm.stats().bytes_wire_sent - before)
    models.assert_close(models.gradients(dense), models.gradients(plain), 2e-3)
    models.assert_close(models.gradients(ours), kept(models.gradients(plain), masks), 2e-3)
    assert not comm.is_leader or 0 < sent[2] < 0.8 * sent[1]


def test_R27_usable_from_trainers_registries():
    """Under PyTorch's compressing wrapper the masks apply to what they compressed."""
    run_ranks(registry)


def accumulated(rank, size, view):
    """No zero_grad between the backwards before and after the buckets are rebuilt."""
    comm = init_gloo(rank, size)
    plain, ours = (ddp(cnn(), gradient_as_bucket_view=view) for _ in range(2))
    masks = masked(ours)
    ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
    for step in range(6):
        for model in (plain, ours):
            if step % 3 == 0:
                model.zero_grad()
            backward(model, rank, step)
        found, wanted = models.gradients(ours), kept(models.gradients(plain), masks)
        models.assert_close(found, wanted, 1e-5)


@pytest.mark.parametrize("view", [False, True])
def test_R10_accumulation_while_buckets_are_rebuilt(view):
    run_ranks(accumulated, view)


def strided(rank, size, view):
    """Parameters and inputs of other memory orders, and a 1 x 1 convolution, whose strides are many
    at once."""
    comm = init_gloo(rank, size)
    results = []
    for parameters, inputs in (
        (torch.channels_last, torch.channels_last),
        (torch.channels_last, torch.contiguous_format),
        (torch.contiguous_format, torch.channels_last),
    ):
        plain, ours = (
            ddp(cnn().to(memory_format=parameters), gradient_as_bucket_view=view) for _ in range(2)
        )
        masks = masked(ours)
        ours.register_comm_hook(PrunexState(comm, masks), prunex_hook)
        for step in range(3):
            for model in (plain, ours):
                model.zero_grad()
                x = batch(rank, step).contiguous(memory_format=inputs)
                model(x).square().mean().backward()
            wanted = kept(models.gradients(plain), masks)
            models.assert_close(models.gradients(ours), wanted, 1e-5)
        results.append({n: p.grad.stride() for n, p in ours.module.named_parameters()})
    return results


@pytest.mark.parametrize("view", [False, True])
def test_R12_gradients_of_any_strides(view):
    results = run_ranks(strided, view)
    assert all(r == results[0] for r in results)

# SPDX-License-Identifier: Apache-2.0
"""MaskSpec against the library: what Python says is kept, the library keeps."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import prunex
from prunex import Communicator, Layout, MaskSpec, register_mask
from worlds import free_port

RNG = np.random.default_rng(5)


def reduced(spec, shape, strides=None):
    """What the library keeps of a tensor of ones, as booleans of the logical shape."""
    spec = spec.replace(contract="project")
    count = int(np.prod(shape))
    with register_mask(None, spec, shape, strides, "float32", "t") as mask:
        assert mask.info().count == count and mask.info().kept == spec.kept(shape)
        flat = np.ones(count, np.float32)
        with Communicator(0, 1, root=f"127.0.0.1:{free_port()}", timeout=10) as comm:
            comm.all_reduce(flat, layout=Layout([(0, count, mask)], count))
    if strides is None:
        return flat.reshape(shape) != 0
    return np.lib.stride_tricks.as_strided(flat, shape, [s * 4 for s in strides]) != 0


SPECS = [
    (MaskSpec.dims({0: RNG.random(8) < 0.5, 1: RNG.random(6) < 0.5}), (8, 6, 3, 3)),
    (MaskSpec.dims({1: [True, False]}), (3, 2)),
    (MaskSpec.dims({}), (4, 5)),
    (MaskSpec.blocks((4, 2), RNG.random((2, 3)) < 0.5), (8, 6)),
    (MaskSpec.blocks((3, 4), RNG.random((3, 2)) < 0.5), (8, 6)),
    (MaskSpec.blocks((2, 0), [1, 0, 1, 1]), (8, 6)),
    (MaskSpec.nm(2, 4, 1, np.tile([1, 0, 0, 1], (5, 2))), (5, 8)),
    (MaskSpec.elements(RNG.random((7, 5)) < 0.3), (7, 5)),
    (MaskSpec.ranges([(0, 3), (10, 5), (20, 1)]), (3, 7)),
    (MaskSpec.elements(RNG.random((8, 4, 3, 3)) < 0.3), (8, 4, 3, 3)),
]


@pytest.mark.parametrize("spec, shape", SPECS)
def test_library_keeps_what_python_says(spec, shape):
    np.testing.assert_array_equal(reduced(spec, shape), spec.to_array(shape))
    assert spec.kept(shape) == spec.to_array(shape).sum()


@pytest.mark.parametrize(
    "spec",
    [
        SPECS[0][0],
        SPECS[9][0],
        MaskSpec.ranges([(3, 70), (100, 9)]),
        MaskSpec.blocks((2, 3, 0, 0), [1, 0, 0, 1, 1, 0, 1, 1]),
    ],
)
def test_channels_last(spec):
    shape = (8, 6, 3, 3) if spec is SPECS[0][0] else (8, 4, 3, 3)
    channels = shape[1]
    strides = (channels * 9, 1, channels * 3, channels)
    np.testing.assert_array_equal(reduced(spec, shape, strides), spec.to_array(shape))


def test_E2_wrong_length_is_refused():
    with pytest.raises(ValueError, match="(?s)1000.*1001|1001.*1000"):
        register_mask(np.zeros(1001, np.float32), MaskSpec.elements(np.ones(1000, bool)))
    with pytest.raises(ValueError, match="3.*4|4.*3"):
        register_mask(np.zeros((4, 2), np.float32), MaskSpec.dims({0: [1, 0, 1]}))


def test_wrong_descriptions():
    for make in (
        lambda: MaskSpec.dims({0: [0.5, 1]}),
        lambda: MaskSpec.dims({0: np.ones((2, 2))}),
        lambda: MaskSpec.dims({9: [1]}),
        lambda: MaskSpec.dims({0: [1]}, contract="maybe"),
        lambda: MaskSpec.ranges([(5, 2), (6, 1)]),
        lambda: MaskSpec.blocks((-1,), [1]),
        lambda: register_mask(None, MaskSpec.dims({}), (2, 2)),
        lambda: register_mask(None, MaskSpec.dims({}), (2, 2), (3, 1), "float32"),
        lambda: register_mask(None, MaskSpec.dims({}), (1,) * 9, None, "float32"),
    ):
        with pytest.raises(ValueError):
            make()


def test_specs_are_values():
    a, b = MaskSpec.dims({0: [1, 0]}), MaskSpec.dims({0: np.array([True, False])})
    assert a == b and hash(a) == hash(b) and a != b.replace(epoch=1)
    assert a != MaskSpec.dims({0: [1, 1]}) and a.digest() == b.replace(epoch=4).digest()
    for spec, shape in SPECS:
        again = pickle.loads(pickle.dumps(spec))
        assert again == spec
        np.testing.assert_array_equal(again.to_array(shape), spec.to_array(shape))
    keep = np.array([True, False])
    spec = MaskSpec.dims({0: keep})
    keep[:] = True
    assert spec.kept((2,)) == 1  # a copy


def test_infer():
    keep = np.outer(RNG.random(8) < 0.5, RNG.random(6) < 0.5)[:, :, None, None] & np.ones(
        (1, 1, 3, 3), bool
    )
    spec = MaskSpec.infer(keep)
    assert spec.kind == "dims"
    np.testing.assert_array_equal(spec.to_array(keep.shape), keep)
    scattered = RNG.random((8, 6)) < 0.5
    assert MaskSpec.infer(scattered).kind == "elements"
    nothing = MaskSpec.infer(np.zeros((3, 4)))
    assert nothing.kept((3, 4)) == 0
    assert MaskSpec.infer(np.ones((3, 4))).kept((3, 4)) == 12


def test_same_buffer_with_another_length_is_refused():
    x = np.zeros(64, np.float32)
    mask = register_mask(x, MaskSpec.dims({}), name="x")
    with pytest.raises(prunex.Error, match="(?i)overlap|regist"):
        register_mask(x[:32], MaskSpec.dims({}), name="part")
    mask.close()


def test_lists_and_torch_tensors():
    torch = pytest.importorskip("torch")
    a = MaskSpec.dims({0: torch.tensor([True, False])})
    assert a == MaskSpec.dims({0: [True, False]})
    assert MaskSpec.elements(torch.ones(2, 3)).kept((2, 3)) == 6

# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training without PyTorch: gradients of JAX (or, where it is not installed, by hand).

    build/tools/prunex run -n 4 --nodes 2 -- python3 jax_train.py

A perceptron learns which of its inputs matter. Every few steps the ranks agree on the hidden units
to keep; their rows and columns alone cross the network. Host memory only: arrays on a device are
copied to it and back.
"""

import numpy as np
import prunex

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = None

INPUTS, HIDDEN, KEEP, STEPS = 64, 512, 128, 120
SIZES = {"w1": (HIDDEN, INPUTS), "b1": (HIDDEN,), "w2": (1, HIDDEN)}


def loss_of(p, x, y):
    hidden = jnp.maximum(x @ p["w1"].T + p["b1"], 0)
    return jnp.mean((hidden @ p["w2"].T - y) ** 2)


def by_hand(p, x, y):
    """Loss and gradients of the same function."""
    hidden = np.maximum(x @ p["w1"].T + p["b1"], 0)
    error = hidden @ p["w2"].T - y
    back = 2 * error / len(x)
    inner = (back @ p["w2"]) * (hidden > 0)
    return np.mean(error**2), {"w1": inner.T @ x, "b1": inner.sum(0), "w2": back.T @ hidden}


def spec_of(name, keep):
    """What a parameter keeps: hidden units are rows of w1 and b1, columns of w2. "project": the
    result is +0 in dropped places whatever their gradients are."""
    return prunex.MaskSpec.dims({1 if name == "w2" else 0: keep}, contract="project")


def main():
    value_and_grad = jax.jit(jax.value_and_grad(loss_of)) if jax else by_hand
    start = np.random.default_rng(0)  # the same on all ranks
    params = {n: (start.normal(size=s) * 0.1).astype(np.float32) for n, s in SIZES.items()}
    truth = start.normal(size=(INPUTS, 1)).astype(np.float32)
    with prunex.Communicator(timeout=60) as comm:
        own = np.random.default_rng(1000 + comm.rank)  # the data differ
        keep = np.ones(HIDDEN, bool)
        masks, segments, at = {}, [], 0
        for name, size in SIZES.items():
            count = int(np.prod(size))
            masks[name] = prunex.register_mask(
                None, spec_of(name, keep), shape=size, dtype="float32", name=name
            )
            segments.append((at, count, masks[name]))
            at += count
        flat = np.zeros(at, np.float32)  # all gradients in one buffer: one call per step
        first, dense_bytes = None, 0
        with prunex.Layout(segments, at) as layout:
            for step in range(STEPS):
                if step in (30, 45, 60):
                    scores = np.square(params["w1"]).sum(1) * np.square(params["w2"]).sum(0)
                    wanted = {30: 2 * KEEP, 45: 3 * KEEP // 2, 60: KEEP}[step]
                    keep = comm.agree_mask(scores, keep=wanted, incumbents=keep, hysteresis=0.25)
                    for name, mask in masks.items():
                        mask.update(spec_of(name, keep))
                    for name in params:
                        params[name][(slice(None), ~keep) if name == "w2" else ~keep] = 0
                if step == 30:
                    dense_bytes = comm.stats().bytes_wire_sent / 30
                x = own.normal(size=(64, INPUTS)).astype(np.float32)
                loss, grads = value_and_grad(params, x, np.abs(x @ truth))
                first = float(loss) if first is None else first
                for (offset, count, _), name in zip(segments, SIZES):
                    flat[offset : offset + count] = np.asarray(grads[name]).reshape(-1)
                before = comm.stats().bytes_wire_sent
                comm.all_reduce(flat, op="avg", layout=layout)
                sent = comm.stats().bytes_wire_sent - before
                for (offset, count, _), name in zip(segments, SIZES):
                    part = flat[offset : offset + count].reshape(SIZES[name])
                    params[name] = params[name] - np.float32(0.01) * part
        for mask in masks.values():
            mask.close()
        if comm.rank == 0:
            print(
                f"gradients by {'JAX' if jax else 'numpy'}; loss {first:.2f} -> {float(loss):.2f}"
            )
            print(f"kept {int(keep.sum())} of {HIDDEN} hidden units")
            if dense_bytes:
                print(f"bytes between nodes: {sent / dense_bytes:.3f} of those before pruning")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Finds residual-safe families from the traced graph (torch.fx).

The graph is run once on an example; beside every tensor goes a label tensor (groups_atoms.py).
Producers (convolution, Linear) give fresh atoms, consumers note which atoms their input dimension
holds, element-wise operations join what meets, moves of data (flatten, cat, chunk, transpose, ...)
are run on the labels themselves. Whatever mixes channels in an unknown way pins them: they stay
dense, which is always right.
"""

from __future__ import annotations

import copy
import dis
import inspect
from collections.abc import Collection
from contextlib import contextmanager

import numpy as np
import torch
from torch import fx, nn

from prunex.torch.groups import FILTER, Family, Member, make_family, tensors_of
from prunex.torch.groups_atoms import Atoms, fixed
from prunex.torch.groups_ops import label_call


class UntraceableError(RuntimeError):
    """The model's graph cannot be traced; `module` is the qualified name that stops it."""

    def __init__(self, module: str, kind: str, reason: str) -> None:
        where = f"module '{module}' ({kind})" if module else f"the model itself ({kind})"
        remedy = (
            f"Pass opaque=['{module}'] to keep what it reads and gives dense, or give"
            if (module)
            else "Give"
        )
        super().__init__(
            f"cannot trace {where}: {reason}. {remedy} its groups by hand with manual_family()"
        )
        self.module = module


class _ModelTracer(fx.Tracer):
    """torch.fx's tracer that knows where it was when it failed."""

    def __init__(self, opaque: set[str]) -> None:
        super().__init__()
        self._opaque = opaque
        self.path: list[tuple[str, str]] = []

    def is_leaf_module(self, m: nn.Module, qualified: str) -> bool:
        return qualified in self._opaque or super().is_leaf_module(m, qualified)

    def call_module(self, m, forward, args, kwargs):
        self.path.append((self.path_of_module(m), type(m).__name__))
        result = super().call_module(m, forward, args, kwargs)
        self.path.pop()  # not in a finally: after a failure the path must still stand
        return result


def _unpack(proxy: fx.Proxy):
    """What iterating a proxy gives: `a, b = x.shape` tells how many items there are."""
    frame = inspect.currentframe()
    caller = frame.f_back if frame is not None else None
    if caller is not None:
        for instruction in dis.get_instructions(caller.f_code):
            if instruction.offset == caller.f_lasti and instruction.opname == "UNPACK_SEQUENCE":
                return (proxy[i] for i in range(instruction.argval))
    return proxy.tracer.iter(proxy)


@contextmanager
def _unpacking():
    """torch.fx 1.13, Debian's for one, looks up the instruction as Python before 3.11 numbered it."""
    own = fx.Proxy.__iter__
    fx.Proxy.__iter__ = _unpack
    try:
        yield
    finally:
        fx.Proxy.__iter__ = own


@contextmanager
def evaluation(model: nn.Module):
    """Evaluation mode without gradients; every module's own mode is put back."""
    modes = [(m, m.training) for m in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def trace(model: nn.Module, opaque: Collection[str] = ()) -> fx.GraphModule:
    """The model's graph; UntraceableError names the module that cannot be traced."""
    tracer = _ModelTracer(set(opaque))
    try:
        with _unpacking():
            graph = tracer.trace(model)
    except Exception as error:  # torch.fx raises whatever the model's own code raises
        name, kind = tracer.path[-1] if tracer.path else ("", type(model).__name__)
        raise UntraceableError(name, kind, str(error).split("\n")[0]) from error
    return fx.GraphModule(tracer.root, graph)


def _shapes(result):
    if isinstance(result, torch.Tensor):
        return tuple(result.shape)
    if isinstance(result, (tuple, list)) and any(isinstance(r, torch.Tensor) for r in result):
        return [_shapes(r) for r in result]
    return None


class _Labeller(fx.Interpreter):
    """Runs the graph and labels every node."""

    def __init__(self, graph: fx.GraphModule, model: nn.Module, residual: str, opaque: set[str]):
        super().__init__(graph)
        self.atoms = Atoms()
        self.residual = residual
        self.opaque = opaque
        self.labels: dict[fx.Node, object] = {}
        self.shapes: dict[fx.Node, object] = {}  # of tensors; of nests of tensors, as lists
        self.values: dict[fx.Node, object] = {}  # of everything else
        self.heads: list[np.ndarray] = []  # atoms of attention heads
        self.axes: dict[tuple[str, int], tuple[np.ndarray, str]] = {}
        self.tensors, self.alias = tensors_of(model)
        self.used_raw: set[str] = set()

    # ---- the axes of parameters

    def axis(self, name: str, dim: int, atoms: np.ndarray, role: str) -> np.ndarray:
        """Notes that places of `name`'s dimension `dim` are `atoms`; a parameter used twice joins
        both. Returns the atoms to go on with."""
        key = (self.alias.get(name, name), dim)
        if key in self.axes:
            known = self.axes[key][0]
            self.atoms.join(known, atoms)
            return known
        self.axes[key] = (np.asarray(atoms, np.int64), role)
        return atoms

    def produce(self, name: str, dim: int, count: int, repeat: int = 1) -> np.ndarray:
        """Atoms of a producer's output dimension: fresh ones, or those of its earlier use. repeat:
        equal places of that many convolution groups share an atom."""
        key = (self.alias.get(name, name), dim)
        if key in self.axes:
            return self.axes[key][0]
        return self.axis(
            name, dim, np.tile(self.atoms.new(count // repeat, key[0]), repeat), FILTER
        )

    def channel_atoms(self, label: torch.Tensor, dim: int, count: int) -> np.ndarray:
        """Atoms along `dim`; a label that varies elsewhere too cannot be cut and is pinned."""
        dim %= label.dim()
        if any(size > 1 for d, size in enumerate(label.shape) if d != dim):
            self.atoms.pin(label.numpy())
            return np.zeros(count, np.int64)
        return label.reshape(-1).expand(count).numpy().copy()

    # ---- running the graph

    def run_node(self, node: fx.Node):
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        result = super().run_node(node)
        self.shapes[node] = _shapes(result)
        if self.shapes[node] is None:
            self.values[node] = result
        self.labels[node] = self._label(node, args, kwargs, result)
        return result

    def _label(self, node: fx.Node, args, kwargs, result):
        if node.op == "get_attr":
            name = str(node.target)
            self.used_raw.add(self.alias.get(name, name))
        if node.op == "output":
            self.pin_inputs(node)
            return None
        if node.op in ("placeholder", "get_attr"):
            return self.unknown(result)
        if node.op == "call_module" and node.target in self.opaque:
            return self.pinned(node, result)
        return label_call(self, node, args, kwargs, result)

    def label_of(self, node: fx.Node):
        return self.labels.get(node)

    def unknown(self, result):
        """FIXED labels for a result: a tensor, a nest of them, or None for anything else."""
        if isinstance(result, torch.Tensor):
            return fixed(result.dim())
        if isinstance(result, (tuple, list)):
            return [self.unknown(r) for r in result]
        return None

    def pin_inputs(self, node: fx.Node) -> None:
        for source in node.all_input_nodes:
            self._pin(self.labels.get(source))

    def _pin(self, label) -> None:
        if isinstance(label, torch.Tensor):
            self.atoms.pin(label.numpy())
        elif isinstance(label, list):
            for part in label:
                self._pin(part)

    def pinned(self, node: fx.Node, result):
        """What an operation that mixes channels does: its inputs and results stay dense."""
        self.pin_inputs(node)
        return self.unknown(result)

    # ---- families

    def families(self) -> list[Family]:
        for (name, _), (atoms, _) in self.axes.items():
            if name in self.used_raw:  # also read by the model's own code, in ways not followed
                self.atoms.pin(atoms)
        roots = {key: self.atoms.find(atoms) for key, (atoms, _) in self.axes.items()}
        family_of = self._join_owners(roots)
        heads = {int(r) for atoms in self.heads for r in self.atoms.find(atoms).reshape(-1)}
        found: dict[str, list[int]] = {}
        for root in sorted({int(r) for rs in roots.values() for r in rs} - {0}):
            found.setdefault(family_of[root], []).append(root)
        out = []
        for owner, members_of in found.items():
            number = {root: i for i, root in enumerate(members_of)}
            members = []
            for key, rs in roots.items():
                index = np.array([number.get(int(r), -1) for r in rs], np.int64)
                if (index >= 0).any():
                    members.append(Member(key[0], key[1], index, self.axes[key][1]))
            # One group cannot be dropped without ending the network.
            if len(members_of) > 1 and any(m.role == FILTER for m in members):
                name = owner.rpartition(".")[0] or owner
                kind = "heads" if heads & set(members_of) else "channels"
                out.append(make_family(name, kind, len(members_of), members, self.tensors))
        return out

    def _join_owners(self, roots) -> dict[int, str]:
        """Root -> the first of the producers that share any group with its own producer."""
        owners: dict[str, str] = {}

        def top(owner: str) -> str:
            while owners.setdefault(owner, owner) != owner:
                owner = owners[owner]
            return owner

        makers: dict[int, set[str]] = {}
        every = np.arange(len(self.atoms.owner))
        for atom, root in zip(every.tolist(), self.atoms.find(every).tolist()):
            if root:
                makers.setdefault(root, set()).add(self.atoms.owner[atom])
        order = {name: i for i, name in enumerate(dict.fromkeys(self.atoms.owner))}
        for names in makers.values():
            ordered = sorted(names, key=order.__getitem__)
            for a, b in zip(ordered, ordered[1:]):
                x, y = sorted((top(a), top(b)), key=order.__getitem__)
                owners[y] = x
        return {root: top(next(iter(names))) for root, names in makers.items()}


def trace_families(
    model: nn.Module, example, *, residual: str = "skip", opaque: Collection[str] = ()
) -> list[Family]:
    """Families of all traced producers, with every member (find_groups marks what is masked)."""
    if _ModelTracer(set()).is_leaf_module(model, ""):
        return []  # one of torch.nn's own: nothing to see for the tracer
    args = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    with evaluation(model):
        labeller = _Labeller(trace(model, opaque), model, residual, set(opaque))
        labeller.run(*copy.deepcopy(args))
    return labeller.families()

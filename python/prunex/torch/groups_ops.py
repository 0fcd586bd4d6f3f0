# SPDX-License-Identifier: Apache-2.0
"""How labels go through each kind of operation of the traced graph.

`state` is the labeller of groups_trace.py. Anything not named here is pinned.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import fx, nn

from prunex.torch.groups import BUFFER, CHANNEL, FILTER, FOLLOW
from prunex.torch.groups_atoms import along, fixed, squeeze_label

_ELEMENTWISE = set(
    "add sub mul div truediv floordiv iadd isub imul itruediv radd rsub rmul true_divide neg abs "
    "pow sqrt rsqrt exp log clamp clip relu relu_ relu6 leaky_relu leaky_relu_ elu selu celu gelu "
    "silu mish sigmoid tanh hardtanh hardswish hardsigmoid softplus softsign logsigmoid dropout "
    "dropout1d dropout2d dropout3d alpha_dropout feature_dropout add_ sub_ mul_ div_ clamp_ "
    "sigmoid_ tanh_ masked_fill masked_fill_ where maximum minimum to float half bfloat16 double "
    "type type_as clone detach contiguous square".split()
)
_ADDITIONS = {"add", "sub", "iadd", "isub", "radd", "rsub", "add_", "sub_"}
_MOVES = set(
    "flatten reshape view permute transpose unsqueeze squeeze chunk split tensor_split cat concat "
    "stack getitem unbind movedim swapaxes narrow select expand expand_as repeat roll flip t "
    "unflatten pixel_shuffle pixel_unshuffle channel_shuffle swapdims concatenate view_as "
    "reshape_as rearrange".split()
)
_SPATIAL = set(
    "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
    "adaptive_max_pool3d boolean_dispatch interpolate upsample pad lp_pool2d".split()
)
_REDUCTIONS = {"mean", "sum", "amax", "amin"}
_SOFTMAX = {"softmax", "log_softmax"}
_MATMUL = {"matmul", "bmm"}
_MOVING_MODULES = (nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle)


def _own_classes(file) -> tuple[type, ...]:
    """Classes a file of torch.nn.modules defines, without those it imports."""
    every = [c for c in vars(file).values() if isinstance(c, type)]
    return tuple(c for c in every if c.__module__ == file.__name__)


_SPATIAL_MODULES = (
    nn.Upsample,
    *_own_classes(nn.modules.pooling),
    *_own_classes(nn.modules.padding),
)
_ACTIVATIONS = tuple(
    c
    for c in _own_classes(nn.modules.activation)
    if "Softm" not in c.__name__
    and c.__name__ not in ("MultiheadAttention", "GLU", "PReLU", "LogSoftmax")
)


def label_call(state, node: fx.Node, args, kwargs, result):
    """The label of a call's result; joins, pins and notes axes on the way."""
    if node.op == "call_module":
        return _module(state, node, args, kwargs, result)
    target = node.target
    name = target if isinstance(target, str) else str(getattr(target, "__name__", ""))
    name = name.strip("_") if name.startswith("__") else name
    if not _has_tensor(result):
        return None  # sizes, shapes, dtypes
    if name in _MOVES:
        return _move(state, node, args, kwargs, result, _caller(node))
    if name in _ELEMENTWISE:
        return _elementwise(state, node, result, name in _ADDITIONS)
    if name in _SPATIAL:
        return _spatial(state, node, result)
    if name in _REDUCTIONS:
        return _reduce(state, node, args, kwargs, result)
    if name in _SOFTMAX:
        return _softmax(state, node, args, kwargs, result)
    if name in _MATMUL:
        return _matmul(state, node, result)
    if name == "scaled_dot_product_attention":
        return _attention(state, node, args, kwargs, result)
    return state.pinned(node, result)


def _has_tensor(result) -> bool:
    if isinstance(result, (tuple, list)):
        return any(_has_tensor(r) for r in result)
    return isinstance(result, torch.Tensor)


def _caller(node: fx.Node):
    if node.op == "call_method":
        method = str(node.target)
        return lambda first, *rest, **named: getattr(first, method)(*rest, **named)
    return node.target


def _module(state, node, args, kwargs, result):
    module = state.fetch_attr(node.target)
    path = node.target
    if isinstance(module, nn.modules.conv._ConvNd):
        return _conv(state, node, module, path, result)
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return _linear(state, node, module, path, result)
    if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)):
        return _norm(state, node, module, path, 1)
    if isinstance(module, nn.PReLU):
        if module.num_parameters == 1:
            return _elementwise(state, node, result, False)
        return _norm(state, node, module, path, 1)
    if isinstance(module, nn.Embedding):
        state.axis(f"{path}.weight", 1, np.zeros(module.embedding_dim, np.int64), FILTER)
        return state.pinned(node, result)
    if isinstance(module, (nn.Softmax, nn.LogSoftmax)):
        return _softmax(state, node, args, {"dim": module.dim}, result)
    if isinstance(module, (nn.modules.dropout._DropoutNd, nn.Identity) + _ACTIVATIONS):
        return _elementwise(state, node, result, False)
    if isinstance(module, _MOVING_MODULES):
        return _move(state, node, args, kwargs, result, module)
    if isinstance(module, _SPATIAL_MODULES):
        return _spatial(state, node, result)
    return state.pinned(node, result)


def _conv(state, node, module, path, result):
    """Convolutions of every kind. Grouped: place j of all convolution groups is one group, so that
    the groups stay equal in size; depthwise: the filter is its own input channel."""
    label = state.label_of(node.all_input_nodes[0])
    channel = result.dim() - (len(module.kernel_size) + 1)
    inputs = state.channel_atoms(label, channel, module.in_channels)
    weight, groups = f"{path}.weight", module.groups
    out_dim, in_dim = (1, 0) if module.transposed else (0, 1)
    if groups > 1 and groups == module.in_channels:
        outputs = np.repeat(inputs, module.out_channels // groups)
        if module.transposed and module.out_channels != groups:
            state.atoms.pin(inputs)  # dimension 1 counts outputs per channel: no cut keeps them
        elif module.transposed:
            state.axis(weight, 0, inputs, FILTER)
        else:
            state.axis(weight, 0, outputs, FILTER)
    else:
        per_group = module.in_channels // groups
        for g in range(1, groups):
            state.atoms.join(inputs[:per_group], inputs[g * per_group : (g + 1) * per_group])
        if module.transposed:
            state.axis(weight, 0, inputs, CHANNEL)
            per_out = state.produce(weight, 1, module.out_channels // groups)
            outputs = np.tile(per_out, groups)
        else:
            state.axis(weight, 1, inputs[:per_group], CHANNEL)
            outputs = state.produce(weight, 0, module.out_channels, repeat=groups)
    if module.bias is not None:
        state.axis(f"{path}.bias", 0, outputs, FOLLOW)
    return along(outputs, channel, result.dim())


def _linear(state, node, module, path, result):
    label = state.label_of(node.all_input_nodes[0])
    inputs = state.channel_atoms(label, -1, module.in_features)
    state.axis(f"{path}.weight", 1, inputs, CHANNEL)
    outputs = state.produce(f"{path}.weight", 0, module.out_features)
    if module.bias is not None:
        state.axis(f"{path}.bias", 0, outputs, FOLLOW)
    return along(outputs, result.dim() - 1, result.dim())


def _norm(state, node, module, path, channel):
    """Per-channel scale, shift and running statistics: they follow."""
    label = state.label_of(node.all_input_nodes[0])
    own = {**module._parameters, **module._buffers}
    sized = {k: t for k, t in own.items() if t is not None and t.dim() == 1}
    if sized:
        count = len(next(iter(sized.values())))
        atoms = state.channel_atoms(label, channel, count)
        for leaf, tensor in sized.items():
            role = FOLLOW if isinstance(tensor, nn.Parameter) else BUFFER
            state.axis(f"{path}.{leaf}", 0, atoms, role)
    return label


def _elementwise(state, node, result, addition: bool):
    """Joins what meets. An operand that is broadcast over channels does not tie them."""
    operands = []
    for source in node.all_input_nodes:
        label, shape = state.label_of(source), state.shapes.get(source)
        if isinstance(label, torch.Tensor) and shape is not None:
            lead = result.dim() - label.dim()
            operands.append((label.reshape((1,) * lead + label.shape), (1,) * lead + shape))
    out = None
    for label, shape in sorted(operands, key=lambda o: -o[0].numel()):
        if out is None:
            out = label
            continue
        over = [d for d in range(result.dim()) if out.shape[d] > 1]
        if over and all(shape[d] == 1 for d in over):
            state.atoms.pin(label.numpy())  # one place that acts on all channels
            continue
        a, b = torch.broadcast_tensors(out, label)
        ra, rb = state.atoms.find(a.numpy()), state.atoms.find(b.numpy())
        if addition and state.residual == "skip" and not np.array_equal(ra, rb):
            state.atoms.pin(ra)
            state.atoms.pin(rb)
        else:
            state.atoms.join(ra, rb)
        out = a.contiguous()
    return out if out is not None else state.unknown(result)


def _spatial(state, node, result):
    """Pooling, padding and resampling inside channels: the channel dimension must come through."""
    source = node.all_input_nodes[0]
    label, shape = state.label_of(source), state.shapes.get(source)
    if not isinstance(result, torch.Tensor) or shape is None or len(shape) != result.dim():
        return state.pinned(node, result)
    cut = [d for d, size in enumerate(label.shape) if size > 1]
    if any(d != 1 or result.shape[d] != shape[d] for d in cut):
        return state.pinned(node, result)
    return label


def _move(state, node, args, kwargs, result, call):
    """Runs a move of data on the labels themselves."""

    def expanded(source):
        label, value = state.label_of(source), state.shapes.get(source)
        if isinstance(label, torch.Tensor):
            return label.expand(value).contiguous()
        if isinstance(label, list):
            return [part.expand(s).contiguous() for part, s in zip(label, value)]
        return state.values[source]

    label_args = fx.map_arg(node.args, expanded)
    label_kwargs = fx.map_arg(node.kwargs, expanded)
    try:
        moved = call(*label_args, **label_kwargs)
    except (RuntimeError, TypeError):
        return state.pinned(node, result)
    return _squeezed(moved)


def _squeezed(moved):
    if isinstance(moved, torch.Tensor):
        return squeeze_label(moved)
    return [_squeezed(part) for part in moved]


def _argument(args, kwargs, position: int, name: str, default=None):
    return args[position] if len(args) > position else kwargs.get(name, default)


def _reduce(state, node, args, kwargs, result):
    label = state.label_of(node.all_input_nodes[0])
    dim = _argument(args, kwargs, 1, "dim")
    dims = range(label.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = {d % label.dim() for d in dims}
    if any(label.shape[d] > 1 for d in dims):
        return state.pinned(node, result)
    if _argument(args, kwargs, 2, "keepdim", False) or result.dim() == label.dim():
        return label
    return label.reshape([s for d, s in enumerate(label.shape) if d not in dims])


def _softmax(state, node, args, kwargs, result):
    label = state.label_of(node.all_input_nodes[0])
    dim = _argument(args, kwargs, 1, "dim")
    if dim is None or label.shape[dim] > 1:
        return state.pinned(node, result)
    return label


def _matmul(state, node, result):
    """Batched products of attention, [.., H, T, D] x [.., H, D, T] and [.., H, T, T] x [.., H, T,
    D]: what is summed over must be constant or tied; heads of both operands are one."""
    nodes = list(node.args[:2])
    labels = [state.label_of(n) if isinstance(n, fx.Node) else None for n in nodes]
    if any(not isinstance(x, torch.Tensor) or x.dim() != result.dim() for x in labels):
        return state.pinned(node, result)
    left, right = labels[0], labels[1].transpose(-1, -2)
    if left.shape[-1] > 1 or right.shape[-1] > 1:
        return _scores(state, node, left, right, result)
    return _weighted(state, left, labels[1], result)


def _scores(state, node, left, right, result):
    """q k^T: the elements of a head are tied, q's with k's; the result varies by head."""
    if left.shape[-2] > 1 or right.shape[-2] > 1:
        return state.pinned(node, result)
    a, b = torch.broadcast_tensors(left, right)
    state.atoms.join(a.numpy(), b.numpy())
    head = a.narrow(-1, 0, 1)
    state.heads.append(head.numpy())
    state.atoms.join(a.numpy(), head.expand(a.shape).numpy())
    return squeeze_label(head)


def _weighted(state, weights, values, result):
    """attention x v: v's elements follow the head whose weights they are multiplied with."""
    if weights.shape[-2] > 1 or values.shape[-2] > 1:
        state.atoms.pin(weights.numpy())
        state.atoms.pin(values.numpy())
        return fixed(result.dim())
    if weights.numel() > 1 or not state.atoms.is_fixed(weights):
        a, b = torch.broadcast_tensors(weights, values)
        state.atoms.join(a.numpy(), b.numpy())
        return squeeze_label(b)
    return values


def _attention(state, node, args, kwargs, result):
    """torch.nn.functional.scaled_dot_product_attention(q, k, v, ...)."""
    named = {**dict(zip(("query", "key", "value"), node.args)), **node.kwargs}
    labels = [state.label_of(named.get(k)) for k in ("query", "key", "value")]
    if any(not isinstance(x, torch.Tensor) or x.dim() != result.dim() for x in labels):
        return state.pinned(node, result)
    query, key, value = labels
    weights = _scores(state, node, query, key, result)
    return _weighted(state, weights, value, result)

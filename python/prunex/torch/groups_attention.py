# SPDX-License-Identifier: Apache-2.0
"""Families of PyTorch's own transformer modules, which torch.fx does not look into.

nn.MultiheadAttention: one group per head: its rows of the query, key and value projections (and
their bias) and its columns of the output projection. nn.TransformerEncoderLayer and DecoderLayer:
one group per hidden unit of the feed-forward part. The residual stream stays dense: LayerNorm mixes
it. Attention written with plain Linear layers is found by the tracer instead.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from prunex.torch.groups import CHANNEL, FILTER, FOLLOW, Family, Member, make_family, tensors_of


def attention_families(model: nn.Module) -> list[Family]:
    """Head and feed-forward families of every such module, in module order."""
    tensors, alias = tensors_of(model)
    out = []
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            family = _heads(path, module, tensors, alias)
        elif isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
            family = _feed_forward(path, tensors, alias)
        else:
            continue
        if family.groups > 1:
            out.append(family)
    return out


def _heads(path: str, module: nn.MultiheadAttention, tensors, alias) -> Family:
    prefix = f"{path}." if path else ""
    heads = np.repeat(np.arange(module.num_heads, dtype=np.int64), module.head_dim)
    entries = [
        ("in_proj_weight", 0, np.tile(heads, 3), FILTER),
        ("q_proj_weight", 0, heads, FILTER),
        ("k_proj_weight", 0, heads, FILTER),
        ("v_proj_weight", 0, heads, FILTER),
        ("in_proj_bias", 0, np.tile(heads, 3), FOLLOW),
        ("bias_k", 2, heads, FOLLOW),
        ("bias_v", 2, heads, FOLLOW),
        ("out_proj.weight", 1, heads, CHANNEL),
    ]
    members = [
        Member(alias[prefix + leaf], dim, index, role)
        for leaf, dim, index, role in entries
        if prefix + leaf in alias
    ]
    return make_family(path or "attention", "heads", module.num_heads, members, tensors)


def _feed_forward(path: str, tensors, alias) -> Family:
    prefix = f"{path}." if path else ""
    units = tensors[alias[prefix + "linear1.weight"]].shape[0]
    index = np.arange(units, dtype=np.int64)
    members = [Member(alias[prefix + "linear1.weight"], 0, index, FILTER)]
    if prefix + "linear1.bias" in alias:
        members.append(Member(alias[prefix + "linear1.bias"], 0, index, FOLLOW))
    members.append(Member(alias[prefix + "linear2.weight"], 1, index, CHANNEL))
    return make_family(f"{prefix}linear1", "mlp", units, members, tensors)

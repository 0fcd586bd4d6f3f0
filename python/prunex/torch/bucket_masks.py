# SPDX-License-Identifier: Apache-2.0
"""Masks of the gradients that lie in a flat buffer, as DDP's buckets hold them."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any, Dict, Iterable, List, Optional, Tuple

import torch

from .._memory import dense_strides
from ..layout import Layout
from ..masks import Mask, MaskSpec, register_mask
from .masked import MaskedParameters

__all__ = ["MaskCache", "BucketMasks", "Dropped"]

_log = logging.getLogger("prunex.torch")
_MAX_LAYOUTS = 256
_MISSES_BEFORE_A_WORD = 8


class MaskCache:
    """Registered masks by name and memory order, and layouts of them by content."""

    def __init__(self) -> None:
        self._masks: Dict[Tuple[Any, ...], Tuple[Mask, MaskSpec]] = {}
        self._layouts: "OrderedDict[Tuple[Any, ...], Optional[Layout]]" = OrderedDict()
        self._version = -1

    def fresh(self, version: int) -> None:
        """Forgets the layouts if the masks have changed since."""
        if version != self._version:
            self._layouts.clear()
            self._version = version

    def mask(self, name: str, spec: MaskSpec, parameter: torch.Tensor, dtype: torch.dtype) -> Mask:
        """The registered mask of a parameter as a bucket of this dtype holds it."""
        shape = tuple(parameter.shape)
        # A bucket keeps the memory order of dense parameters; others it holds row-major.
        strides = dense_strides(shape, tuple(parameter.stride()))
        key = (name, dtype, shape, strides)
        found = self._masks.get(key)
        if found is None:
            mask = register_mask(None, spec, shape, strides, dtype, name)
            self._masks[key] = (mask, spec)
            return mask
        mask, known = found
        if known is not spec:
            if known != spec:
                mask.update(spec)
            self._masks[key] = (mask, spec)
        return mask

    def __contains__(self, key: Tuple[Any, ...]) -> bool:
        return key in self._layouts

    def layout(self, key: Tuple[Any, ...]) -> Optional[Layout]:
        """The layout kept under a key."""
        return self._layouts[key]

    def keep(
        self,
        key: Tuple[Any, ...],
        segments: List[Tuple[int, int, Optional[Mask]]],
        count: int,
    ) -> Optional[Layout]:
        """Makes a layout, or None of no segments, and keeps it under the key."""
        layout = Layout(segments, count) if segments else None
        while len(self._layouts) >= _MAX_LAYOUTS:
            self._layouts.popitem(last=False)
        self._layouts[key] = layout
        return layout

    def close(self) -> None:
        """Frees layouts and masks."""
        for layout in self._layouts.values():
            if layout is not None:
                layout.close()
        self._layouts.clear()
        for mask, _ in self._masks.values():
            mask.close()
        self._masks.clear()


class Dropped:
    """What ``project`` promises, where somebody else has reduced: zeros in dropped places."""

    def __init__(self) -> None:
        self._places: Dict[str, Tuple[MaskSpec, Optional[torch.Tensor]]] = {}

    @torch.no_grad()
    def clear(
        self, masks: MaskedParameters, gradients: Iterable[Tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        """Writes them into the gradients; pairs of parameter and gradient, of the same shape."""
        for parameter, gradient in gradients:
            name = masks.name_of(parameter)
            spec = None if name is None else masks.spec(name)
            if name is None or spec is None or spec.contract != "project":
                continue
            known = self._places.get(name)
            if known is None or known[0] is not spec:
                known = self._places[name] = (spec, masks._dropped(name))
            if known[1] is not None:
                gradient.masked_fill_(known[1], 0)


class BucketMasks:
    """Finds masked gradients inside a tensor about to be reduced, where no bucket object tells.

    The parameters' ``.grad`` are looked at in every call; an address is never remembered.
    """

    def __init__(self, masks: MaskedParameters) -> None:
        self._masks = masks
        self._cache = MaskCache()
        self._dropped = Dropped()
        self._misses = 0
        self._found = False

    def clear(self, tensor: torch.Tensor) -> None:
        """Zeros where ``project`` drops, in a tensor that somebody else has reduced."""
        self._dropped.clear(
            self._masks, [(self._masks.parameter(name), g) for _, name, g in self._inside(tensor)]
        )

    def layout_of(self, tensor: torch.Tensor) -> Optional[Layout]:
        """The layout of a flat tensor; None: no masked gradient lies in it."""
        masks = self._masks
        if tensor.dim() != 1 or not tensor.is_contiguous() or not len(masks):
            return None
        self._cache.fresh(masks.version)
        inside = self._inside(tensor)
        if not inside:
            self._miss(tensor)
            return None
        self._found = True
        key = (tensor.dtype, tensor.numel(), tuple((o, n, g.stride()) for o, n, g in inside))
        if key in self._cache:
            return self._cache.layout(key)
        segments: List[Tuple[int, int, Optional[Mask]]] = []
        for offset, name, gradient in inside:
            spec = masks.spec(name)
            assert spec is not None
            if dense_strides(tuple(gradient.shape), tuple(gradient.stride())) is None:
                continue
            mask = self._cache.mask(name, spec, gradient, tensor.dtype)
            segments.append((offset, gradient.numel(), mask))
        return self._cache.keep(key, segments, tensor.numel())

    def _inside(self, tensor: torch.Tensor) -> List[Tuple[int, str, torch.Tensor]]:
        """Where the masked gradients in it begin, ascending, their names and themselves."""
        masks = self._masks
        begin, size = tensor.data_ptr(), tensor.element_size()
        end = begin + tensor.numel() * size
        inside: List[Tuple[int, str, torch.Tensor]] = []
        for name in masks.masked_names():
            gradient = masks.parameter(name).grad
            if gradient is None or gradient.dtype != tensor.dtype or gradient.numel() == 0:
                continue
            at = gradient.data_ptr()
            if begin <= at and at + gradient.numel() * size <= end and (at - begin) % size == 0:
                inside.append(((at - begin) // size, name, gradient))
        inside.sort(key=lambda found: found[0])
        return inside

    def _miss(self, tensor: torch.Tensor) -> None:
        if self._found or not tensor.is_floating_point() or tensor.numel() < 1024:
            return
        self._misses += 1
        if self._misses == _MISSES_BEFORE_A_WORD:
            _log.warning(
                "prunex: masks are set, but no masked gradient lies in the reduced tensors, so they "
                "travel densely: use DistributedDataParallel(gradient_as_bucket_view=True), or "
                "register prunex.torch.prunex_hook"
            )

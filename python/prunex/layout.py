# SPDX-License-Identifier: Apache-2.0
"""Layouts: which masks lie where in one flat buffer."""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Optional, Sequence, Tuple

from . import _api
from ._closing import Closing
from ._library import check, library
from .masks import Mask

__all__ = ["Layout", "LayoutInfo"]


class LayoutInfo(NamedTuple):
    """count, kept: elements, with the masks as they are now."""

    count: int  # type: ignore[assignment]  # tuple.count is not wanted here
    kept: int
    digest: int


class Layout(Closing):
    """Segments (offset, count, mask or None), in elements, of a buffer of ``count`` elements.

    In any order, not overlapping; gaps and segments without a mask are dense. Follows later updates
    of its masks. InvalidArgument if a segment leaves the buffer, overlaps another or has another
    length than its mask. May be used from any thread.
    """

    def __init__(self, segments: Sequence[Tuple[int, int, Optional[Mask]]], count: int) -> None:
        self.handle = 0
        self.count = int(count)
        array = (_api.Segment * max(len(segments), 1))()
        for slot, (offset, length, mask) in zip(array, segments):
            slot.offset, slot.count = offset, length
            slot.mask = 0 if mask is None else mask.handle
        out = ctypes.c_uint64()
        check(library().prunex_layout_create(array, len(segments), self.count, ctypes.byref(out)))
        self.handle = out.value

    def info(self) -> LayoutInfo:
        """Elements, kept elements and digest as of now."""
        info = _api.LayoutInfo()
        check(library().prunex_layout_info(self.handle, ctypes.byref(info)))
        return LayoutInfo(info.count, info.kept, info.digest)

    def close(self) -> None:
        """Frees the layout; calls in flight keep what they need. May be called again."""
        handle, self.handle = self.handle, 0
        if handle:
            check(library().prunex_layout_destroy(handle))

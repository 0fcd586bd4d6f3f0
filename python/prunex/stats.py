# SPDX-License-Identifier: Apache-2.0
"""Counters of a communicator and of this process's NCCL plugin."""

from __future__ import annotations

import ctypes
from typing import Dict, NamedTuple

from . import _api
from ._library import check, library

__all__ = ["Stats", "NetStats", "NetKind", "net_stats"]


class Stats(NamedTuple):
    """Of one communicator on this rank since it was made; bytes and nanoseconds.

    bytes_wire_*: between nodes, headers included; bytes_dense: what bytes_wire_sent would be
    without masks. Busy time per stage, which overlap; inter_ns: with something outstanding
    between nodes.
    """

    calls: int
    calls_compact: int
    calls_dense: int
    hits: int
    misses: int
    stale: int
    mismatches: int
    violations: int
    bytes_logical: int
    bytes_wire_sent: int
    bytes_wire_received: int
    bytes_dense: int
    dropped_nonzero: int
    pack_ns: int
    unpack_ns: int
    reduce_ns: int
    inter_ns: int
    agree_ns: int
    total_ns: int

    def __sub__(self, earlier: object) -> "Stats":  # type: ignore[override]
        """What happened since an earlier reading."""
        if not isinstance(earlier, Stats):
            return NotImplemented
        return Stats(*(a - b for a, b in zip(self, earlier)))


class NetKind(NamedTuple):
    """Messages that travelled one way; bytes as NCCL handed them over, and on the network."""

    messages: int
    bytes_logical: int
    bytes_wire: int


class NetStats(NamedTuple):
    """What the NCCL plugin of this process carried; kinds: raw, zero_block, masked.

    device_*: messages of device memory, packed or expanded by kernels, read or written where they are, copied.
    """

    sent: Dict[str, NetKind]
    received: Dict[str, NetKind]
    pack_ns: int
    unpack_ns: int
    stale: int
    violated: int
    device_packed: int
    device_unpacked: int
    device_direct: int
    device_copied: int


def net_stats() -> NetStats:
    """Counters of this process's NCCL plugin; zeros where none runs. Any thread, any time."""
    stats = _api.NetStats()
    check(library().prunex_net_stats(ctypes.byref(stats)))
    kinds = {
        name: NetKind(*(getattr(getattr(stats, name), field) for field in NetKind._fields))
        for name in _api.NET_KINDS
    }
    sent = {name[len("sent_") :]: kind for name, kind in kinds.items() if name.startswith("sent_")}
    received = {
        name[len("received_") :]: kind
        for name, kind in kinds.items()
        if name.startswith("received_")
    }
    return NetStats(sent, received, *(getattr(stats, name) for name in _api.NET_COUNTERS))

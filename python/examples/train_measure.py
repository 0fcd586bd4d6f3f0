# SPDX-License-Identifier: Apache-2.0
"""What train_cnn.py measures: time, bytes on the network interface, PruneX's own counters."""

from __future__ import annotations

import hashlib
import os
import statistics
import threading
import time
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import torch
import torch.distributed as dist

FIELDS = ("time_s", "exchange_s", "link_bytes", "wire_bytes", "inter_s")


def link_bytes() -> Optional[int]:
    """Bytes this node has sent on its network interfaces; None where the nodes share loopback."""
    if os.environ.get("NETLAB_MODE") == "loopback" or "NETLAB_MODE" not in os.environ:
        return None
    total = 0
    with open("/proc/net/dev", encoding="ascii") as table:
        for line in table:
            name, colon, counters = line.partition(":")
            if colon and name.strip() != "lo":
                total += int(counters.split()[8])
    return total


class Exchange:
    """Seconds in which something handed over for exchange had not come back yet; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open, self._since, self._total = 0, 0.0, 0.0

    def begin(self) -> None:
        with self._lock:
            if self._open == 0:
                self._since = time.perf_counter()
            self._open += 1

    def end(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._total += time.perf_counter() - self._since

    @property
    def seconds(self) -> float:
        with self._lock:
            return self._total

    def timed(self, hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """The same DDP hook, watched."""
        from prunex.torch.world import ddp_hook

        def watched(state: Any, bucket: Any) -> Any:
            self.begin()

            def end(done: Any) -> Any:
                self.end()
                value = done.value()
                return value[0] if isinstance(value, list) else value

            return hook(state, bucket).then(end)

        return ddp_hook(watched)


class Meter:
    """A stopwatch over the training's iterations with the counters' growth in each."""

    def __init__(self, method: Any) -> None:
        self.method = method
        self.rows: List[Dict[str, Any]] = []
        self.elapsed = 0.0
        self.sent = 0  # bytes of this node while the watch ran

    def _read(self) -> Dict[str, float]:
        stats = self.method.stats()
        return {
            "time_s": time.perf_counter(),
            "exchange_s": self.method.exchange_seconds(),
            "link_bytes": link_bytes() or 0,
            "wire_bytes": stats.bytes_wire_sent if stats else 0,
            "inter_s": stats.inter_ns / 1e9 if stats else 0.0,
        }

    def measured(self, function: Callable[[], Any], phase: str, **more: Any) -> Any:
        """Runs function on the clock; the result gets a row unless phase is empty."""
        before = self._read()
        result = function()
        after = self._read()
        row: Dict[str, Any] = {key: after[key] - before[key] for key in FIELDS}
        self.elapsed += row["time_s"]
        self.sent += int(row["link_bytes"] or row["wire_bytes"])
        if phase:
            self.rows.append({"phase": phase, **row, **more})
        return result

    def gathered(self) -> Dict[str, Any]:
        """Columns of all iterations, over all ranks; the same on every rank. Collective.

        Times: the slowest rank's. Bytes: what a node sent, the mean over nodes.
        """
        own = np.array([[row[key] for key in FIELDS] for row in self.rows], np.float64)
        first = os.environ.get("LOCAL_RANK", "0") == "0"
        every: List[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, (first, own.reshape(-1, len(FIELDS)), self.sent))
        nodes = sum(1 for is_first, _, _ in every if is_first)
        tables = np.stack([table for _, table, _ in every])
        firsts = np.array([is_first for is_first, _, _ in every])
        columns = {"phase": [row["phase"] for row in self.rows]}
        for number, key in enumerate(FIELDS):
            values = tables[:, :, number]
            if key == "link_bytes":
                column = values[firsts].mean(axis=0)
            elif key == "wire_bytes":
                column = values.sum(axis=0) / nodes
            else:
                column = values.max(axis=0)
            columns[key] = [round(float(v), 6) for v in column]
        return columns


def phases_of(columns: Dict[str, Any], dense_iterations: int = 2) -> Dict[str, Any]:
    """Medians and means per phase, without the first iterations, which DDP uses to settle its
    buckets (and PowerSGD to begin)."""
    out: Dict[str, Any] = {}
    for phase in dict.fromkeys(columns["phase"]):
        at = [i for i, name in enumerate(columns["phase"]) if name == phase]
        at = at[dense_iterations:] or at
        out[phase] = {"iterations": len(at)}
        for key in FIELDS:
            values = [columns[key][i] for i in at]
            out[phase][key] = {
                "median": statistics.median(values),
                "mean": statistics.fmean(values),
            }
    return out


def digest(tensors: Any) -> str:
    """A name for the bits of tensors or arrays."""
    found = hashlib.sha256()
    for tensor in tensors:
        array = tensor.detach().cpu().numpy() if torch.is_tensor(tensor) else np.asarray(tensor)
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def same_everywhere(text: str) -> bool:
    """Whether all ranks have this text. Collective."""
    every: List[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, text)
    return len(set(every)) == 1

# SPDX-License-Identifier: Apache-2.0
"""prunex.h in ctypes: its structures, and the prototypes of the functions a library has."""

from __future__ import annotations

import ctypes as c
from typing import Any, Dict, Tuple

MAX_DIMS = 8

FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT8, UINT8, INT32, INT64, UINT32, UINT64 = range(10)
ITEM_SIZE: Tuple[int, ...] = (4, 8, 2, 2, 1, 1, 4, 8, 4, 8)
OPS: Dict[str, int] = {"sum": 0, "avg": 1, "max": 2, "min": 3, "prod": 4}
SCOPES: Dict[str, int] = {"world": 0, "node": 1, "leaders": 2}
CONTRACTS: Dict[str, int] = {"lossless": 0, "project": 1, "sampled": 2}
MASK_KINDS: Dict[str, int] = {"dims": 0, "blocks": 1, "nm": 2, "ranges": 3, "elements": 4}
AGREE_MODES: Dict[str, int] = {"topk": 0, "union": 1, "intersection": 2}


class Sized(c.Structure):
    """A structure that starts with its own size, which is filled in here."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(struct_size=c.sizeof(type(self)), **fields)


class Tensor(Sized):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("dtype", c.c_int),
        ("ndim", c.c_int),
        ("sizes", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
    ]


class Range(c.Structure):
    _fields_ = [("begin", c.c_uint64), ("count", c.c_uint64)]


class MaskDesc(Sized):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("kind", c.c_int),
        ("contract", c.c_int),
        ("epoch", c.c_uint64),
        ("name", c.c_char_p),
        ("declared_kept", c.c_int64),
        ("keep", c.c_void_p * MAX_DIMS),
        ("keep_len", c.c_size_t * MAX_DIMS),
        ("block", c.c_int64 * MAX_DIMS),
        ("cells", c.c_void_p),
        ("cells_len", c.c_size_t),
        ("nm_n", c.c_int64),
        ("nm_m", c.c_int64),
        ("nm_dim", c.c_int),
        ("ranges", c.POINTER(Range)),
        ("num_ranges", c.c_size_t),
    ]


class MaskInfo(Sized):
    _fields_ = [("struct_size", c.c_size_t)] + [
        (name, c.c_uint64)
        for name in ("count", "kept", "digest", "epoch", "hits", "misses_stale", "violations")
    ]


class Segment(c.Structure):
    _fields_ = [("offset", c.c_uint64), ("count", c.c_uint64), ("mask", c.c_uint64)]


class LayoutInfo(Sized):
    _fields_ = [("struct_size", c.c_size_t)] + [
        (name, c.c_uint64) for name in ("count", "kept", "digest")
    ]


STORE_SET = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p, c.c_void_p, c.c_size_t)
STORE_GET = c.CFUNCTYPE(
    c.c_int, c.c_void_p, c.c_char_p, c.c_void_p, c.c_size_t, c.POINTER(c.c_size_t), c.c_double
)


class Store(c.Structure):
    _fields_ = [("set", STORE_SET), ("get", STORE_GET), ("context", c.c_void_p)]


class CommConfig(Sized):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("rank", c.c_int),
        ("size", c.c_int),
        ("root", c.c_char_p),
        ("node_id", c.c_char_p),
        ("store", c.POINTER(Store)),
        ("name", c.c_char_p),
        ("timeout_s", c.c_double),
    ]


class CommInfo(Sized):
    _fields_ = (
        [("struct_size", c.c_size_t)]
        + [
            (name, c.c_int)
            for name in (
                "rank",
                "size",
                "node",
                "num_nodes",
                "local_rank",
                "local_size",
                "leader",
                "is_leader",
                "rails",
            )
        ]
        + [("transport", c.c_char * 16)]
    )


class Call(Sized):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("scope", c.c_int),
        ("stream", c.c_void_p),
        ("request", c.POINTER(c.c_uint64)),
    ]


class Agree(Sized):
    _fields_ = [
        ("struct_size", c.c_size_t),
        ("mode", c.c_int),
        ("scope", c.c_int),
        ("weight", c.c_double),
        ("keep", c.c_size_t),
        ("layer_groups", c.POINTER(c.c_size_t)),
        ("layer_keep", c.POINTER(c.c_size_t)),
        ("num_layers", c.c_size_t),
        ("incumbents", c.c_void_p),
        ("hysteresis", c.c_double),
    ]


STATS_FIELDS = (
    "calls",
    "calls_compact",
    "calls_dense",
    "hits",
    "misses",
    "stale",
    "mismatches",
    "violations",
    "bytes_logical",
    "bytes_wire_sent",
    "bytes_wire_received",
    "bytes_dense",
    "dropped_nonzero",
    "pack_ns",
    "unpack_ns",
    "reduce_ns",
    "inter_ns",
    "agree_ns",
    "total_ns",
)


class Stats(Sized):
    _fields_ = [("struct_size", c.c_size_t)] + [(name, c.c_uint64) for name in STATS_FIELDS]


class NetKind(c.Structure):
    _fields_ = [(name, c.c_uint64) for name in ("messages", "bytes_logical", "bytes_wire")]


NET_KINDS = (
    "sent_raw",
    "sent_zero_block",
    "sent_masked",
    "received_raw",
    "received_zero_block",
    "received_masked",
)
NET_COUNTERS = (
    "pack_ns",
    "unpack_ns",
    "stale",
    "violated",
    "device_packed",
    "device_unpacked",
    "device_direct",
    "device_copied",
)


class NetStats(Sized):
    _fields_ = (
        [("struct_size", c.c_size_t)]
        + [(name, NetKind) for name in NET_KINDS]
        + [(name, c.c_uint64) for name in NET_COUNTERS]
    )


_HANDLE = c.c_uint64
_REQUIRED: Dict[str, Tuple[Any, ...]] = {
    "prunex_register_mask": (
        c.c_void_p,
        c.POINTER(Tensor),
        c.POINTER(MaskDesc),
        c.POINTER(_HANDLE),
    ),
    "prunex_update_mask": (_HANDLE, c.POINTER(MaskDesc)),
    "prunex_unregister_mask": (_HANDLE,),
    "prunex_mask_info": (_HANDLE, c.POINTER(MaskInfo)),
    "prunex_layout_create": (c.POINTER(Segment), c.c_size_t, c.c_uint64, c.POINTER(_HANDLE)),
    "prunex_layout_destroy": (_HANDLE,),
    "prunex_layout_info": (_HANDLE, c.POINTER(LayoutInfo)),
    "prunex_comm_create": (c.POINTER(CommConfig), c.POINTER(_HANDLE)),
    "prunex_comm_destroy": (_HANDLE,),
    "prunex_comm_abort": (_HANDLE,),
    "prunex_comm_info": (_HANDLE, c.POINTER(CommInfo)),
    "prunex_comm_topology": (_HANDLE, c.c_void_p, c.c_size_t, c.POINTER(c.c_size_t)),
    "prunex_all_reduce": (
        _HANDLE,
        c.c_void_p,
        c.c_void_p,
        c.c_size_t,
        c.c_int,
        c.c_int,
        _HANDLE,
        c.POINTER(Call),
    ),
    "prunex_request_test": (_HANDLE, c.POINTER(c.c_int)),
    "prunex_request_wait": (_HANDLE,),
    "prunex_request_wait_for": (_HANDLE, c.c_uint32, c.POINTER(c.c_int)),
    "prunex_agree_mask": (_HANDLE, c.c_void_p, c.c_size_t, c.POINTER(Agree), c.c_void_p),
    "prunex_stats": (_HANDLE, c.POINTER(Stats)),
    "prunex_net_stats": (c.POINTER(NetStats),),
}
# Of later versions: bound where the library has them.
_OPTIONAL: Dict[str, Tuple[Any, ...]] = {
    "prunex_comm_get_async_error": (_HANDLE, c.POINTER(c.c_int)),
    "prunex_device_ready": (),
    "prunex_broadcast": (_HANDLE, c.c_void_p, c.c_size_t, c.c_int, c.POINTER(Call)),
    "prunex_all_gather": (_HANDLE, c.c_void_p, c.c_void_p, c.c_size_t, c.POINTER(Call)),
    "prunex_reduce_scatter": (
        _HANDLE,
        c.c_void_p,
        c.c_void_p,
        c.c_size_t,
        c.c_int,
        c.c_int,
        c.POINTER(Call),
    ),
    "prunex_barrier": (_HANDLE,),
    "prunex_send": (_HANDLE, c.c_void_p, c.c_size_t, c.c_int, c.c_int, c.POINTER(Call)),
    "prunex_recv": (_HANDLE, c.c_void_p, c.c_size_t, c.c_int, c.c_int, c.POINTER(Call)),
}


def bind(library: c.CDLL) -> None:
    """Sets the prototypes. AttributeError if the library lacks a function it must have."""
    for name, arguments in _REQUIRED.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c.c_int
    for name, arguments in _OPTIONAL.items():
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes = arguments
            function.restype = c.c_int
    library.prunex_last_error.argtypes = ()
    library.prunex_last_error.restype = c.c_char_p
    library.prunex_version.argtypes = ()
    library.prunex_version.restype = c.c_int

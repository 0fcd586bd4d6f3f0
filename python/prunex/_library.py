# SPDX-License-Identifier: Apache-2.0
"""Finds and opens libprunex.so: the one copy of this process, which the NCCL plugin shares."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from . import _api
from .errors import Error, Unsupported, error_of

SONAME = "libprunex.so"
VARIABLE = "PRUNEX_LIBRARY"
_PACKAGE = Path(__file__).resolve().parent
# Programs change folders before the library is opened: a relative path is one of the start's.
try:
    _STARTED_IN = Path.cwd()
except OSError:  # a folder that is gone
    _STARTED_IN = Path("/")
_lock = threading.Lock()
_loaded: Optional[ctypes.CDLL] = None


def mapped_copies() -> List[str]:
    """Paths of the libprunex.so files mapped into this process, one per file (device and inode)."""
    found: Dict[Tuple[str, str], str] = {}
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                fields = line.rstrip("\n").split(maxsplit=5)
                if (
                    len(fields) == 6
                    and os.path.basename(fields[5].split(" (deleted)")[0]) == SONAME
                ):
                    found.setdefault((fields[3], fields[4]), fields[5])
    except OSError:
        pass
    return list(found.values())


def _refuse_second_copy() -> None:
    copies = mapped_copies()
    if len(copies) > 1:
        raise Error(
            f"two copies of {SONAME} are loaded in this process: {' and '.join(copies)}; masks "
            "registered in one are not seen by the other. Keep one: remove the other from "
            f"LD_LIBRARY_PATH, LD_PRELOAD or {VARIABLE}"
        )


def _candidates() -> List[Path]:
    """Where a copy may lie, best first. An explicit choice that is not there is an error."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        path = _STARTED_IN / chosen
        if path.is_dir():
            path = path / SONAME
        if not path.is_file():
            note = "" if os.path.isabs(chosen) else " (relative to where prunex was imported)"
            raise Error(f"{VARIABLE}={chosen}: there is no file {path}{note}")
        return [path]
    out = [_PACKAGE / "lib" / SONAME]
    # A checkout: python/prunex beside build/.
    out.append(_PACKAGE.parent.parent / "build" / "plugin" / SONAME)
    return [path for path in out if path.is_file()]


def _open() -> ctypes.CDLL:
    chosen = os.environ.get(VARIABLE)
    try:
        library = ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError:
        library = None
    if library is not None:
        copies = mapped_copies()
        if chosen and len(copies) == 1:
            wanted = _candidates()[0]
            if os.path.exists(copies[0]) and not os.path.samefile(copies[0], wanted):
                raise Error(
                    f"{VARIABLE} names {wanted}, but {copies[0]} is already loaded in this "
                    "process; a process has one copy: let both name the same file"
                )
        return library
    candidates = _candidates()
    if not candidates:
        raise Error(
            f"{SONAME} was not found: neither in {_PACKAGE / 'lib'}, nor in a build folder beside "
            f"this checkout; install the wheel, run scripts/build.sh, or set {VARIABLE} to its path"
        )
    try:
        return ctypes.CDLL(str(candidates[0]), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as cause:
        raise Error(f"{candidates[0]} cannot be loaded: {cause}") from cause


def library() -> ctypes.CDLL:
    """The library, opened at the first call. :class:`prunex.Error` if there is none, or two."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                opened = _open()
                _refuse_second_copy()
                try:
                    _api.bind(opened)
                except AttributeError as missing:
                    raise Unsupported(
                        f"{library_path(opened)} is of another version than this package: {missing}"
                    ) from None
                _loaded = opened
    return _loaded


def library_path(opened: Optional[ctypes.CDLL] = None) -> str:
    """The path of the loaded copy."""
    copies = mapped_copies()
    return copies[0] if copies else str((opened or library())._name)


def check(code: int) -> None:
    """Raises the exception of a result other than PRUNEX_SUCCESS."""
    if code != 0:
        raise last_error(code)


def last_error(code: int) -> Error:
    """The exception of a result, with the text of the calling thread's last failure."""
    text = library().prunex_last_error()
    return error_of(code, text.decode("utf-8", "replace") if text else "")


def optional(name: str) -> Any:
    """A function that older libraries lack; :class:`prunex.Unsupported` where it is missing."""
    function = getattr(library(), name, None)
    if function is None:
        raise Unsupported(f"{library_path()} has no {name}: it is older than this package")
    return function

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that includes point one way: from higher folders to lower ones.

Usage: check_includes.py [ROOT]. Prints file:line for every fault; exit status 1 if there is any.
"""
import pathlib
import re
import sys

# Each folder with those it may include besides itself. Nothing else may be included in quotes.
BASE = ["plugin/base"]
PARTS = BASE + ["kernels", "topology", "plugin/transport", "plugin/bootstrap"]
CORE = PARTS + ["plugin/collective"]
DEVICE = CORE + ["plugin/device"]
TOP = DEVICE + ["plugin/api", "include"]
ALLOWED = {
    "include": [],
    "plugin/base": [],
    "kernels": BASE,
    "topology": BASE,
    "plugin/transport": BASE,
    "plugin/bootstrap": BASE,
    "plugin/collective": PARTS,
    "plugin/device": CORE,
    "plugin/api": DEVICE + ["include"],
    "plugin": DEVICE + ["plugin/api"],
    "plugin/nccl": TOP,
    "tools": TOP + ["plugin/nccl"],
    "bench": TOP + ["plugin/nccl", "tools"],
    "tests": TOP + ["plugin/nccl", "tools", "bench"],
}
SUFFIXES = {".h", ".c", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def folder_of(path):
    """The row of ALLOWED a path belongs to: the longest that matches."""
    parts = path.split("/")
    for length in range(len(parts) - 1, 0, -1):
        name = "/".join(parts[:length])
        if name in ALLOWED:
            return name
    return None


def target_of(root, name):
    """The path from the root of an included file; the public header is included as prunex/prunex.h."""
    for prefix in ("", "include/"):
        if (root / prefix / name).is_file():
            return prefix + name
    return None


def faults_of(root, path):
    here = folder_of(path)
    text = (root / path).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quoted, name = match.group(1) == '"', match.group(2)
        target = target_of(root, name)
        if not quoted:
            if target and folder_of(target):
                yield f"{path}:{number}: <{name}> is our own: include it in quotes"
            continue
        if target is None:
            yield f'{path}:{number}: "{name}" is no file, named from the root of the tree'
            continue
        there = folder_of(target)
        if there != here and there not in ALLOWED[here]:
            yield f'{path}:{number}: {here} must not include "{name}" ({there or "no known folder"})'


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    tops = sorted({name.split("/")[0] for name in ALLOWED})
    sources = [
        path.relative_to(root).as_posix()
        for top in tops
        for path in sorted((root / top).rglob("*"))
        if path.suffix in SUFFIXES and path.is_file()
    ]
    if not sources:
        sys.exit(f"{root}: no sources")
    faults = []
    for path in sources:
        if folder_of(path) is None:
            faults.append(f"{path}: not in a folder that check_includes.py knows")
        else:
            faults.extend(faults_of(root, path))
    print("\n".join(faults) if faults else f"{len(sources)} files")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

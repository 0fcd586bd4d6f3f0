#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what ptxas reports of the kernels: no spills, and few enough registers.

  check_cuda_resources.py [--list] REPORT...

REPORT: files that nvcc_object.py wrote. The kernels of PruneX itself may neither spill nor use local
memory; kernels of CUB are listed only. Exits 1 with one line for each fault, and when a report holds
no kernel of PruneX's where some are expected.
"""
import argparse
import re
import sys

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(sm_\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
OURS = re.compile(r"^_ZN6prunex4cuda")
NAME = re.compile(r"\d+([a-z_]+_kernel)")
# A block of 256 threads and 65536 registers per SM: with more, fewer than two blocks would fit.
MOST_REGISTERS = 128


def kernels(lines):
    """Yields (mangled name, arch, stack, spill bytes, registers) of each entry function."""
    name = arch = None
    stack = spill = 0
    for line in lines:
        if match := ENTRY.search(line):
            name, arch = match.groups()
            stack = spill = 0
        elif match := FRAME.search(line):
            stack, stores, loads = (int(n) for n in match.groups())
            spill = stores + loads
        elif name and (match := USED.search(line)):
            yield name, arch, stack, spill, int(match.group(1))
            name = None


def short(name):
    match = NAME.search(name)
    return (match.group(1) if match else name[:40]) + "".join(re.findall(r"IL[ib]\w+", name)[:1])[:16]


def check(path, list_all):
    faults, ours = [], 0
    with open(path, encoding="utf-8") as lines:
        for name, arch, stack, spill, registers in kernels(lines):
            if not OURS.match(name):
                continue
            ours += 1
            if list_all:
                print(f"{arch} {short(name):40} {registers:4} registers {spill:4} bytes spilled")
            if spill or stack:
                faults.append(f"{path}: {arch} {name}: {spill} bytes spilled, {stack} of stack")
            if registers > MOST_REGISTERS:
                faults.append(f"{path}: {arch} {name}: {registers} registers, at most {MOST_REGISTERS}")
    return ours, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every kernel's figures")
    parser.add_argument("reports", nargs="+")
    options = parser.parse_args()
    faults, ours = [], 0
    for path in options.reports:
        found, wrong = check(path, options.list)
        ours += found
        faults += wrong
    if not ours:
        faults.append("no kernel of PruneX's in these reports: was nvcc run with -Xptxas -v?")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

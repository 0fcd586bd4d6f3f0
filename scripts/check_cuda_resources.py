#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what ptxas reports of the kernels: no spills, and registers for the blocks that tuning.h counts on.

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
# Of an SM of all architectures from sm_80 on, and what a block of kernels/cuda/tuning.h has.
SM_REGISTERS, BLOCK_THREADS = 65536, 256
# Blocks that reside on an SM at least: of pack_kernel<move, false> and unpack_kernel<move> but of bytes, and of others.
PACK_BLOCKS, BLOCKS = 5, 4
PACKS = re.compile(r"\dpack_kernelILi\dELb0E|unpack_kernelILi[02-9]E")


def blocks_of(name):
    """Blocks of a kernel that have to fit an SM."""
    return PACK_BLOCKS if PACKS.search(name) else BLOCKS


def most_registers(blocks):
    """Registers are handed out in eights for each thread."""
    return SM_REGISTERS // (BLOCK_THREADS * blocks) // 8 * 8


def resident(registers):
    """Blocks that fit, by registers and by the 2048 threads of an SM."""
    return min(2048 // BLOCK_THREADS, SM_REGISTERS // (BLOCK_THREADS * (-(-max(registers, 1) // 8) * 8)))


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
                print(f"{arch} {short(name):40} {registers:4} registers {spill:4} bytes spilled"
                      f" {resident(registers)} blocks per SM")
            if spill or stack:
                faults.append(f"{path}: {arch} {name}: {spill} bytes spilled, {stack} of stack")
            blocks = blocks_of(name)
            if registers > most_registers(blocks):
                faults.append(f"{path}: {arch} {name}: {registers} registers, at most {most_registers(blocks)}: "
                              f"{blocks} blocks of {BLOCK_THREADS} threads have to fit an SM, {resident(registers)} do")
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
    if options.list:
        print(f"{ours} kernels, {len(faults)} faults" if faults else
              f"{ours} kernels, no spills, {PACK_BLOCKS} blocks per SM and more of pack and unpack, {BLOCKS} of others")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

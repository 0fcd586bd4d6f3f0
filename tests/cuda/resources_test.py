#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_cuda_resources.py finds what it is there to find. Argument: the script."""
import pathlib
import subprocess
import sys
import tempfile

REPORT = """ptxas info    : Compiling entry function '{name}' for 'sm_90'
ptxas info    : Function properties for {name}
    {stack} bytes stack frame, {spill} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 0 barriers
"""
OURS = "_ZN6prunex4cuda49_GLOBAL__N__1_7_move_cu_211pack_kernelILi4ELb1EEEvNS0_4MoveE"
PACK = OURS.replace("Lb1E", "Lb0E")
UNPACK = "_ZN6prunex4cuda49_GLOBAL__N__1_7_move_cu_213unpack_kernelILi4EEEvNS0_4MoveE"
REDUCE = "_ZN6prunex4cuda51_GLOBAL__N__1_9_reduce_cu_214strided_kernelIfEEvNS0_9ReductionE"
CUB = "_ZN3cub17CUB_300001_SM_9006detail4scan16DeviceScanKernelEv"


def run(script, **values):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "move.resources")
        path.write_text(REPORT.format(**{"stack": 0, "spill": 0, "registers": 64, **values}), "utf-8")
        done = subprocess.run([sys.executable, script, str(path)], capture_output=True, text=True,
                              check=False, timeout=30)
        return done.returncode, done.stderr


def main():
    script = sys.argv[1]
    cases = [
        ("a kernel without spills passes", 0, "", {"name": OURS}),
        ("a spill is named", 1, "16 bytes spilled", {"name": OURS, "spill": 16}),
        ("local memory is named", 1, "8 of stack", {"name": OURS, "stack": 8}),
        ("too many registers", 1, "200 registers", {"name": OURS, "registers": 200}),
        ("four auditing blocks fit an SM", 0, "", {"name": OURS, "registers": 64}),
        ("four do not", 1, "65 registers, at most 64: 4 blocks", {"name": OURS, "registers": 65}),
        ("five packing blocks fit", 0, "", {"name": PACK, "registers": 48}),
        ("five do not", 1, "5 blocks of 256 threads", {"name": PACK, "registers": 49}),
        ("nor do five that unpack", 1, "5 blocks of 256 threads", {"name": UNPACK, "registers": 64}),
        ("four that unpack bytes", 0, "", {"name": UNPACK.replace("Li4E", "Li1E"), "registers": 64}),
        ("all others fit four times", 1, "have to fit an SM, 3 do", {"name": REDUCE, "registers": 65}),
        ("a report of other kernels only", 1, "no kernel of PruneX's", {"name": CUB, "spill": 4}),
    ]
    failed = 0
    for what, code, text, values in cases:
        got, errors = run(script, **values)
        if got != code or text not in errors:
            print(f"FAIL {what}: exit {got}, {errors!r}")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

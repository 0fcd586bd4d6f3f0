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

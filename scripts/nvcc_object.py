#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs nvcc for one object and keeps what ptxas says of registers and spills.

  nvcc_object.py REPORT nvcc ARGUMENT...

The build stays quiet when all is well: ptxas's lines go to REPORT, everything else to stderr.
"""
import re
import subprocess
import sys

QUIET = re.compile(r"^(ptxas info|\s*\d+ bytes stack frame|\s*Used \d+ registers|Function properties)")


def main():
    report, command = sys.argv[1], sys.argv[2:]
    done = subprocess.run(command + ["-Xptxas", "-v"], stderr=subprocess.PIPE, text=True, check=False)
    lines = done.stderr.splitlines(keepends=True)
    with open(report, "w", encoding="utf-8") as out:
        out.writelines(line for line in lines if QUIET.match(line))
    sys.stderr.writelines(line for line in lines if not QUIET.match(line) and line.strip())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())

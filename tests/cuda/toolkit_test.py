#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A CUDA toolkit that is too old is told with both versions when a tree is configured."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Where the system's is too old, scripts/build.sh has fetched one.
MESON = next((str(p) for p in [ROOT / ".venv-tools" / "bin" / "meson"] if p.exists()), shutil.which("meson"))


def configure(folder, said):
    nvcc = folder / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True, exist_ok=True)
    nvcc.write_text(f"#!/bin/sh\necho '{said}'\n", encoding="utf-8")
    nvcc.chmod(0o755)
    tree = tempfile.mkdtemp(dir=folder)
    done = subprocess.run([MESON, "setup", tree, str(ROOT), "-Dcuda=enabled", "-Dtests=false",
                           f"-Dnvcc_root={folder / 'cuda'}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=90, env={k: v for k, v in os.environ.items() if not k.startswith("MESON")})
    return done.returncode, done.stdout


def main():
    if MESON is None:
        print("no meson on the PATH")
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for said, words in (("Cuda compilation tools, release 12.2, V12.2.140", ("12.5 or newer", "is 12.2")),
                            ("no such thing", ("12.5 or newer", "is unknown"))):
            code, out = configure(folder, said)
            if code == 0 or not all(word in out for word in words):
                print(f"FAIL {said}: exit {code}\n{out}")
                return 1
        # One that will do is not what is missing here (there are no headers in this one).
        code, out = configure(folder, "Cuda compilation tools, release 12.10, V12.10.1")
        if "or newer" in out:
            print(f"FAIL 12.10 counts as older\n{out}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

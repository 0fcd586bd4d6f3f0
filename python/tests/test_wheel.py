# SPDX-License-Identifier: Apache-2.0
"""The wheel, installed somewhere else: both libraries, and two ranks that reduce."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from worlds import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import numpy as np, prunex, sys
with prunex.Communicator(timeout=20) as comm:
    x = np.ones(1000, np.float32)
    comm.all_reduce(x)
    assert (x == 2).all()
assert "torch" not in sys.modules
print(prunex.library_path())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    library = Path(os.environ.get("PRUNEX_LIBRARY") or ROOT / "build" / "plugin" / "libprunex.so")
    plugin = library.resolve().parent / "libnccl-net-prunex.so"
    if not plugin.exists():
        pytest.skip(f"{plugin} is not built")
    try:
        import setuptools  # noqa: F401
        from setuptools.command import bdist_wheel  # noqa: F401
    except ImportError:
        pytest.skip("setuptools 70.1 or later is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    build = library.resolve().parent.parent
    made = subprocess.run(
        [ROOT / "scripts" / "build-wheel.sh", "--build", build, "--out", folder],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert made.returncode == 0, made.stderr
    wheel = Path(made.stdout.strip())
    target = folder / "site"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--target",
            target,
            wheel,
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return wheel, target


def test_wheel_holds_both_libraries(installed):
    wheel, _ = installed
    assert "-py3-none-manylinux" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("lib/libprunex.so", "lib/libnccl-net-prunex.so", "py.typed", "torch/hook.py"):
        assert f"prunex/{name}" in names


def test_two_ranks_from_the_wheel(installed, tmp_path):
    _, target = installed
    root = f"127.0.0.1:{free_port()}"
    env = {k: v for k, v in os.environ.items() if k not in ("PRUNEX_LIBRARY", "PYTHONPATH")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={
                **env,
                "PYTHONPATH": str(target),
                "PRUNEX_RANK": str(rank),
                "PRUNEX_WORLD_SIZE": "2",
                "PRUNEX_ROOT": root,
                "PRUNEX_NODE_ID": f"n{rank}",
                "PRUNEX_SOCKET_IFNAME": "lo",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        for rank in range(2)
    ]
    for process in ranks:
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 0, err
        assert out.strip() == str(target / "prunex" / "lib" / "libprunex.so")
        assert err == ""

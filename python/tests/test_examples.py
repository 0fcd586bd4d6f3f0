# SPDX-License-Identifier: Apache-2.0
"""The complete programs of docs/pytorch.md and docs/frameworks.md, run as a user runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import free_port, torchrun

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "python" / "examples"
LIBRARY = Path(os.environ.get("PRUNEX_LIBRARY", ROOT / "build" / "plugin" / "libprunex.so"))
TOOL = LIBRARY.parent.parent / "tools" / "prunex"


def environment(**more: str) -> dict:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PRUNEX_", "NETLAB_"))}
    return {
        **kept,
        "PRUNEX_LIBRARY": str(LIBRARY),
        "PRUNEX_SOCKET_IFNAME": "lo",
        "PYTHONPATH": str(ROOT / "python"),
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **more,
    }


def on_two_nodes(*command: str) -> str:
    """Output of four ranks on two emulated nodes, started by `prunex run`."""
    if not TOOL.exists():
        pytest.skip(f"{TOOL} is not built")
    job = [str(TOOL), "run", "-n", "4", "--nodes", "2", "--", *command]
    done = subprocess.run(job, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def ratio_of(output: str) -> float:
    found = re.search(r"bytes between nodes: ([0-9.]+) of those before", output)
    assert found, output
    return float(found.group(1))


def test_c_program(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path / "train"
    folder = LIBRARY.parent
    command = [compiler, "-std=c99", "-O2", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    command += [f"-I{ROOT / 'include'}", str(ROOT / "docs" / "examples" / "train.c")]
    command += [f"-L{folder}", "-lprunex", "-lm", f"-Wl,-rpath,{folder}", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    output = on_two_nodes(str(program))
    first, last = map(float, re.search(r"loss ([0-9.]+) -> ([0-9.]+)", output).groups())
    assert last < first / 4
    assert ratio_of(output) < 0.26  # a quarter of the units


def cuda_toolkit() -> Path | None:
    """Where the headers and the static runtime of CUDA are, as the build finds them."""
    for root in (Path("/usr/local/cuda"), ROOT / ".venv-tools" / "cuda" / "nvidia" / "cu13"):
        if (root / "include" / "cuda_runtime_api.h").exists():
            return root
    return None


def test_c_program_on_device_memory(tmp_path):
    """It compiles, and without a GPU it says what is missing."""
    compiler, root = shutil.which("cc") or shutil.which("gcc"), cuda_toolkit()
    if compiler is None or root is None:
        pytest.skip("no C compiler" if compiler is None else "no CUDA headers")
    runtimes = [root / folder / "libcudart_static.a" for folder in ("lib64", "lib", "targets/x86_64-linux/lib")]
    runtime = next((str(path) for path in runtimes if path.exists()), None)
    if runtime is None:
        pytest.skip("no libcudart_static.a")
    program, folder = tmp_path / "device", LIBRARY.parent
    command = [compiler, "-std=c99", "-O2", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    command += [f"-I{ROOT / 'include'}", "-isystem", str(root / "include"), str(ROOT / "docs" / "examples" / "device.c")]
    command += [f"-L{folder}", "-lprunex", f"-Wl,-rpath,{folder}", runtime, "-ldl", "-lrt", "-lpthread", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    job = {**environment(), "PRUNEX_RANK": "0", "PRUNEX_WORLD_SIZE": "1"}
    done = subprocess.run([str(program)], env=job, capture_output=True, text=True, timeout=60)
    if done.returncode == 77:
        assert done.stdout == "" and len(done.stderr.strip()) > 20
    else:
        assert (done.returncode, done.stdout) == (0, "1 ranks: all is well\n"), done.stderr


def test_program_without_torch():
    output = on_two_nodes(sys.executable, str(EXAMPLES / "jax_train.py"))
    first, last = map(float, re.search(r"loss ([0-9.]+) -> ([0-9.]+)", output).groups())
    assert last < first / 4
    assert "kept 128 of 512" in output
    assert ratio_of(output) < 0.26


def test_ddp_program(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    port, checkpoint, nodes = free_port(), tmp_path / "state.pt", []
    for node in range(2):
        command = torchrun(node, 2, 2, port)
        command += [str(EXAMPLES / "ddp_hook.py"), "--checkpoint", str(checkpoint)]
        nodes.append(
            subprocess.Popen(
                command,
                env=environment(PRUNEX_NODE_ID=f"node{node}", GLOO_SOCKET_IFNAME="lo"),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = [node.communicate(timeout=200)[0] for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                node.terminate()
                node.wait(timeout=30)
    assert [node.returncode for node in nodes] == [0, 0], "".join(outputs)
    output = outputs[0]
    assert ratio_of(output) < 0.45
    dense, pruned = map(float, re.search(r"accuracy: ([0-9.]+) dense, ([0-9.]+)", output).groups())
    assert dense > 0.5 and pruned > 0.5  # a quarter by chance
    assert " 0 with a dropped gradient" in output
    saved = torch.load(checkpoint, weights_only=False)
    assert len(saved["prunex"].masks.masked_names()) == 2

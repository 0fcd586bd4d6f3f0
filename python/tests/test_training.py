# SPDX-License-Identifier: Apache-2.0
"""The training example, short: two nodes of two ranks on loopback, each node under its own torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import free_port, torchrun

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
METHODS = ["dense", "dense-prunex", "topk-0.05", "powersgd-1", "prunex-0.4"]
OPTIONS = ["--iterations", "40", "--width", "0.25", "--batch", "16", "--local-steps", "2"]


def train(folder: Path) -> dict:
    """Runs the example on two nodes; returns its document."""
    port, out, nodes = free_port(), folder / "out.json", []
    for node in range(2):
        environment = {
            **os.environ,
            "PRUNEX_NODE_ID": f"node{node}",
            "PRUNEX_SOCKET_IFNAME": "lo",
            "PRUNEX_TIMEOUT": "60",
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        for name in ("NETLAB_MODE", "RANK", "WORLD_SIZE", "PRUNEX_ROOT", "PYTHONPATH"):
            environment.pop(name, None)
        command = torchrun(node, 2, 2, port)
        command += [str(EXAMPLES / "train_cnn.py"), "--methods", ",".join(METHODS)]
        command += ["--json", str(out), "--timeout", "60", *OPTIONS]
        with open(folder / f"node{node}.log", "wb") as log:
            nodes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        codes = [node.wait(timeout=240) for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                node.terminate()
                node.wait(timeout=30)
    logs = "".join((folder / f"node{n}.log").read_text() for n in range(2))
    assert codes == [0, 0], logs[-4000:]
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def document(tmp_path_factory) -> dict:
    return train(tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def runs(document) -> dict:
    return {run["method"]: run for run in document["runs"]}


def test_document(document, runs):
    assert document["schema"] == "prunex-training" and document["version"] == 1
    assert (document["world"], document["nodes"]) == (4, 2)
    assert list(runs) == METHODS
    for name, run in runs.items():
        wanted = 10 if name == "dense-prunex" else 40
        assert run["iterations"] == wanted, name
        lengths = {key: len(column) for key, column in run["columns"].items()}
        assert set(lengths) == {
            "phase",
            "time_s",
            "exchange_s",
            "link_bytes",
            "wire_bytes",
            "inter_s",
        }
        assert set(lengths.values()) == {wanted}, name
        points = run["points"]
        assert [p["iteration"] for p in points] == sorted(p["iteration"] for p in points)
        assert points[-1]["iteration"] == wanted
        assert all(0 <= p["accuracy"] <= 1 for p in points)


def test_all_ranks_end_with_the_same_parameters_and_masks(runs):
    for name, run in runs.items():
        assert run["same_parameters"], name
        assert run["same_masks"], name
    assert runs["prunex-0.4"]["dropped_are_zero"]


def test_bytes_shrink_after_the_freeze(runs):
    dense = runs["dense-prunex"]["phases"]["ddp"]["wire_bytes"]["median"]
    run = runs["prunex-0.4"]
    phase = run["phases"]["finetune"]
    assert 0.38 < run["density"] < 0.5
    assert phase["iterations"] == 18  # the second half but two
    assert phase["wire_bytes"]["median"] <= (run["density"] + 0.01) * dense + 4096
    rounds = run["admm_rounds"]
    assert len(rounds) == 10
    assert rounds[0]["kept"] == rounds[0]["total"] == run["parameters"]
    assert rounds[-1]["bytes_exchange"] < 0.5 * rounds[0]["bytes_exchange"]
    assert any(r["mask_flips"] for r in rounds)
    assert run["prunex"]["violations"] == 0


def test_local_steps_send_nothing(runs):
    columns = runs["prunex-0.4"]["columns"]
    admm = [i for i, phase in enumerate(columns["phase"]) if phase != "finetune"]
    assert all(columns["wire_bytes"][i] == 0 for i in admm[0::2])
    assert all(columns["wire_bytes"][i] > 0 for i in admm[1::2])


def test_accuracy_is_above_chance(runs):
    for name in ("dense", "prunex-0.4"):
        assert runs[name]["accuracy"] > 0.3, name


def test_report(document, tmp_path):
    sys.path.insert(0, str(EXAMPLES))
    try:
        import train_report
        from compare_training import joined
    finally:
        sys.path.remove(str(EXAMPLES))
    whole = joined([{**document, "asked_rate": "none"}])
    text = train_report.text_of(whole)
    assert "| prunex-0.4 |" in text
    assert "x dense-prunex (PruneX without masks)" in text
    assert "equal parameters and masks on all ranks: True" in text
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (path,) = train_report.plot_all(whole, str(tmp_path))
    with open(path, "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"

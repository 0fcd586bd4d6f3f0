#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gathers what the steps of gpu-check.sh left in a folder: one table on stdout, and gpu-check.json.

  gpu_report.py FOLDER

The machine comes in PRUNEX_GPU, PRUNEX_ARCH, PRUNEX_DRIVER, PRUNEX_MODE, PRUNEX_NVCC and PRUNEX_NCCL, what was run in
PRUNEX_VERSION and PRUNEX_COMMIT, how it went in PRUNEX_STATUS and PRUNEX_SECONDS. A file that a killed step left half-written
is told of and counts as absent.
"""
import json
import os
import pathlib
import sys


def load(path, problems):
    try:
        return json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        problems.append(f"{path.name}: {error}")
        return None


def steps_of(folder):
    try:
        text = (folder / "steps.tsv").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    steps = []
    for line in text.splitlines():
        name, result, seconds, note = (line.split("\t") + [""] * 4)[:4]
        steps.append({"name": name, "result": result.lower(), "seconds": float(seconds or 0), "note": note})
    return steps


def tests_of(device):
    """Counts of GoogleTest's own report."""
    if not isinstance(device, dict):
        return None
    cases = [case for suite in device.get("testsuites", []) for case in suite.get("testsuite", [])]
    return {
        "tests": len(cases),
        "failed": [f"{c.get('classname')}.{c.get('name')}" for c in cases if c.get("failures")],
        "skipped": sum(c.get("result") == "SKIPPED" for c in cases),
    }


def goal_of(row):
    if not row.get("goal"):
        return ""
    return f"  goal {row['goal']}: {'reached' if row.get('reached') else 'NOT REACHED'}"


def result_of(steps):
    """Of all: a failure anywhere, the status that the script ends with, or nothing but skips, is no pass."""
    results = {step["result"] for step in steps}
    if "fail" in results or os.environ.get("PRUNEX_STATUS", "0") != "0":
        return "fail"
    return "pass" if "pass" in results else "skip"


def lines_of(steps, pack, nccl):
    yield f"{'what':<44} {'result':<8} {'seconds':>8}  note"
    for step in steps:
        yield f"{step['name']:<44} {step['result']:<8} {step['seconds']:8.1f}  {step['note'][:90]}"
    for case in nccl or []:
        note = case.get("fault") or ", ".join(f"{k} {v}" for k, v in case.get("counted", {}).items() if v)
        yield f"{'nccl: ' + case['case']:<44} {case['result']:<8} {case.get('seconds', 0):8.1f}  {note[:90]}"
    for row in pack or []:
        name = f"{row.get('step')}: {row.get('subject')} {row.get('dtype', '')}"
        if row.get("step") == "compile":  # there is no copy to compare it with
            yield f"{name:<44} {row.get('us', 0):8.1f} us{goal_of(row)}"
        else:
            yield f"{name:<44} {row.get('of_copy') or 0:8.3f} of a device copy{goal_of(row)}"


def main():
    folder = pathlib.Path(sys.argv[1])
    problems = []
    pack = load(folder / "pack.json", problems)
    nccl = load(folder / "nccl.json", problems)
    device = tests_of(load(folder / "device.json", problems))
    steps = steps_of(folder)
    report = {
        "schema": "prunex-gpu-check",
        "version": 1,
        "gpu": os.environ.get("PRUNEX_GPU", ""),
        "arch": os.environ.get("PRUNEX_ARCH", ""),
        "driver": os.environ.get("PRUNEX_DRIVER", ""),
        "compute_mode": os.environ.get("PRUNEX_MODE", ""),
        "nvcc": os.environ.get("PRUNEX_NVCC", ""),
        "nccl_version": os.environ.get("PRUNEX_NCCL", ""),
        "prunex": {"version": os.environ.get("PRUNEX_VERSION", ""), "commit": os.environ.get("PRUNEX_COMMIT", "")},
        "result": result_of(steps),
        "seconds": float(os.environ.get("PRUNEX_SECONDS", 0)),
        "steps": steps,
        "device": device,
        "pack": pack,
        "nccl": nccl,
        "unreadable": problems,
    }
    out = folder / "gpu-check.json"
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    rows = pack if isinstance(pack, list) else (pack or {}).get("rows", [])
    print("\n".join(lines_of(steps, rows, nccl)))
    print(f"{report['result']}: PruneX {report['prunex']['version']} ({report['prunex']['commit'][:12]}), {report['gpu']}, "
          f"driver {report['driver']}, nvcc {report['nvcc'] or '-'}, NCCL {report['nccl_version'] or '-'}")
    for problem in problems:
        print(f"unreadable: {problem}")
    print(out)


if __name__ == "__main__":
    main()

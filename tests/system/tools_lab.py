# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of the command `prunex`."""
import json
import os
import signal
import subprocess
import sys

from lab import LIMIT, ROOT, Done

# The build under test; meson says which.
PRUNEX = os.environ.get("PRUNEX_UNDER_TEST", str(ROOT / "build" / "tools" / "prunex"))

# What launchers set: a test starts from a world of its own.
LAUNCHER = ("PRUNEX_", "OMPI_", "PMI_", "SLURM_", "MASTER_", "NCCL_")
SINGLE = ("LD_LIBRARY_PATH", "RANK", "WORLD_SIZE", "NODE_RANK", "NNODES", "LOCAL_RANK", "NETLAB_MODE", "NETLAB_RATE")


def environment(**extra):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER) and k not in SINGLE}
    clean.update(extra)
    return clean


def prunex(*arguments, env=None, **popen):
    run = subprocess.run([PRUNEX, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT,
                         env=environment(**(env or {})), **popen)
    return Done(run.returncode, run.stdout, run.stderr)


def start(*arguments, env=None, **popen):
    # A script's background jobs may ignore SIGINT, and children inherit that.
    return subprocess.Popen([PRUNEX, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=environment(**(env or {})),
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **popen)


def ranks(*options, script, **popen):
    """Runs a Python script on each rank."""
    return prunex("run", *options, "--", sys.executable, "-c", script, **popen)


def document(done):
    if done.code != 0:
        raise AssertionError(f"exit {done.code}: {done.err}")
    return json.loads(done.out)


QUICK = ("--iters", 2, "--warmup", 1)


def allreduce(*arguments, **options):
    return prunex("bench", "allreduce", *arguments, **options)


def rows_of(*arguments, **options):
    return document(allreduce(*arguments, "--json", "-", **options))["results"]

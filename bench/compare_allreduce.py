#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Dense all-reduce of prunex beside OpenMPI (tcp between nodes, shared memory inside) and Gloo, in turn, on
an emulated cluster (scripts/netlab.sh, as fast as its links go).
 OpenMPI needs mpicxx and mpirun, Gloo needs torch in $COMPARE_PYTHON
(default: python3); what is missing is left out and said. Ratios are of medians over the rounds."""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("PRUNEX_BUILD", ROOT / "build"))


def serve(folder):
    """Nodes other than 0 only lend their namespaces, until node 0 has removed the folder."""
    (folder / ("node" + os.environ["NODE_RANK"])).write_text(str(os.getpid()))
    while folder.exists():
        time.sleep(0.1)


def launch(options):
    """Starts this program again on every node of a lab, with a folder that they have in common."""
    with tempfile.TemporaryDirectory(prefix="prunex-compare-") as folder:
        command = [str(ROOT / "scripts" / "netlab.sh"), "--nodes", str(options.nodes), "--",
                   sys.executable, __file__, *sys.argv[1:], "--folder", folder]
        return subprocess.call(command)


def on_node(node, pids, command):
    if node == 0:
        return command
    return ["nsenter", "-t", pids[node], "-n", "-u", "-m", "-w" + os.getcwd(), *command]


def run_ranks(command, pids, per_node, extra):
    world = len(pids) * per_node
    procs = []
    for rank in range(world):
        node = rank // per_node
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), PRUNEX_RANK=str(rank),
                   PRUNEX_WORLD_SIZE=str(world), PRUNEX_NODE_ID=f"node{node}", **extra)
        procs.append(subprocess.Popen(on_node(node, pids, command), env=env, stdout=subprocess.PIPE,
                                      text=True))
    out = [p.communicate(timeout=300)[0] for p in procs]
    if any(p.returncode for p in procs):
        raise RuntimeError(f"{command[0]} failed")
    return float(out[0].split()[0])


def run_mpi(binary, pids, per_node, args, folder):
    agent = folder / "agent"
    agent.write_text("#!/bin/sh\nnode=${1#node}; shift\n"
                     f"exec nsenter -t $(cat {folder}/node$node) -n -u -m sh -c \"$*\"\n")
    agent.chmod(0o755)
    hosts = ",".join(f"node{n}:{per_node}" for n in range(len(pids)))
    command = ["mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", str(agent),
               "--mca", "btl", "tcp,vader,self", "--mca", "btl_tcp_if_include", "eth0",
               "--mca", "oob_tcp_if_include", "eth0", "--mca", "pml", "ob1", "--bind-to", "none",
               "--mca", "mpi_yield_when_idle", "1", "-np", str(len(pids) * per_node), "-H", hosts,
               str(binary), *args]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "SLURM"))}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout.split()[0])


def contenders(options, folder, pids):
    args = [str(options.bytes), str(options.iters), str(options.warmup)]
    per_node = options.ranks_per_node
    found = {"prunex": lambda: run_ranks([str(BUILD / "bench" / "compare_prunex"), *args], pids,
                                         per_node, {})}
    if shutil.which("mpicxx") and shutil.which("mpirun"):
        binary = folder / "compare_mpi"
        subprocess.run(["mpicxx", "-O2", "-o", str(binary), str(ROOT / "bench" / "compare_mpi.cc")],
                       check=True)
        found["openmpi"] = lambda: run_mpi(binary, pids, per_node, args, folder)
    else:
        print("openmpi left out: no mpicxx or mpirun", file=sys.stderr)
    python = os.environ.get("COMPARE_PYTHON", "python3")
    probe = subprocess.run([python, "-c", "import torch.distributed as d; assert d.is_gloo_available()"],
                           capture_output=True)
    if probe.returncode == 0:
        found["gloo"] = lambda: run_ranks([python, str(ROOT / "bench" / "compare_gloo.py"), *args],
                                          pids, per_node, {"GLOO_SOCKET_IFNAME": "eth0"})
    else:
        print(f"gloo left out: {python} has no torch with gloo", file=sys.stderr)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--iters", type=int, default=3, help="per round; the round's median counts")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--ranks-per-node", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--json")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.folder:
        sys.exit(launch(options))
    folder = pathlib.Path(options.folder)
    if os.environ["NODE_RANK"] != "0":
        return serve(folder)
    (folder / "node0").write_text(str(os.getpid()))
    nodes = int(os.environ["NNODES"])
    deadline = time.monotonic() + 30
    while not all((folder / f"node{n}").exists() for n in range(nodes)):
        if time.monotonic() > deadline:
            sys.exit("not all nodes came")
        time.sleep(0.05)
    pids = [(folder / f"node{n}").read_text() for n in range(nodes)]
    try:
        found = contenders(options, folder, pids)
        times = {name: [] for name in found}
        for i in range(options.rounds):
            for name, run in found.items():
                times[name].append(run())
            print(f"round {i + 1}/{options.rounds} "
                  + " ".join(f"{n} {t[-1]:.1f} ms" for n, t in times.items()), file=sys.stderr)
    finally:
        shutil.rmtree(folder)
    medians = {n: statistics.median(t) for n, t in times.items()}
    rest = {n: m for n, m in medians.items() if n != "prunex"}
    print(f"{'library':10} {'median ms':>10} {'busbw GB/s':>11} {'prunex is':>10}")
    world = nodes * options.ranks_per_node
    for name, ms in medians.items():
        busbw = options.bytes / ms / 1e6 * 2 * (world - 1) / world
        print(f"{name:10} {ms:10.2f} {busbw:11.2f} {ms / medians['prunex']:9.2f}x")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(
            {"schema": "prunex.bench.compare", "version": 1, "bytes": options.bytes, "nodes": nodes,
             "ranks_per_node": options.ranks_per_node, "times_ms": times, "median_ms": medians,
             "speedup_over_best": min(rest.values()) / medians["prunex"] if rest else None}, indent=1))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The NCCL plugin's network beside bare TCP (bench/tcp_baseline) and one iperf3 stream, in turn.

On loopback: bandwidth of each size as it is (passthrough) and with a look at every message (auto), an 8-byte
ping-pong, and the time to connect. With --netlab RATE: on two emulated nodes (scripts/netlab.sh), data of
density 0.4 with and without a mask beside dense data and iperf3. Figures are medians over the rounds, ratios
are medians of the ratios within each round; "best" compares the best rounds of each. MB = 10^6 bytes. Build bench/tcp_baseline, tools/prunex and the
plugin first."""
import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("PRUNEX_BUILD", ROOT / "build"))
PRUNEX = str(BUILD / "tools" / "prunex")
BARE = str(BUILD / "bench" / "tcp_baseline")
LIMIT = 120  # seconds for one measurement
SIZES = {"64K": 64 << 10, "256K": 256 << 10, "1M": 1 << 20, "4M": 4 << 20}


def lab_tools():
    """Labs that one program drives from node 0 are made by compare_allreduce.py."""
    spec = importlib.util.spec_from_file_location("compare_allreduce", ROOT / "bench" / "compare_allreduce.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def output(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=env)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def iperf3(options, server=(), client=(), address="127.0.0.1"):
    """MB/s that arrive."""
    port = str(free_port())
    serving = subprocess.Popen([*server, "iperf3", "-s", "-1", "-p", port], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            done = subprocess.run([*client, "iperf3", "-c", address, "-p", port, "-t", str(max(1, round(options.seconds))), "-J"],
                                  capture_output=True, text=True, timeout=LIMIT)
            end = json.loads(done.stdout or "{}").get("end", {})  # what fails may exit with 0
            if "sum_received" in end:
                return end["sum_received"]["bits_per_second"] / 8e6
            time.sleep(0.1)
        raise RuntimeError("iperf3: " + done.stdout[-300:])
    finally:
        serving.kill()
        serving.wait()


def bare(options, streams, size, guess):
    """MB/s; moves about as much as takes the time asked for."""
    total = max(size * 16, int(guess * 1e6 * options.seconds))
    return float(output([BARE, "--streams", str(streams), "--size", str(size), "--total", str(total)])) * 1e3


def p2p(options, size, *more):
    made = json.loads(output([PRUNEX, "bench", "p2p", "-s", str(size), "-D", str(options.seconds), "--json", "-", *more]))
    return made, made["results"][0]["sum"]


def loopback_round(options, guess):
    r = {"iperf3": iperf3(options), "sizes": {}}
    connect = []
    for name, size in SIZES.items():
        row = {}
        for mode in ("passthrough", "auto"):
            made, part = p2p(options, size, "--mode", mode)
            row[mode] = part["bw_average_MBps"]
            connect.append(max(made["connect_us"].values()))
        for streams in options.streams:
            row[f"bare_{streams}"] = bare(options, streams, size, guess)
        r["sizes"][name] = row
    _, part = p2p(options, 8, "--latency", "--mode", "auto")
    r["ping_us"], r["ping_avg_us"] = part["time_us"]["p50"], part["time_us"]["avg"]
    trips = max(1000, int(options.seconds * 20000))
    r["bare_ping_us"] = float(output([BARE, "--ping-pong", "--yield", "--median", "--size", "8", "--round-trips", str(trips)])) / 2
    # NCCL's comms are one-way: a connection for each direction, whose acknowledgements ride on nothing.
    r["pair_ping_us"] = float(output([BARE, "--ping-pong", "--streams", "2", "--yield", "--median", "--size", "8",
                                      "--round-trips", str(trips)])) / 2
    r["connect_us"] = statistics.median(connect)
    return r


def loopback_summary(options, rounds):
    def over(pick):
        return statistics.median(pick(r) for r in rounds)

    rows = []
    for name in SIZES:
        best = [f"bare_{n}" for n in options.streams]
        rows.append({
            "size": name, "iperf3_MBps": over(lambda r: r["iperf3"]),
            **{f"{k}_MBps": over(lambda r: r["sizes"][name][k]) for k in ("passthrough", "auto", *best)},
            "over_iperf3": over(lambda r: r["sizes"][name]["passthrough"] / r["iperf3"]),
            "over_best_bare": over(lambda r: r["sizes"][name]["passthrough"] / max(r["sizes"][name][b] for b in best)),
            "auto_over_passthrough": over(lambda r: r["sizes"][name]["auto"] / r["sizes"][name]["passthrough"]),
            # The best of all rounds against the best of all rounds: what a busy machine took from neither.
            "best_over_best_iperf3": max(r["sizes"][name]["passthrough"] for r in rounds) / max(r["iperf3"] for r in rounds),
            "best_over_best_of_best_bare": max(r["sizes"][name]["passthrough"] for r in rounds)
            / max(r["sizes"][name][b] for r in rounds for b in best)})
    return {"sizes": rows,
            "ping_us": over(lambda r: r["ping_us"]), "ping_avg_us": over(lambda r: r["ping_avg_us"]),
            "bare_ping_us": over(lambda r: r["bare_ping_us"]),
            "ping_over_bare": over(lambda r: r["ping_us"] / r["bare_ping_us"]),
            "pair_ping_us": over(lambda r: r["pair_ping_us"]),
            "ping_over_pair": over(lambda r: r["ping_us"] / r["pair_ping_us"]),
            "best_ping_over_best_bare": min(r["ping_us"] for r in rounds) / min(r["bare_ping_us"] for r in rounds),
            "connect_us": over(lambda r: r["connect_us"])}


def print_loopback(options, s):
    columns = ["passthrough", "auto", *[f"bare_{n}" for n in options.streams], "iperf3"]
    print(f"{'size':>5} " + " ".join(f"{c:>12}" for c in columns) + f" {'/iperf3':>9} {'/best bare':>11} {'auto/pass':>10}"
          + f" {'best: /iperf3':>14} {'/bare':>6}")
    for row in s["sizes"]:
        print(f"{row['size']:>5} " + " ".join(f"{row[c + '_MBps']:12.0f}" for c in columns)
              + f" {row['over_iperf3']:8.2f}x {row['over_best_bare']:10.2f}x {row['auto_over_passthrough']:9.3f}x"
              + f" {row['best_over_best_iperf3']:13.2f}x {row['best_over_best_of_best_bare']:5.2f}x")
    print(f"8-byte half round trip, typical: {s['ping_us']:.2f} us (mean {s['ping_avg_us']:.2f}), bare {s['bare_ping_us']:.2f} us, "
          f"{s['ping_over_bare']:.2f}x (best of each: {s['best_ping_over_best_bare']:.2f}x); bare with a connection for each direction "
          f"{s['pair_ping_us']:.2f} us, {s['ping_over_pair']:.2f}x; connected in {s['connect_us']:.0f} us")


def lab_pair(options, lab, pids, *more):
    """Both ends of a bench, one per node; what node 0 measured."""
    command = [PRUNEX, "bench", "p2p", "-s", str(options.lab_size), "-D", str(options.seconds), "--json", "-", *more]
    root = f"{os.environ['NETLAB_ADDR']}:{free_port()}"
    procs = []
    for node in (0, 1):
        env = dict(os.environ, PRUNEX_RANK=str(node), PRUNEX_WORLD_SIZE="2", PRUNEX_ROOT=root)
        procs.append(subprocess.Popen(lab.on_node(node, pids, command), env=env, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True))
    out = [p.communicate(timeout=LIMIT) for p in procs]
    if any(p.returncode for p in procs):
        raise RuntimeError(f"{more}: {out[0][1]} {out[1][1]}")
    return json.loads(out[0][0])["results"][0]["sum"]


def lab_round(options, lab, pids):
    zeros = ("--density", str(options.density))
    raw = lab_pair(options, lab, pids, "--mode", "passthrough")
    blocks = lab_pair(options, lab, pids, *zeros, "--pattern", "blocks")
    masked = lab_pair(options, lab, pids, *zeros, "--pattern", "mask")
    # Node 1 receives, as in the other measurements.
    address = os.environ["NETLAB_ADDR"].rsplit(".", 1)[0] + ".2"
    return {"iperf3": iperf3(options, server=lab.on_node(1, pids, []), address=address),
            "raw": raw["bw_average_MBps"], "zero_block": blocks["bw_average_MBps"],
            "masked": masked["bw_average_MBps"], "density": blocks["density"],
            "kinds": {"zero_block": blocks["kinds"], "masked": masked["kinds"]}}


def run_lab(options):
    lab = lab_tools()
    folder = pathlib.Path(options.folder)
    if os.environ["NODE_RANK"] != "0":
        lab.serve(folder)
        return None
    (folder / "node0").write_text(str(os.getpid()))
    deadline = time.monotonic() + 30
    while not (folder / "node1").exists() or not (folder / "node1").read_text():
        if time.monotonic() > deadline:
            raise RuntimeError("node 1 did not come")
        time.sleep(0.05)
    pids = [(folder / f"node{n}").read_text() for n in (0, 1)]
    try:
        rounds = []
        for i in range(options.rounds):
            rounds.append(lab_round(options, lab, pids))
            print(f"round {i + 1}/{options.rounds}: " + " ".join(
                f"{k} {rounds[-1][k]:.1f}" for k in ("iperf3", "raw", "zero_block", "masked")) + " MB/s", file=sys.stderr)
    finally:
        shutil.rmtree(folder)
    over = lambda pick: statistics.median(pick(r) for r in rounds)  # noqa: E731
    summary = {k + "_MBps": over(lambda r: r[k]) for k in ("iperf3", "raw", "zero_block", "masked")}
    summary.update({
        "density": rounds[0]["density"], "raw_over_iperf3": over(lambda r: r["raw"] / r["iperf3"]),
        "zero_block_over_raw": over(lambda r: r["zero_block"] / r["raw"]),
        "masked_time_over_density_times_raw": over(lambda r: r["raw"] / r["masked"] / r["density"])})
    print(f"{os.environ['NETLAB_RATE']}, messages of {options.lab_size} bytes, density {summary['density']:.4f}: "
          f"raw {summary['raw_MBps']:.1f} MB/s = {summary['raw_over_iperf3']:.3f}x iperf3; zero-block "
          f"{summary['zero_block_over_raw']:.2f}x raw; masked takes {summary['masked_time_over_density_times_raw']:.3f}x "
          "of density * raw's time")
    return {"netlab": summary, "rounds": rounds}


def run_loopback(options):
    rounds, guess = [], 2000
    for i in range(options.rounds):
        rounds.append(loopback_round(options, guess))
        guess = rounds[-1]["sizes"]["256K"]["passthrough"]
        print(f"round {i + 1}/{options.rounds}: iperf3 {rounds[-1]['iperf3']:.0f} MB/s, passthrough " + ", ".join(
            f"{n} {r['passthrough']:.0f}" for n, r in rounds[-1]["sizes"].items()), file=sys.stderr)
    summary = loopback_summary(options, rounds)
    print_loopback(options, summary)
    return {"loopback": summary, "rounds": rounds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement (0.5; at least 1 for iperf3)")
    parser.add_argument("--streams", type=lambda t: [int(n) for n in t.split(",")], default=[1, 2, 4],
                        help="of bare TCP (1,2,4)")
    parser.add_argument("--netlab", metavar="RATE", help="on two emulated nodes instead, such as 1gbit")
    parser.add_argument("--lab-size", type=int, default=1 << 20, help="bytes of a message there (1048576)")
    parser.add_argument("--density", type=float, default=0.4)
    parser.add_argument("--json")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    missing = [path for path in (PRUNEX, BARE) if not os.access(path, os.X_OK)]
    if missing:
        parser.error(f"{missing[0]} is not there: scripts/build.sh builds it (PRUNEX_BUILD names another folder)")
    if options.netlab and not options.folder:
        with tempfile.TemporaryDirectory(prefix="prunex-compare-", ignore_cleanup_errors=True) as folder:
            sys.exit(subprocess.call([str(ROOT / "scripts" / "netlab.sh"), "--nodes", "2", "--rate", options.netlab, "--",
                                      sys.executable, __file__, *sys.argv[1:], "--folder", folder]))
    made = run_lab(options) if options.netlab else run_loopback(options)
    if made and options.json:
        pathlib.Path(options.json).write_text(json.dumps({
            "schema": "prunex.bench.compare_net", "version": 1, "seconds": options.seconds,
            "load_average": os.getloadavg(), **made}, indent=1) + "\n")


if __name__ == "__main__":
    main()

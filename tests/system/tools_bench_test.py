#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `prunex bench`. Usage: tools_bench_test.py CASE. Cases of user reports begin with their id."""
import csv
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from lab import LIMIT, NETLAB, Done, Mark, expect, run_cases, skip, wait_until
from tools_lab import PRUNEX, QUICK, allreduce, document, environment, prunex, rows_of, start


def number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---- the document ---------------------------------------------------------------------------------------


def case_contract_keys():
    made = document(allreduce("--nodes", 2, "--ranks-per-node", 2, "--size", "256k", "--keep", 0.4, "--dtype", "f32",
                              *QUICK, "--check", "--json", "-"))
    expect(made["schema"] == "prunex.bench.allreduce" and made["version"] == 1, made)
    expect(made["world"] == 4 and made["nodes"] == 2 and made["transport"] == "socket", made)
    expect([r["mode"] for r in made["results"]] == ["dense", "compact"], made)
    for row in made["results"]:
        for key in ("bytes", "density", "bytes_wire", "algbw_GBps", "busbw_GBps", "pack_us", "agree_us", "inter_us",
                    "intra_us", "errors"):
            expect(number(row[key]), key, row)
        times = [row["time_us"][k] for k in ("min", "p50", "p90", "p99", "max")]
        expect(all(number(t) for t in times) and times == sorted(times) and times[0] > 0, row)
        expect(row["bytes"] == 256 * 1024 and row["errors"] == 0, row)
        expect(abs(row["busbw_GBps"] - row["algbw_GBps"] * 2 * 3 / 4) <= 2e-6, "as nccl-tests defines it", row)
    dense, compact = made["results"]
    expect(dense["density"] == 1 and abs(compact["density"] - 0.4) < 0.01, made)
    # Every byte of a dense exchange between two nodes crosses once in each direction.
    expect(dense["bytes_wire"] >= 2 * dense["bytes"], dense)
    expect(compact["bytes_wire"] <= dense["bytes_wire"] * compact["density"] + 4096, made)


def case_model_resnet18():
    """Real shapes: every element of every rank is checked, and the wire carries the kept ones."""
    dense, compact = rows_of("--nodes", 2, "--ranks-per-node", 1, "--model", "resnet18", "--keep", 0.4, "--iters", 1,
                             "--warmup", 0, "--check")
    expect(dense["bytes"] == 4 * 11689512 and dense["elements"] == 11689512, dense)
    expect(dense["errors"] == 0 and compact["errors"] == 0, dense, compact)
    expect(abs(compact["density"] - 0.436) < 0.001, compact)
    expect(compact["bytes_wire"] <= 0.44 * dense["bytes_wire"], dense, compact)
    expect(compact["calls_compact"] == 1 and compact["calls_dense"] == 0, compact)


def case_model_in_buckets():
    dense, compact = rows_of("--nodes", 2, "--ranks-per-node", 2, "--model", "resnet18", "--keep", 0.5, "--iters", 1,
                             "--warmup", 0, "--check", "--bucket-mb", 10)
    expect(dense["buffers"] > 3 and compact["calls_compact"] + compact["calls_dense"] == dense["buffers"], compact)
    expect(dense["errors"] == 0 and compact["errors"] == 0, dense, compact)


def case_densities_in_one_run():
    rows = rows_of("--nodes", 2, "--size", "1M", "--keep", "0.5,0.25,0", *QUICK, "--check")
    expect([r["keep"] for r in rows] == [None, 0.5, 0.25, 0], rows)
    wire = [r["bytes_wire"] for r in rows]
    expect(wire == sorted(wire, reverse=True) and wire[2] < 0.3 * wire[0], wire)
    expect(all(r["errors"] == 0 for r in rows), rows)


def case_types_and_operations():
    for more in (("--dtype", "bf16"), ("--dtype", "f16", "--op", "avg"), ("--dtype", "i8", "--op", "avg"),
                 ("--dtype", "u8", "--op", "max"), ("--dtype", "f64", "--op", "min"), ("--dtype", "i64"),
                 ("--dtype", "i32", "--op", "prod"), ("--out-of-place",), ("--contract", "project"),
                 ("--contract", "sampled", "--out-of-place"), ("--scope", "node"),
                 ("--scope", "leaders", "--contract", "project", "--out-of-place")):
        rows = rows_of("--layout", "1,2", "--size", "1000,100k", "--keep", 0.3, *QUICK, "--check", *more)
        expect([r["errors"] for r in rows] == [0, 0, 0, 0], more, rows)


def case_layouts():
    for world in (("--layout", "1,2,3"), ("--order", "ABCABC"), ("-n", 1), ("--nodes", 3), ("-n", 5, "--nodes", 2)):
        rows = rows_of(*world, "--size", "64k", "--keep", 0.4, *QUICK, "--check")
        expect([r["errors"] for r in rows] == [0, 0], world, rows)


def case_tcp_baseline():
    made = document(allreduce("--nodes", 2, "--size", "64k", "--keep", 0.5, *QUICK, "--baseline", "tcp", "--json", "-"))
    speed = made["baseline_tcp_GBps"]
    expect(number(speed) and speed > 0, made)
    for row in made["results"]:
        bound = row["bytes"] * row["density"] / speed / 1e3  # two nodes: each byte crosses each link once
        expect(abs(row["bound_us"] - bound) < 0.01 * bound, row, bound)


def case_baseline_needs_a_link():
    done = allreduce("--nodes", 1, "--size", "64k", *QUICK, "--baseline", "tcp", "--json", "-")
    expect(document(done)["baseline_tcp_GBps"] is None, done)
    expect(done.err.count("--baseline tcp") == 1 and "one node" in done.err, done.err)


def case_no_bound_for_what_travels_dense():
    """Without compaction there is neither a bound nor a speed-up, and one line says why."""
    for arguments, reason in ((("--op", "max", "--size", "64k,128k"), "op max"), (("--scope", "node", "--size", "64k"), "scope node"),
                              (("--size", "1k"), "2048 bytes"), (("--size", "64k", "--keep", 0.99), "0.97"),
                              (("--size", "64k", "--nodes", 1), "one node")):
        world = () if "--nodes" in arguments else ("--nodes", 2)
        keep = () if "--keep" in arguments else ("--keep", 0.4)
        made = document(allreduce(*world, *arguments, *keep, *QUICK, "--baseline", "tcp", "--json", "-"))
        for row in made["results"]:
            if row["mode"] == "dense":
                expect(row["dense_because"] is None and row["speedup"] is None, arguments, row)
            else:
                expect(row["speedup"] is None and row["bound_us"] is None, arguments, row)
                expect(reason in row["dense_because"], arguments, row)
        done = allreduce(*world, *arguments, *keep, *QUICK)
        lines = done.out.splitlines()
        compact = [line.split() for line in lines if " compact " in line]
        expect(compact and all(line[-3:] == ["-", "-", "-"] for line in compact), arguments, done.out)
        expect(len([line for line in lines if line.startswith("# no speed-up") and reason in line]) == 1, arguments, done.out)
    row = rows_of("--nodes", 2, "--size", "1M", "--keep", 0.4, *QUICK)[1]
    expect(row["dense_because"] is None and number(row["speedup"]), row)


def case_paced_loopback():
    """A rate without namespaces: PruneX's own connections are paced, and whoever reads the figures is told."""
    def lab(*options):
        run = subprocess.run([NETLAB, "--nodes", "2", "--loopback", *options, "--", PRUNEX, "bench", "allreduce",
                              "--ranks-per-node", "2", "--size", "1000,1M", "--keep", "0.4", "--iters", "2", "--warmup",
                              "1", "--check", "--baseline", "tcp", "--json", "-"],
                             capture_output=True, text=True, timeout=LIMIT, env=environment())
        return document(Done(run.returncode, run.stdout, run.stderr)), run.stderr
    made, err = lab("--rate", "200mbit")
    expect(made["link"] == "paced loopback" and made["pacing_rate"] == "200mbit", made)
    expect(made["netlab"] == {"mode": "loopback", "rate": "none"}, made)
    expect([r["errors"] for r in made["results"]] == [0, 0, 0, 0], made)
    # Paced like the rest: what buffers held when the clock started does not double the rate.
    expect(0 < made["baseline_tcp_GBps"] <= 2 * 0.025, made)
    expect("200mbit" in err and "paced" in err, err)
    made, err = lab()
    expect(made["link"] == "loopback" and made["pacing_rate"] is None, made)
    done = allreduce("--nodes", 2, "--size", "64k", *QUICK, env={"PRUNEX_PACING_RATE": "1gbit"})
    expect("# paced network as it is: at most 1gbit" in done.out, done)
    expect(document(allreduce("--nodes", 2, "--size", "64k", *QUICK, "--json", "-"))["link"] == "network as it is")
    done = allreduce("--nodes", 2, "--size", "64k", *QUICK, env={"PRUNEX_PACING_RATE": "fast"})
    expect(done.code == 2 and "PRUNEX_PACING_RATE=fast" in done.err, done)


# ---- where output goes -----------------------------------------------------------------------------------


def case_G1_json_beside_logs():
    loud = {"NCCL_DEBUG": "TRACE", "PRUNEX_DEBUG": "TRACE"}
    made = document(allreduce("--nodes", 2, "--size", "64k", "--keep", 0.4, *QUICK, "--json", "-", env=loud))
    expect(made["version"] == 1, made)
    # The very pipe users build.
    line = f"'{PRUNEX}' bench allreduce --size 1k --iters 2 --json - 2>/dev/null | python3 -c 'import json, sys; json.load(sys.stdin)'"
    subprocess.run(["bash", "-o", "pipefail", "-c", line], check=True, timeout=LIMIT, env=environment(**loud))


def case_G1_csv_is_a_table():
    loud = {"NCCL_DEBUG": "TRACE", "PRUNEX_DEBUG": "TRACE"}
    done = allreduce("--nodes", 2, "-b", "1K", "-e", "8K", "--keep", 0.5, *QUICK, "--check", "--csv", "-", env=loud)
    table = list(csv.reader(io.StringIO(done.out)))
    expect(done.code == 0 and len(table) == 1 + 2 * 4, done)
    expect(len({len(row) for row in table}) == 1, "constant column count", table)
    for row in table[1:]:
        expect(row[0] in ("dense", "compact"), row)
        for name, value in zip(table[0][1:], row[1:]):
            expect(value == "" or float(value) >= 0, name, value)


def case_silent_when_all_is_well():
    done = allreduce("--nodes", 2, "--size", "64k", *QUICK)
    expect(done.code == 0 and done.err == "" and done.out.startswith("# prunex bench allreduce"), done)
    done = allreduce("--nodes", 2, "--size", "64k", *QUICK, "--progress")
    expect(done.code == 0 and done.err.endswith("\n") and done.out != "", done)


def case_trace_tells_of_every_call():
    done = allreduce("--nodes", 2, "--ranks-per-node", 2, "--size", "1M", "--keep", 0.4, "--iters", 1, "--warmup", 0,
                     env={"PRUNEX_DEBUG": "TRACE"})
    lines = [line for line in done.err.splitlines() if line.startswith("prunex TRACE") and "262144 elements f32" in line]
    form = re.compile(r"prunex TRACE rank (\d): exchange (\d+): sum of 262144 elements f32 over world, "
                      r"(dense|compact, 10\d{4} kept), exchange in (\d+) chunks of up to \d+ bytes; "
                      r"sent (\d+) and received (\d+) bytes; [\d.]+ us \(busy: pack [\d.]+, reduce [\d.]+, "
                      r"agree [\d.]+, between nodes [\d.]+, unpack [\d.]+\); done$")
    told = [form.match(line) for line in lines]
    expect(len(told) == 8 and all(told), "each of 4 ranks tells of 2 calls:", lines)
    for rank in range(4):
        mine = [t for t in told if t[1] == str(rank)]
        expect([t[3][:5] for t in mine] == ["dense", "compa"] and int(mine[0][2]) < int(mine[1][2]), mine)
        sent = [int(t[5]) for t in mine]
        if rank in (0, 2):  # the leaders
            expect(sent[0] >= 1 << 20 and 0.4 * sent[0] < sent[1] < 0.45 * sent[0], sent)
        else:
            expect(sent == [0, 0], sent)
    expect(done.err.count("2 nodes, 4 ranks, 1 rail") == 1, "the topology is told once", done.err)
    quiet = allreduce("--nodes", 2, "--size", "1M", *QUICK, env={"PRUNEX_DEBUG": "INFO"}).err
    expect("exchange" not in quiet and quiet.count("2 nodes, 2 ranks, 1 rail") == 1, quiet)


def case_unknown_variable_is_told_once_per_node():
    done = allreduce("--nodes", 2, "--ranks-per-node", 3, "--size", "1k", *QUICK, env={"PRUNEX_STREAM": "2"})
    told = [line for line in done.err.splitlines() if "PRUNEX_STREAM is set" in line]
    expect(done.code == 0 and len(told) == 2 and all("PRUNEX_STREAMS" in line for line in told), done.err)


def case_unwritable_path_fails_at_once():
    for path in ("/nonexist/x.json", "/proc/x.json", "/"):
        with Mark() as mark:
            done = allreduce("--size", "1G", "--json", path)
            expect(done.code == 1 and path in done.err and done.out == "", done)
            expect(not mark.running(), "nobody was left")
    done = allreduce("--size", "1G", "--csv", "/nonexist/x.csv")
    expect(done.code == 1 and "/nonexist/x.csv" in done.err, done)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            run = subprocess.run([PRUNEX, "bench", "allreduce", "--size", "1k", "--iters", "1", "--json", "-"],
                                 stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT, env=environment())
        expect(run.returncode == 1 and "stdout" in run.stderr, run)


def case_files_appear_whole():
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder, "x.json")
        target.write_text("old")
        link = pathlib.Path(folder, "link.json")
        link.symlink_to(target)
        done = allreduce("--nodes", 2, "--size", "1k", *QUICK, "--json", link, "--csv", f"{folder}/x.csv")
        expect(done.code == 0 and done.out.startswith("#"), "the table is still for people", done)
        expect(json.loads(target.read_text())["world"] == 2 and link.is_symlink(), os.listdir(folder))
        expect(sorted(os.listdir(folder)) == ["link.json", "x.csv", "x.json"], os.listdir(folder))
        # A run that ends early changes nothing.
        target.write_text("old")
        with Mark() as mark:
            process = start("bench", "allreduce", "--size", "1M", "--iters", 10000000, "--json", target, "--progress")
            expect("iteration" in next(line for line in process.stderr if "iteration" in line), "it runs")
            process.terminate()
            process.communicate(timeout=LIMIT)
            expect(process.returncode != 0, process.returncode)
            wait_until(lambda: not mark.running(), "end of all ranks")
        expect(target.read_text() == "old", target.read_text())
        expect(sorted(os.listdir(folder)) == ["link.json", "x.csv", "x.json"], os.listdir(folder))


def case_dead_rank_ends_the_run():
    with Mark() as mark:
        process = start("bench", "allreduce", "--size", "1M", "--iters", 10000000, "--json", "-", "--progress")
        next(line for line in process.stderr if "iteration" in line)
        victims = [pid for pid in mark.running() if rank_of(pid) == "3"]
        expect(len(victims) == 1, victims)
        os.kill(victims[0], 9)
        out, err = process.communicate(timeout=LIMIT)
        expect(process.returncode not in (0, None) and out == "", process.returncode, out)
        expect("rank 3" in err, err)
        wait_until(lambda: not mark.running(), "end of all ranks")


def rank_of(pid):
    try:
        variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((v[12:].decode() for v in variables if v.startswith(b"PRUNEX_RANK=")), None)


def case_G12_one_row_per_size():
    made = document(allreduce("--nodes", 2, "-b", "1K", "-e", "1M", *QUICK, "--json", "-"))
    expect([r["bytes"] for r in made["results"]] == [1024 << i for i in range(11)], made)
    names = set(made) | {k for r in made["results"] for k in list(r) + list(r["time_us"])}
    expect(not [n for n in names if "avg" in n or "mean" in n], names)


def case_G13_nothing_between_the_rows():
    done = prunex("bench", "allreduce", "--nodes", 2, "-b", "1K", "-e", "16K", *QUICK)
    lines = done.out.splitlines()
    header = next(i for i, line in enumerate(lines) if line.split()[:2] == ["bytes", "mode"])
    expect(all(line.startswith("#") for line in lines[:header]), lines)
    rows = lines[header + 1:]
    expect([row.split()[:2] for row in rows] == [[str(1024 << i), "dense"] for i in range(5)], rows)
    # Time per call, times calls, is the time that passed.
    made = document(allreduce("--nodes", 2, "--size", "4M", "--keep", 0.4, "--iters", 20, "--json", "-"))
    total = sum(r["total_us"] for r in made["results"])
    expect(0.95 * made["measured_us"] < total <= 1.05 * made["measured_us"], total, made["measured_us"])


# ---- worlds that others have started -----------------------------------------------------------------------


def case_joins_prunex_run():
    done = prunex("run", "-n", 4, "--nodes", 2, "--", PRUNEX, "bench", "allreduce", "--size", "64k", "--keep", 0.4, *QUICK,
                  "--check", "--json", "-")
    made = document(done)
    expect(made["world"] == 4 and made["nodes"] == 2, made)
    expect([r["errors"] for r in made["results"]] == [0, 0], made)


def case_joins_torchrun_variables():
    """Two processes as torchrun would start them; --nodes spreads them over emulated nodes."""
    root = f"127.0.0.1:{20000 + os.getpid() % 10000}"
    arguments = [PRUNEX, "bench", "allreduce", "--nodes", "2", "--size", "64k", "--iters", "2", "--check", "--json", "-"]
    processes = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env=environment(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), PRUNEX_ROOT=root,
                                         PRUNEX_TIMEOUT="30"))
        for rank in range(2)
    ]
    told = [p.communicate(timeout=LIMIT) for p in processes]
    expect([p.returncode for p in processes] == [0, 0], told)
    made = json.loads(told[0][0])
    expect(told[1][0] == "" and made["world"] == 2 and made["nodes"] == 2, told)


def case_joins_mpirun():
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        skip("mpirun is not installed")
    root = f"127.0.0.1:{20000 + os.getpid() % 10000}"
    run = subprocess.run([mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", PRUNEX, "bench", "allreduce", "--order",
                          "AB", "--size", "64k", "--iters", "2", "--json", "-"],
                         capture_output=True, text=True, timeout=LIMIT, env=environment(PRUNEX_ROOT=root, PRUNEX_TIMEOUT="30"))
    expect(run.returncode == 0, run)
    made = json.loads(run.stdout)
    expect(made["world"] == 2 and made["nodes"] == 2, made)


def case_world_of_another_size():
    env = {"RANK": "0", "WORLD_SIZE": "2", "PRUNEX_ROOT": "127.0.0.1:1", "PRUNEX_TIMEOUT": "5"}
    done = allreduce("-n", 4, env=env)
    expect(done.code == 2 and "0 of 2" in done.err and done.out == "", done)


def case_one_starter_per_node():
    """As in netlab: the command is started once per node, and only rank 0's node writes."""
    root = f"127.0.0.1:{20000 + os.getpid() % 10000}"
    arguments = [PRUNEX, "bench", "allreduce", "--ranks-per-node", "2", "--size", "64k", "--iters", "2", "--json", "-"]
    processes = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env=environment(NODE_RANK=str(node), NNODES="2", PRUNEX_NODE_ID=f"lab{node}", PRUNEX_ROOT=root,
                                         NETLAB_MODE="netns", NETLAB_RATE="1gbit"))
        for node in range(2)
    ]
    told = [p.communicate(timeout=LIMIT) for p in processes]
    expect([p.returncode for p in processes] == [0, 0] and told[1] == ("", ""), told)
    made = json.loads(told[0][0])
    expect(made["world"] == 4 and made["nodes"] == 2, made)
    expect(made["netlab"] == {"mode": "netns", "rate": "1gbit"}, made)


# ---- pack --------------------------------------------------------------------------------------------------


def case_pack():
    arguments = ("bench", "pack", "--isa", "scalar", "--dtype", "f32", "--pattern", "channels1x1,filters3x3", "--size",
                 "64k", "--iters", 1, "--warmup", 0)
    made = document(prunex(*arguments, "--json", "-", env={"PRUNEX_DEBUG": "TRACE"}))
    expect({r["pattern"] for r in made["results"]} == {"channels1x1", "filters3x3"}, made)
    expect(all(number(r["ratio"]) and r["isa"] == "scalar" for r in made["results"]), made)
    done = prunex(*arguments)
    expect(done.code == 0 and done.err == "" and len(done.out.splitlines()) == 1 + len(made["results"]), done)
    for bad in (("--isa", "neon"), ("--pattern", "x"), ("--size", "1X"), ("--dtype", "x")):
        done = prunex("bench", "pack", *bad)
        expect(done.code == 2 and done.out == "" and done.err != "", bad, done)


run_cases(globals())

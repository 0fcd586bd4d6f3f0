#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `prunex bench p2p`. Usage: tools_p2p_test.py CASE. Cases of user reports begin with their id."""
import csv
import io
import json
import os
import pathlib
import subprocess
import tempfile
import time

from lab import LIMIT, expect, require_namespaces, run_cases
from tools_lab import PRUNEX, document, environment, prunex

RDMA = os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband")
QUICK = ("--iters", 50, "--warmup", 5)
TIMES = ("min", "p50", "p90", "p99", "p999", "max")


def p2p(*arguments, **options):
    return prunex("bench", "p2p", *arguments, **options)


def rows_of(*arguments, **options):
    return document(p2p(*arguments, "--json", "-", **options))["results"]


def keys_of(value):
    """All keys, at every depth."""
    if isinstance(value, dict):
        return {k: keys_of(v) for k, v in value.items()}
    return [keys_of(v) for v in value[:1]] if isinstance(value, list) else None


# ---- what is measured ------------------------------------------------------------------------------------


def case_contract_keys():
    made = document(p2p("--size", "1k,64k", *QUICK, "--check", "--json", "-"))
    expect(made["schema"] == "prunex.bench.p2p" and made["version"] == 1, made)
    expect(made["network"] == "PRUNEX" and made["api"] == 12 and made["transport"] == "socket", made)
    expect(made["release"] == made["peer_release"] and made["device"] == "lo", made)
    expect(made["streams"] == 0, "0: automatic", made)
    expect(made["op"] == "send" and made["inflight"] == made["receives"] == 8, made)
    expect("receiver" in made["bw_is"] and "64 MiB" in made["bw_peak_is"], made)
    expect(all(v > 0 for v in made["connect_us"].values()), made)
    expect([r["bytes"] for r in made["results"]] == [1024, 65536], made)
    for row in made["results"]:
        expect(row["remote"] is None and row["local"] == row["sum"], row)
        part = row["sum"]
        expect(part["iterations"] == 50 and part["warmup_done"] == 5 and part["errors"] == 0, part)
        expect(part["bytes_logical"] == 50 * row["bytes"] and part["bw_average_MBps"] > 0, part)
        expect(part["bw_peak_MBps"] >= part["bw_average_MBps"], part)
        times = [part["time_us"][k] for k in TIMES]
        expect(times == sorted(times) and times[0] > 0, part)
        expect(sum(k["messages"] for k in part["kinds"].values()) == 50, "the plugin carried them", part)


def case_streams_are_a_number():
    expect(document(p2p("--size", "1k", *QUICK, "--streams", 3, "--json", "-"))["streams"] == 3)
    expect(document(p2p("--size", "1k", *QUICK, "--json", "-", env={"PRUNEX_STREAMS": "2"}))["streams"] == 2)
    expect(", streams 3," in p2p("--size", "1k", *QUICK, "--streams", 3).out)
    expect(document(p2p("--size", "1k", *QUICK, "-q", 4, "--json", "-"))["streams"] == 4, "perftest's option")


def case_every_table():
    """One program measures any version of the table."""
    for api in range(6, 13):
        made = document(p2p("--api", api, "--size", "100k", *QUICK, "--check", "--bidirectional", "--json", "-"))
        expect(made["api"] == api and made["results"][0]["sum"]["errors"] == 0, made)


def case_latency():
    for op in (("--op", "send", "--check"), ("--op", "write")):
        for iters in (1, 50, 70):  # less than the receives posted ahead, and more
            made = document(p2p("--latency", "--size", "8,100k", "--iters", iters, "--warmup", 3, *op, "--json", "-"))
            expect(made["op"] == op[1] and made["inflight"] == 1 and made["bw_peak_is"] is None, made)
            for row in made["results"]:
                part = row["sum"]
                expect(part["iterations"] == iters and not part["errors"] and part["bw_peak_MBps"] is None, part)
                expect(sum(k["messages"] for k in part["kinds"].values()) == iters, part)
                # Two halves of each round trip fit into the time that the run took.
                expect(2 * part["time_us"]["avg"] * iters <= 1.05e6 * part["seconds"] + 100, part)


def case_write_posts_ahead():
    """Any number of messages against receives that are posted and looked after by the batch."""
    for iters in (1, 15, 16, 17, 100):
        for inflight in (1, 8, 32):
            made = document(p2p("--op", "write", "--size", "300,70k", "--iters", iters, "--warmup", 0, "-t", inflight, "--json", "-"))
            expect(made["op"] == "write" and made["inflight"] == inflight and made["receives"] == 32, made)
            for row in made["results"]:
                part = row["sum"]
                expect(part["iterations"] == iters and part["bytes_logical"] == iters * row["bytes"], part)
                expect(part["kinds"]["raw"]["messages"] == iters and part["bw_peak_MBps"] >= part["bw_average_MBps"], part)
    for more in (("--bidirectional",), ("--density", 0.3), ("--duration", 0.2), ("--api", 6)):
        row, = rows_of("--op", "write", "--size", "64k", *more)
        expect(row["sum"]["iterations"] > 0 and row["sum"]["bw_average_MBps"] > 0, more, row)
    expect(", write, " in p2p("--op", "write", "--size", "1k", *QUICK).out)


def case_zero_blocks_are_left_out():
    row, = rows_of("--size", "1M", *QUICK, "--density", 0.25, "--check", "--mode", "compact")
    part = row["sum"]
    expect(abs(part["density"] - 0.25) < 0.01 and part["errors"] == 0, part)
    expect(part["kinds"]["zero_block"]["messages"] == 50, part)
    expect(part["bytes_wire"] < 0.27 * part["bytes_logical"], part)
    expect(part["bw_wire_MBps"] < 0.27 * part["bw_average_MBps"], part)
    row, = rows_of("--size", "1M", *QUICK, "--density", 0.25, "--check", "--mode", "passthrough")
    part = row["sum"]
    expect(part["bytes_wire"] == part["bytes_logical"] and part["kinds"]["raw"]["messages"] == 50, part)


def case_masks_are_used():
    row, = rows_of("--size", "256k", *QUICK, "--density", 0.4, "--pattern", "mask", "--check")
    part = row["sum"]
    expect(part["errors"] == 0 and part["kinds"]["masked"]["messages"] == 50, part)
    expect(part["bytes_wire"] < 0.43 * part["bytes_logical"], part)


def case_one_end_per_node():
    require_namespaces()
    netlab = str(pathlib.Path(__file__).resolve().parents[2] / "scripts" / "netlab.sh")
    done = subprocess.run([netlab, "--nodes", "2", "--", PRUNEX, "bench", "p2p", "--size", "64k", "--iters", "20",
                           "--check", "--bidirectional", "--json", "-"],
                          capture_output=True, text=True, timeout=LIMIT, env=environment())
    made = json.loads(done.stdout)
    expect(made["device"] == "eth0" and made["netlab"]["mode"] == "netns", made)
    expect(made["link"] == "network namespaces" and made["pacing_rate"] is None, made)
    expect(made["results"][0]["sum"]["errors"] == 0, made)


def case_link_is_named():
    """A rate without namespaces: whoever reads the figures is told, as by bench allreduce."""
    netlab = str(pathlib.Path(__file__).resolve().parents[2] / "scripts" / "netlab.sh")

    def lab(*options):
        return subprocess.run([netlab, "--loopback", "--nodes", "2", *options], capture_output=True, text=True,
                              timeout=LIMIT, env=environment())

    command = ("--", PRUNEX, "bench", "p2p", "--size", "64k", "--iters", "20", "--warmup", "1")
    made = json.loads(lab("--rate", "1gbit", *command, "--json", "-").stdout)
    expect(made["link"] == "paced loopback" and made["pacing_rate"] == "1gbit", made)
    expect("# paced loopback: at most 1gbit out of each connection" in lab("--rate", "1gbit", *command).stdout)
    made = json.loads(lab(*command, "--json", "-").stdout)
    expect(made["link"] == "loopback" and made["pacing_rate"] is None, made)
    made = document(p2p("--size", "1k", *QUICK, "--json", "-"))
    expect(made["link"] == "loopback" and made["pacing_rate"] is None and made["netlab"] is None, made)


# ---- where output goes -----------------------------------------------------------------------------------


def case_G1_json_beside_logs():
    loud = {"NCCL_DEBUG": "TRACE", "PRUNEX_DEBUG": "TRACE"}
    done = p2p("--size", "1k", *QUICK, "--json", "-", env=loud)
    expect(json.loads(done.out)["version"] == 1 and done.err != "", done)
    expect(json.loads(p2p("--op", "write", "--size", "1k", *QUICK, "--json", "-", env=loud).out)["op"] == "write")
    table = list(csv.reader(io.StringIO(p2p("-b", "1K", "-e", "8K", "--bidirectional", *QUICK, "--csv", "-", env=loud).out)))
    expect(len(table) == 1 + 3 * 4 and len({len(row) for row in table}) == 1, "constant column count", table)
    for row in table[1:]:
        for name, value in zip(table[0], row):
            expect(name in ("test", "part", "op") or value == "" or float(value) >= 0, name, value)


def case_silent_when_all_is_well():
    done = p2p("--size", "64k", *QUICK)
    expect(done.code == 0 and done.err == "", done)
    lines = done.out.splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith(" #bytes"))
    expect(len(lines) == header + 2 and lines[-1].split()[:2] == ["65536", "50"], lines)
    done = p2p("--size", "8", "--latency", *QUICK)
    expect(done.code == 0 and done.err == "" and len(done.out.splitlines()[-1].split()) == 9, done)


# Of perftest 4.5, as its users' scripts know them.
PERFTEST = {
    "bandwidth": " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]",
    "gbits": " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]",
    "latency": " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
               "   99% percentile[usec]   99.9% percentile[usec]",
}


def case_perftests_columns():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "made.json")

        def table(*more):
            done = p2p("--size", "64k", *QUICK, "--json", path, *more)
            expect(done.code == 0, done)
            with open(path, encoding="utf-8") as file:
                made = json.load(file)["results"][0]["sum"]
            lines = done.out.splitlines()
            header = next(i for i, line in enumerate(lines) if line.startswith(" #bytes"))
            return lines[header], lines[header + 1].split(), made

        for name, more, unit in (("bandwidth", (), 1 << 20), ("gbits", ("--report_gbits",), 1e9 / 8)):
            line, row, made = table(*more)
            expect(line == PERFTEST[name] and len(row) == 5 and row[:2] == ["65536", "50"], line, row)
            expect(abs(float(row[2]) - made["bw_peak_MBps"] * 1e6 / unit) < 0.01, row, made)
            expect(abs(float(row[3]) - made["bw_average_MBps"] * 1e6 / unit) < 0.01, row, made)
            expect(abs(float(row[4]) - made["msg_rate_Mpps"]) < 2e-6, row, made)
        line, row, made = table("--latency")
        expect(line == PERFTEST["latency"] and len(row) == 9, line, row)
        keys = ("min", "max", "p50", "avg", "stdev", "p99", "p999")
        expect(all(abs(float(v) - made["time_us"][k]) < 0.011 for v, k in zip(row[2:], keys)), row, made)
        # Ours stand behind.
        line, row, made = table("--density", 0.25, "--check")
        expect(line.startswith(PERFTEST["bandwidth"]) and line.split()[-6:] ==
               ["MsgRate[Mpps]", "density", "BW", "wire[MB/sec]", "wire/BW", "errors"], line)
        expect(len(row) == 9 and row[-1] == "0", row)
        wire = made["bw_wire_MBps"] * 1e6 / (1 << 20)
        expect(abs(float(row[6]) - wire) < 0.01 and abs(float(row[7]) - wire / float(row[3])) < 0.001, row, made)


def case_G3_one_document_with_three_parts():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "made.json")
        done = p2p("--bidirectional", "--size", "64k", *QUICK, "--check", "--json", path)
        expect(done.code == 0 and os.listdir(folder) == ["made.json"], done, os.listdir(folder))
        with open(path, encoding="utf-8") as file:
            row, = json.load(file)["results"]
    local, remote, total = row["local"], row["remote"], row["sum"]
    for part in (local, remote):
        expect(part["iterations"] == 50 and part["errors"] == 0 and part["bw_average_MBps"] > 0, row)
    expect(total["iterations"] == 100 and total["bytes_logical"] == 100 * 65536, row)
    expect(abs(total["bw_peak_MBps"] - local["bw_peak_MBps"] - remote["bw_peak_MBps"]) < 0.01, row)
    expect(total["seconds"] == max(local["seconds"], remote["seconds"]), row)
    expect(abs(total["bw_average_MBps"] * total["seconds"] * 1e6 - total["bytes_logical"]) < 1e-3 * total["bytes_logical"], row)


def case_G3_unwritable_path_fails_before_the_run():
    for option in ("--json", "--csv"):
        begin = time.monotonic()
        done = p2p("--duration", 30, option, "/nonexist/x.json")
        expect(done.code != 0 and done.out == "" and "/nonexist/x.json" in done.err, done)
        expect(time.monotonic() - begin < 20, "no traffic before it is said")


def case_G4_the_same_by_count_and_by_time():
    for more in ((), ("--latency",), ("--bidirectional",)):
        counted = document(p2p("--size", "4k", "--iters", 1000, *more, "--json", "-"))
        timed = document(p2p("--size", "4k", "--duration", 1, *more, "--json", "-"))
        expect(keys_of(counted) == keys_of(timed), keys_of(counted), keys_of(timed))
        part = timed["results"][0]["sum"]
        expect(all(part["time_us"][k] > 0 for k in TIMES) and part["bw_average_MBps"] > 0, part)
        expect(part["bw_peak_MBps"] is None if more == ("--latency",) else part["bw_peak_MBps"] > 0, part)
        expect(part["iterations"] > 0 and part["seconds"] > 0.5, part)


def case_G4_bounded_memory():
    """Many times as many messages take no more memory."""

    def peak(iters):
        code = ("import resource, subprocess, sys\n"
                "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
                "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        done = subprocess.run(["python3", "-c", code, PRUNEX, "bench", "p2p", "--size", "8", "--iters", str(iters)],
                              capture_output=True, text=True, timeout=LIMIT, env=environment(), check=True)
        return int(done.stdout)

    few, many = peak(1000), peak(1_000_000)
    expect(many < few + 4096, "KiB:", few, many)  # 8 bytes for each would be 8 MB


def case_G6_warmup_is_honoured_and_capped():
    row, = rows_of("--size", "64k", "--iters", 10, "--warmup", 0)
    expect(row["sum"]["warmup_done"] == 0 and row["sum"]["iterations"] == 10, row)
    made = document(p2p("--size", "4M", "--iters", 1, "--warmup", 10**9, "--json", "-"))
    part = made["results"][0]["sum"]
    expect(0 < part["warmup_done"] < 10**9 and made["warmup_cap_s"] > 0, part)


def case_G8_sizes():
    made = [[r["bytes"] for r in rows_of("--size", s, "--iters", 2)] for s in ("1k", "1K", "1024")]
    expect(made == [[1024]] * 3, made)
    expect([r["bytes"] for r in rows_of("-b", "1K", "-e", "16K", "-f", 4, "--iters", 2)] == [1024, 4096, 16384])
    for bad in (("-b", "8M", "-e", "1M"), ("-b=-1",), ("-b", "1X"), ("-b", "0"), ("-b", "99999999999999G"), ("-s", "2G"),
                ("-s", "1k", "-b", "1k")):
        done = p2p(*bad)
        expect(done.code == 2 and done.out == "" and done.err != "", bad, done)


# ---- arguments -------------------------------------------------------------------------------------------


def case_plugin_by_path():
    found = document(p2p("--size", "1k", *QUICK, "--json", "-"))["plugin"]
    made = document(p2p("--plugin", found, "--size", "1k", *QUICK, "--json", "-"))
    expect(made["plugin"] == found, made)
    for path in ("/nonexist/libnccl-net-x.so", "/etc/passwd"):
        done = p2p("--plugin", path, "--size", "1k")
        expect(done.code != 0 and done.out == "" and path in done.err, done)
    folder = os.path.dirname(found)
    done = p2p("--plugin", folder, "--size", "1k")
    expect(done.code != 0 and done.out == "" and f"{folder}: it is a folder" in done.err, done)
    # A library that is no network plugin.
    other = os.path.join(os.path.dirname(found), "libprunex.so")
    done = p2p("--plugin", other, "--size", "1k")
    expect(done.code != 0 and "ncclNetPlugin_v6" in done.err, done)


def case_usage():
    done = p2p("--transport", "verbs")
    if not RDMA:
        expect(done.code != 0 and done.out == "" and "--transport verbs: " in done.err, done)
        expect("looked in" not in done.err, "the plugin is not what is missing", done)
    done = p2p("--transport", "socket", "--qps", 2, "--size", "1k")
    expect(done.code == 2 and done.out == "" and "--qps" in done.err and "--streams" in done.err, done)
    done = p2p("--qps", 2, "--size", "1k", *QUICK, env={"PRUNEX_IB_DISABLE": "1"})
    expect(done.code == 0 and "# --qps 2 changes nothing" in done.out and "TCP" in done.out, done)
    done = p2p("-q", 2, "--size", "1k", *QUICK)
    expect(done.code == 0 and "changes nothing" not in done.out, done)
    done = p2p("--transport", "verbs", "--streams", 2, "--size", "1k")
    expect(done.code == 2 and done.out == "" and "--qps" in done.err and "--streams" in done.err, done)
    done = p2p("--op", "write", "--check", "--size", "1k")
    expect(done.code == 2 and done.out == "" and "--check" in done.err and "--op send" in done.err, done)
    done = p2p("--qps", 17, "--size", "1k")
    expect(done.code == 2 and done.out == "" and "1 to 16" in done.err, done)
    for bad, said in ((("-f", 3, "-s", "1k"), "--factor"), (("-b", "1k", "-e", "4k", "-f", -2), "--factor"),
                      (("--latency", "-t", 4), "--inflight"), (("--latency", "--report_gbits"), "--report_gbits"),
                      (("-q", 17), "16 queue pairs"), (("--seed", -1), "--seed"), (("-d", ""), "--device"),
                      (("--json", "/tmp/p2p.x", "--csv", "/tmp/p2p.x"), "/tmp/p2p.x"),
                      (("-s", "1G", "-t", 32), "--inflight 1")):
        done = p2p(*bad)
        expect(done.code == 2 and done.out == "" and said in done.err, bad, done)
    done = p2p(env={"PRUNEX_RANK": "0", "PRUNEX_WORLD_SIZE": "2"})
    expect(done.code == 2 and "PRUNEX_ROOT is not set" in done.err, done)
    for number, said in (("--density", "0 to 1"), ("--duration", "0.01 to 1000000"), ("--streams", "1 to 64")):
        for bad in ("nan", "0.5x", "-1", "65e9"):
            done = p2p(number, bad, "--size", "1k")
            expect(done.code == 2 and done.out == "" and bad in done.err, done)
            expect(all(limit in done.err for limit in said.split(" to ")), done)
    expect("--streams" in p2p("--streams", 65).err and "--streams" not in p2p("--streams", 64, "--size", "1k").err)
    for bad in (("--inflight", 0), ("--inflight", 33), ("--api", 5), ("--api", 13), ("--density", 1.5), ("--run", "4k"),
                ("--latency", "--bidirectional"), ("--json", "-", "--csv", "-"), ("--mode", "fast"), ("--iters", 0),
                ("--pattern", "mask", "--size", 1023), ("--op", "read"), ("-q", 2, "--qps", 2), ("-q", 0), ("--iters", 10, "--duration", 1)):
        done = p2p(*bad)
        expect(done.code == 2 and done.out == "" and done.err != "", bad, done)
    done = p2p("--device", "nonexist0", "--size", "1k")
    expect(done.code == 2 and "nonexist0" in done.err and "network PRUNEX has " in done.err, done)
    done = p2p(env={"NODE_RANK": "0", "NNODES": "3", "PRUNEX_ROOT": "127.0.0.1:5"})
    expect(done.code == 2 and "3" in done.err, done)
    done = p2p("--help")
    expect(done.code == 0 and done.err == "" and "--bidirectional" in done.out, done)


if __name__ == "__main__":
    run_cases(globals())

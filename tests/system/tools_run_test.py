#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `prunex run`. Usage: tools_run_test.py CASE."""
import json
import signal
import sys
import time

from lab import LIMIT, Mark, expect, run_cases, wait_until
from tools_lab import prunex, ranks, start

SHOW = """
import json, os
keys = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'PRUNEX_RANK',
        'PRUNEX_WORLD_SIZE', 'PRUNEX_ROOT', 'PRUNEX_NODE_ID')
os.write(1, (json.dumps({k: os.environ.get(k) for k in keys}) + '\\n').encode())
"""
# Says "here", then never ends by itself.
WAIT = "import os, time; os.write(1, b'here\\n'); time.sleep(1000)"


def shown(done):
    expect(done.code == 0 and done.err == "", done)
    return sorted((json.loads(line) for line in done.out.splitlines()), key=lambda e: int(e["RANK"]))


def case_environment():
    told = shown(ranks("--layout", "1,2", script=SHOW))
    expect([e["RANK"] for e in told] == ["0", "1", "2"], told)
    expect([e["PRUNEX_RANK"] for e in told] == ["0", "1", "2"], told)
    expect({e["WORLD_SIZE"] for e in told} == {"3"} == {e["PRUNEX_WORLD_SIZE"] for e in told}, told)
    expect([e["LOCAL_RANK"] for e in told] == ["0", "0", "1"], told)
    expect([e["LOCAL_WORLD_SIZE"] for e in told] == ["1", "2", "2"], told)
    expect(len({e["PRUNEX_ROOT"] for e in told}) == 1 and told[0]["PRUNEX_ROOT"].startswith("127.0.0.1:"), told)
    nodes = [e["PRUNEX_NODE_ID"] for e in told]
    expect(nodes[0] != nodes[1] and nodes[1] == nodes[2], told)


def case_order():
    told = shown(ranks("--order", "ABAB", script=SHOW))
    nodes = [e["PRUNEX_NODE_ID"] for e in told]
    expect(nodes[0] == nodes[2] != nodes[1] == nodes[3], nodes)
    expect([e["LOCAL_RANK"] for e in told] == ["0", "0", "1", "1"], told)


def case_one_starter_per_node():
    env = {"NODE_RANK": "1", "NNODES": "2", "PRUNEX_ROOT": "127.0.0.1:29999"}
    told = shown(ranks("--ranks-per-node", "2", script=SHOW, env=env))
    expect([e["RANK"] for e in told] == ["2", "3"] and told[0]["WORLD_SIZE"] == "4", told)
    expect({e["PRUNEX_ROOT"] for e in told} == {"127.0.0.1:29999"}, told)
    done = ranks("--nodes", "3", script=SHOW, env=env)
    expect(done.code == 2 and "NNODES" in done.err and done.out == "", done)
    del env["PRUNEX_ROOT"]
    done = ranks("--ranks-per-node", "2", script=SHOW, env=env)
    expect(done.code == 2 and "PRUNEX_ROOT" in done.err, done)


def case_output_is_left_alone():
    done = prunex("run", "-n", 2, "--", "sh", "-c", "echo out; echo err >&2")
    expect(done == (0, "out\nout\n", "err\nerr\n"), done)


def case_command_keeps_its_arguments():
    done = prunex("run", "-n", 1, "--", "echo", "--help", "-n", "5", "--", "x")
    expect(done.out == "--help -n 5 -- x\n", done)
    done = prunex("run", "-n", 1, "echo", "-n5")
    expect(done == (0, "-n5\n", ""), done)


def case_stdin_goes_to_rank_0():
    done = ranks("-n", 2, script="import os, sys; os.write(1, (os.environ['RANK'] + sys.stdin.read() + '\\n').encode())", input="text")
    expect(sorted(done.out.split()) == ["0text", "1"], done)


def case_first_failure_ends_the_others():
    begin = time.monotonic()
    with Mark() as mark:
        done = ranks("-n", 3, script="import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(50)")
        expect(done.code == 3, done)
        expect("rank 1" in done.err and "status 3" in done.err, done.err)
        expect(time.monotonic() - begin < 40, "the others did not wait out their sleep")
        wait_until(lambda: not mark.running(), "end of all ranks")


def case_death_by_signal():
    done = ranks("-n", 2, script="import os, time; os.kill(os.getpid(), 9) if os.environ['RANK'] == '0' else time.sleep(50)")
    expect(done.code == 128 + 9 and "signal 9" in done.err and "rank 0" in done.err, done)


def case_deaf_rank_is_killed():
    deaf = ("import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "os.write(1, b'here\\n')\n"
            "time.sleep(1) or sys.exit(5) if os.environ['RANK'] == '0' else time.sleep(1000)")
    with Mark() as mark:
        done = ranks("-n", 2, "--grace", "0.5", script=deaf)
        expect(done.code == 5, done)
        wait_until(lambda: not mark.running(), "end of all ranks")


def case_command_that_cannot_run():
    done = prunex("run", "-n", 2, "--", "/nonexistent/program")
    expect(done.code == 127 and "/nonexistent/program" in done.err and "No such file" in done.err, done)
    done = prunex("run", "-n", 2, "--", "/etc/passwd")
    expect(done.code == 126 and "/etc/passwd" in done.err, done)



def case_killed_starter_leaves_nobody():
    with Mark() as mark:
        process = start("run", "-n", 3, "--", sys.executable, "-c", WAIT)
        for _ in range(3):
            expect(process.stdout.readline() == "here\n", "ranks come up")
        process.kill()
        process.wait(timeout=LIMIT)
        wait_until(lambda: not mark.running(), "end of all ranks")


def case_grandchildren_end_too():
    """What a rank leaves behind ends with the job, whether it went well or not."""
    for code in (0, 4):
        with Mark() as mark:
            done = prunex("run", "-n", 2, "--grace", 5, "--", "sh", "-c", f"sleep 1000 >/dev/null 2>&1 & exit {code}")
            expect(done.code == code, done)
            expect(not mark.running(), "left:", mark.running())


def case_signals_are_forwarded():
    """The ranks decide what SIGINT and SIGTERM mean; their exit code is the job's."""
    script = ("import os, signal, sys, time\n"
              "for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, lambda n, _: sys.exit(40 + n))\n"
              "os.write(1, b'here\\n')\ntime.sleep(1000)")
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start("run", "-n", 2, "--", sys.executable, "-c", script)
        for _ in range(2):
            expect(process.stdout.readline() == "here\n", "ranks come up")
        process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT)
        expect(process.returncode == 40 + number, number, process.returncode, err)


def case_second_signal_kills():
    script = ("import os, signal, time\nsignal.signal(signal.SIGINT, lambda *_: os.write(1, b'heard\\n'))\n"
              "os.write(1, b'here\\n')\nwhile True: time.sleep(1)")
    with Mark() as mark:
        process = start("run", "-n", 1, "--", sys.executable, "-c", script)
        expect(process.stdout.readline() == "here\n", "rank comes up")
        process.send_signal(signal.SIGINT)
        expect(process.stdout.readline() == "heard\n", "rank hears it")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)
        expect(process.returncode == 128 + 9, process.returncode)
        wait_until(lambda: not mark.running(), "end of all ranks")


def case_usage():
    for arguments in ((), ("-n", 2), ("-n", 0, "--", "true"), ("-n", 2, "--bogus", "--", "true"), ("--", "true"),
                      ("-n", 3, "--ranks-per-node", 2, "--", "true"), ("--order", "AC", "--", "true"),
                      ("--layout", "1,x", "--", "true"), ("-n", 2, "--grace", "-1", "--", "true")):
        done = prunex("run", *arguments)
        expect(done.code == 2 and done.out == "" and done.err != "", arguments, done)
    done = prunex("run", "-n", 2, "--nodes", 3, "--", "true")
    expect("2 ranks cannot be spread over 3 nodes" in done.err and done.code == 2, done)
    done = prunex("run", "-n", 2, "--grace", "-1", "--", "true")
    expect("'-1' is not a number from 0 to 1000000" in done.err, done)
    done = prunex("run", "--help")
    expect(done.code == 0 and "--ranks-per-node" in done.out and done.err == "", done)
    done = prunex("nonsense")
    expect(done.code == 2 and "nonsense" in done.err and done.out == "", done)


run_cases(globals())

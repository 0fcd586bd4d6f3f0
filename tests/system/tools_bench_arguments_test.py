#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the arguments of `prunex bench`. Usage: tools_bench_arguments_test.py CASE."""
from lab import Mark, expect, run_cases
from tools_lab import QUICK, allreduce, document, prunex, rows_of


def case_G6_warmup_is_honoured_and_capped():
    rows = rows_of("--nodes", 2, "--size", "4k", "--iters", 3, "--warmup", 0)
    expect(rows[0]["warmup_done"] == 0 and rows[0]["iters"] == 3, rows)
    rows = rows_of("--nodes", 2, "--size", "4k", "--iters", 3, "--warmup", 7)
    expect(rows[0]["warmup_done"] == 7, rows)
    made = document(allreduce("--nodes", 2, "--size", "64M", "--iters", 1, "--warmup", 1000, "--json", "-"))
    expect(0 < made["results"][0]["warmup_done"] < 1000 and made["warmup_cap_s"] > 0, made)


def case_G8_sizes():
    for size in ("1k", "1K", "1024"):
        expect(rows_of("--nodes", 2, "--size", size, *QUICK)[0]["bytes"] == 1024, size)
    for arguments in (("-b", "8M", "-e", "1M"), ("-b", "-1"), ("-b", "1X"), ("-b", "99999999999999G"), ("--size", "1X"),
                      ("--size", "-1"), ("--size", ""), ("-b", "1k", "-e", "2k", "-f", "1")):
        done = allreduce(*arguments, "--json", "-")
        expect(done.code == 2 and done.out == "" and done.err != "", arguments, done)
    rows = rows_of("--nodes", 2, "-b", 0, *QUICK, "--check")
    expect(rows[0]["bytes"] == 0 and rows[0]["errors"] == 0 and rows[0]["algbw_GBps"] == 0, rows)
    help_text = allreduce("--help").out
    expect("1k = 1K = 1024" in help_text and "0 is a call without data" in help_text, help_text)


def case_numbers_say_their_range():
    for arguments in (("allreduce", "--ranks", 0), ("allreduce", "--nodes", 0), ("allreduce", "--ranks-per-node", "x"),
                      ("allreduce", "--iters", 0), ("allreduce", "--warmup", -1), ("allreduce", "--seed", -1),
                      ("allreduce", "-f", 1), ("pack", "--keep", 2), ("pack", "--iters", 0), ("pack", "--seed", -1)):
        done = prunex("bench", *arguments)
        expect(done.code == 2 and done.out == "" and f"'{arguments[2]}'" in done.err, arguments, done)
        expect(" from " in done.err and " to " in done.err and len(done.err) < 160, arguments, done)


def case_no_value_is_an_error():
    for arguments in (("--size=", "--keep", 0.4), ("--keep=",), ("--iters=", "--size", "1k"), ("-n",)):
        done = allreduce(*arguments)
        expect(done.code == 2 and done.out == "" and "no value" in done.err, arguments, done)


def case_size_beyond_the_machine_starts_nobody():
    with Mark() as mark:
        done = allreduce("--size", "9999999T", "--json", "-", env={"PRUNEX_DEBUG": "INFO"})
        expect(done.code == 2 and "this machine has" in done.err and len(done.err.splitlines()) == 1, done)
        expect(not mark.running(), "nobody was started")
    expect(prunex("bench", "pack", "--size", "9999999T").code == 2)


def case_usage():
    for arguments in (("--model", "resnet51"), ("--keep", "1.5"), ("--keep", "x"), ("--dtype", "f31"), ("--op", "mean"),
                      ("--iters", 0), ("--warmup", -1), ("--model", "resnet18", "--size", "1M"), ("--contract", "x"),
                      ("--in-place", "--out-of-place"), ("--json", "-", "--csv", "-"), ("--json", ""), ("--baseline", "udp"),
                      ("--order", "AC"), ("stray",)):
        done = allreduce(*arguments)
        expect(done.code == 2 and done.out == "" and done.err != "", arguments, done)
    done = allreduce("--size", "1k", env={"PRUNEX_STREAMS": "abc"})
    expect(done.code == 2 and "PRUNEX_STREAMS=abc" in done.err and done.out == "", done)
    done = prunex("bench", "nonsense")
    expect(done.code == 2 and "allreduce" in done.err, done)


run_cases(globals())

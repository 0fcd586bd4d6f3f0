#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the test cases of one run of `meson test`.

Usage: count_tests.py BUILD_FOLDER [--complete]
       count_tests.py BUILD_FOLDER --targets SUITE...

Reads meson-logs/testlog.json and the XML file of each GoogleTest run. Prints what failed and what was
skipped, with reasons, and last the three numbers: passed failed skipped. A test that is no GoogleTest
counts as one case. A skip without a reason counts as failed. --complete: a case that is in an
executable but was run by no test counts as failed. --targets: prints instead the files that the tests of
these suites need to be built, relative to the folder.
"""
import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as xml


class Counts:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def fail(self, name, reason):
        self.failed += 1
        print(f"failed: {name}: {reason}")

    def skip(self, name, reason):
        if not reason.strip():
            self.fail(name, "skipped without a reason")
            return
        self.skipped += 1
        print(f"skipped: {name}: {reason.strip()}")


def first_line(text):
    return next((line for line in text.splitlines() if line.strip()), "")


def last_line(text):
    return first_line("\n".join(reversed(text.splitlines())))


def short_name(test):
    """meson logs "project:suite / name"."""
    return test["name"].split(" / ")[-1].split(":")[-1]


def count_cases(counts, path, test):
    """The cases of one GoogleTest run. Returns their names."""
    names, failed_before = set(), counts.failed
    for case in xml.parse(path).iter("testcase"):
        name = f'{case.get("classname")}.{case.get("name")}'
        if case.get("status") == "notrun":
            continue
        names.add(name)
        failures, skipped = case.findall("failure"), case.find("skipped")
        if failures:
            counts.fail(name, " | ".join(first_line(f.get("message", "")) for f in failures[:3]))
        elif skipped is not None:
            # "file:line" stands before the reason.
            counts.skip(name, " ".join(skipped.get("message", "").split("\n")[1:]))
        else:
            counts.passed += 1
    if test["result"] not in ("OK", "SKIP") and counts.failed == failed_before:
        counts.fail(short_name(test), f'{test["result"]} although no case failed')
    return names


def count_test(counts, build, test):
    """One meson test. Returns the names of its GoogleTest cases."""
    path = build / f'{short_name(test)}.xml'
    if path.exists():
        return count_cases(counts, path, test)
    if test["result"] == "OK":
        counts.passed += 1
    elif test["result"] == "SKIP":
        counts.skip(short_name(test), last_line(test.get("stdout", "")).removeprefix("skipped: "))
    else:
        reason = last_line(test.get("stderr", "")) or last_line(test.get("stdout", ""))
        counts.fail(short_name(test), f'{test["result"]}, status {test["returncode"]}: {reason}')
    return set()


def check_complete(counts, build, cases):
    """cases: executable -> names of cases that ran."""
    for program, ran in sorted(cases.items()):
        listing = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, timeout=60)
        suite = ""
        for line in listing.stdout.splitlines():
            name = line.split("#")[0].rstrip()
            if not line.startswith(" "):
                suite = name
            elif suite + name.strip() not in ran and "DISABLED_" not in suite + name:
                counts.fail(suite + name.strip(), "no test in any meson.build runs it")


def print_targets(build, suites):
    read = lambda name: json.loads((build / "meson-info" / name).read_text(encoding="utf-8"))
    files = {target["id"]: target["filename"] for target in read("intro-targets.json")}
    needed = {file
              for test in read("intro-tests.json")
              if {suite.split(":")[-1] for suite in test["suite"]} & set(suites)
              for target in test["depends"] for file in files[target]}
    root = build.resolve()
    print("\n".join(sorted(str(pathlib.Path(file).relative_to(root)) for file in needed)))


def main():
    build = pathlib.Path(sys.argv[1])
    if sys.argv[2:3] == ["--targets"]:
        print_targets(build, sys.argv[3:])
        return
    log = build / "meson-logs" / "testlog.json"
    tests = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    programs = json.loads((build / "meson-info" / "intro-tests.json").read_text(encoding="utf-8"))
    programs = {test["name"]: (test["cmd"][0], test["protocol"]) for test in programs}
    counts, cases, seen = Counts(), {}, set()
    for test in tests:
        name = short_name(test)
        if name in seen:
            counts.fail(name, "two tests have this name")
        seen.add(name)
        ran = count_test(counts, build, test)
        program, protocol = programs[name]
        if protocol == "gtest":
            cases.setdefault(program, set()).update(ran)
    if "--complete" in sys.argv[2:]:
        check_complete(counts, build, cases)
    if not tests:
        counts.fail(str(build), "no test ran")
    print(counts.passed, counts.failed, counts.skipped)


if __name__ == "__main__":
    main()

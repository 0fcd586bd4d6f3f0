# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of the scripts: running labs, and looking at what they leave behind."""
import collections
import os
import pathlib
import subprocess
import sys
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
NETLAB = str(ROOT / "scripts" / "netlab.sh")
LIMIT = 60  # seconds: no lab here takes longer, and none may hang

Done = collections.namedtuple("Done", "code out err")


def netlab(*options, script, **popen):
    """Runs a Python script once per node and waits."""
    run = subprocess.run(
        [NETLAB, *options, "--", sys.executable, "-c", script],
        capture_output=True, text=True, timeout=LIMIT, **popen)
    return Done(run.returncode, run.stdout, run.stderr)


# Nodes print into one pipe: unbuffered, Python writes a line in pieces, which would mix.
os.environ.pop("PYTHONUNBUFFERED", None)


def start(*options, script):
    return subprocess.Popen(
        [NETLAB, *options, "--", sys.executable, "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def expect(condition, *shown):
    if not condition:
        raise AssertionError(" ".join(str(s) for s in shown))


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def require_namespaces():
    probe = netlab("--nodes", "1", script="import os; print(os.environ['NETLAB_MODE'])")
    if probe.out.strip() != "netns":
        skip("no network namespaces here: " + (probe.err.strip().splitlines() or ["?"])[0])


def processes(mark):
    """Processes that have the mark in their environment."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def wait_until(condition, what):
    end = time.monotonic() + LIMIT
    while not condition():
        expect(time.monotonic() < end, "never:", what)
        time.sleep(0.02)


class Mark:
    """Marks all processes of a lab through the environment; afterwards none may be left."""

    def __enter__(self):
        self.mark = f"netlab-test-{uuid.uuid4()}"
        os.environ["NETLAB_TEST_MARK"] = self.mark
        return self

    def __exit__(self, *_):
        del os.environ["NETLAB_TEST_MARK"]

    def running(self):
        return [pid for pid in processes(self.mark) if pid != os.getpid()]

    def namespaces(self):
        return {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in self.running()}


def nothing_left(mark, namespaces):
    """No marked process, nobody in the lab's namespaces, no link on the host."""
    wait_until(lambda: not mark.running(), "the end of all processes")
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                inode = os.stat(entry / "ns" / "net").st_ino
            except OSError:
                continue
            expect(inode not in namespaces, "process", entry.name, "is still in a namespace of the lab")
    links = os.listdir("/sys/class/net")
    expect(not [l for l in links if l.startswith(("node0r", "switch", "probe"))], "links left:", links)


def run_cases(names):
    """Runs the case the command line names; --list prints all."""
    cases = {name[5:]: case for name, case in names.items() if name.startswith("case_")}
    if sys.argv[1:] == ["--list"]:
        print("\n".join(cases))
    else:
        cases[sys.argv[1]]()

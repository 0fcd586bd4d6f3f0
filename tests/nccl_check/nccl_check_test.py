#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nccl_check on stand-ins for NCCL and CUDA: ranks that hang or die, what is counted, and what is left.

  nccl_check_test.py CASE
"""
import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
from lab import expect, processes

LIMIT = 150  # seconds: no run here takes longer
CASES = 16
CHECK = os.environ["NCCL_CHECK"]
LIBRARIES = [pathlib.Path(p) for p in os.environ["NCCL_CHECK_LIBRARIES"].split(":")]

Done = collections.namedtuple("Done", "code out cases seconds")


class Place:
    """A folder with everything under the names that are looked for, and one for the results."""

    def __init__(self, folder):
        self.libraries = pathlib.Path(folder) / "lib"
        self.results = pathlib.Path(folder) / "results"
        self.libraries.mkdir()
        self.results.mkdir()
        for library in LIBRARIES:
            (self.libraries / library.name).symlink_to(library)
        for soname in ("libnccl.so.2", "libcuda.so.1"):
            if not (self.libraries / soname).exists():
                (self.libraries / soname).symlink_to(self.libraries / soname.rsplit(".", 1)[0])
        self.mark = uuid.uuid4().hex

    def command(self, *arguments, cuda="libprunex-cuda.so"):
        return [CHECK, str(self.libraries / cuda), str(self.libraries / "libprunex.so"), str(self.results),
                *(str(a) for a in arguments)]

    def environment(self, fault=""):
        environment = dict(os.environ, LD_LIBRARY_PATH=str(self.libraries), NCCL_CHECK_MARK=self.mark)
        environment.pop("STANDIN_FAULT", None)
        if fault:
            environment["STANDIN_FAULT"] = fault
        return environment

    def run(self, *arguments, fault="", cuda="libprunex-cuda.so"):
        begin = time.monotonic()
        run = subprocess.run(self.command(*arguments, cuda=cuda), env=self.environment(fault), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT)
        expect(not self.left(), "processes are left behind", self.left())
        return Done(run.returncode, run.stdout, self.cases(), time.monotonic() - begin)

    def cases(self):
        try:
            listed = json.loads((self.results / "nccl.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return {case["case"]: case for case in listed}

    def left(self):
        return processes(self.mark)


def all_ways_are_taken(place):
    done = place.run(60, 140)
    expect(done.code == 0, done.out)
    expect(len(done.cases) == CASES and all(c["result"] == "pass" for c in done.cases.values()), done.out)
    counted = {name: case["counted"] for name, case in done.cases.items()}
    expect(counted["net-masked"]["zero_block"] > 0 and counted["net-masked"]["masked"] == 0, counted)
    expect(counted["net-staged-masked"]["zero_block"] > 0 and counted["net-staged-masked"]["masked"] == 0, counted)
    expect(counted["net-staged-registered-masked"]["masked"] > 0, counted)
    expect(counted["net"]["coll"] == 0 and counted["collnet"]["coll"] > 0, counted)
    expect(counted["collnet-masked"]["coll_union"] > 0, counted)
    # Five rounds of two or four ranks.
    expect(counted["device"]["device"] == 10 and counted["device"]["device_compact"] == 0, counted)
    for name in ("project", "lossless"):
        expect(counted["device-nodes-of-two-" + name]["device_compact"] == 20, counted)
    expect(counted["device-nodes-of-two-violated"]["device_violated"] >= 4, counted)
    # Five rounds of 4 MiB from each of two ranks.
    expect(counted["net"]["net_bytes"] == 10 * (4 << 20), counted)


def a_rank_that_hangs(place):
    done = place.run(12, 80, "net", "net-masked", "collnet", fault="hang:nccl-net-masked-1.log")
    expect(done.code == 1, done.out)
    results = {name: case["result"] for name, case in done.cases.items()}
    expect(results == {"net": "pass", "net-masked": "fail", "collnet": "pass"}, done.out)
    expect("not done after 12 s" in done.cases["net-masked"]["fault"], done.out)


def a_rank_that_dies(place):
    done = place.run(20, 50, "net", "collnet", fault="crash:nccl-net-0.log")
    expect(done.code == 1 and done.cases["collnet"]["result"] == "pass", done.out)
    expect(f"rank 0 died of signal {signal.SIGABRT:d}" in done.cases["net"]["fault"], done.out)
    expect(done.cases["net"]["seconds"] < 15, "the other rank was waited for", done.out)


def all_time_is_over(place):
    done = place.run(3, 12, fault="hang")
    expect(done.code == 1 and len(done.cases) == CASES, done.out)
    results = [case["result"] for case in done.cases.values()]
    expect(results[0] == "fail" and results[-1] == "skip" and "pass" not in results, results)
    expect(done.seconds < 20, done.seconds)


def ranks_end_with_the_parent(place):
    with subprocess.Popen(place.command(50, 50, "net"), env=place.environment("hang"),
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        try:
            wait_for(lambda: (place.results / "nccl-net-1.prom").exists(), "the ranks' start")
            expect(len(place.left()) == 3, place.left())
        finally:
            parent.kill()
    wait_for(lambda: not place.left(), "the ranks' end")


def wait_for(ready, what):
    end = time.monotonic() + 30
    while not ready():
        expect(time.monotonic() < end, "waited in vain for", what)
        time.sleep(0.05)


def a_wrong_sum(place):
    done = place.run(20, 50, "net", fault="wrong:nccl-net-1.log")
    expect(done.code == 1 and "rank 1: wrong sum: round 0, element 7" in done.cases["net"]["fault"], done.out)


def another_network(place):
    done = place.run(20, 50, "net", fault="fallback")
    expect(done.code == 1 and "NCCL used another way" in done.cases["net"]["fault"], done.out)


def net_for_collnet(place):
    done = place.run(20, 50, "collnet", fault="no-coll")
    expect(done.code == 1 and "CollNet has carried 0 bytes" in done.cases["collnet"]["fault"], done.out)


def a_device_rank_that_dies(place):
    name = "device-nodes-of-two-project"
    done = place.run(20, 50, name, "device", fault=f"crash:nccl-{name}-3.log")
    expect(done.code == 1 and done.cases["device"]["result"] == "pass", done.out)
    expect(f"rank 3 died of signal {signal.SIGABRT:d}" in done.cases[name]["fault"], done.out)


def a_wrong_device_sum(place):
    done = place.run(20, 50, "device", fault="wrong:nccl-device-1.log")
    expect(done.code == 1 and "rank 1: wrong sum: round 0, element 7" in done.cases["device"]["fault"], done.out)


def no_masked_message(place):
    name = "net-staged-registered-masked"
    done = place.run(20, 50, name, fault="staged")
    expect(done.code == 1 and "nothing travelled as masked" in done.cases[name]["fault"], done.out)


def no_gpu(place):
    (place.libraries / "none.so").symlink_to(os.environ["NCCL_CHECK_NO_GPU"])
    done = place.run(20, 50, cuda="none.so")
    expect(done.code == 77 and done.out.splitlines()[-1] == "cannot run: no GPU: no device", done.out)


def usage(place):
    for arguments in (["x"], ["1", "-1"], ["0"]):
        done = place.run(*arguments)
        expect(done.code == 2 and "usage:" in done.out, arguments, done.out)


def main():
    with tempfile.TemporaryDirectory() as folder:
        globals()[sys.argv[1]](Place(folder))


if __name__ == "__main__":
    main()

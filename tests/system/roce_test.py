#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/soft-roce.sh and compare-perftest.sh, written from their help texts. Usage: roce_test.py CASE.

Exit status 77 (skipped) where packages or the boot image are missing: `scripts/soft-roce.sh --prepare`
gets them.
"""
import os
import pathlib
import signal
import subprocess
import tempfile

from lab import ROOT, Done, Mark, expect, nothing_left, run_cases, skip, wait_until
from tools_lab import PRUNEX

SOFT_ROCE = str(ROOT / "scripts" / "soft-roce.sh")
CACHE = pathlib.Path(os.environ.get("SOFT_ROCE_CACHE", ROOT / "build" / "soft-roce"))
COMPARE = str(ROOT / "scripts" / "compare-perftest.sh")
LIMIT = 400  # seconds: two boots that hang, and a command


def command(*words, **popen):
    run = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=LIMIT, **popen)
    return Done(run.returncode, run.stdout, run.stderr)


def soft_roce(*arguments, **popen):
    return command(SOFT_ROCE, *arguments, **popen)


def last_line(text):
    return (text.strip().splitlines() or ["?"])[-1]


def guest(*options, script, **popen):
    """Runs a bash script in the guest."""
    done = soft_roce("--offline", *options, "--", "bash", "-c", script, **popen)
    if done.code == 77:
        skip(last_line(done.err))
    return done


def names(mark):
    """Of the marked processes."""
    found = ""
    for pid in mark.running():
        try:
            found += pathlib.Path(f"/proc/{pid}/comm").read_text(encoding="utf-8")
        except OSError:
            pass  # it ended
    return found


def runs():
    return set(CACHE.glob("run.*"))


# Two ends of one connection on the two devices, each checking what it received.
TALK = """
ibv_rc_pingpong -d rxe0 -g 1 -s 65536 -n 20 -e -c >/tmp/server 2>&1 & server=$!
for i in {1..100}; do
  grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 && break # it listens on port 18515
  sleep 0.1
done
ibv_rc_pingpong -d rxe1 -g 1 -s 65536 -n 20 -e -c 10.77.0.1 && wait $server || { cat /tmp/server; exit 3; }
"""

# One boot for all that a command can see.
LOOK = """
set -eu
echo "id=$(id -u) soft=$SOFT_ROCE variable=$VARIABLE cwd=$PWD tmp=${TMPDIR-unset} memlock=$(ulimit -l)"
echo "devices=$(ibv_devices | awk 'NR > 2 { print $1 }' | xargs)"
echo "cpus=$(nproc) memory=$(awk '/MemTotal/ { print int($2 / 1024) }' /proc/meminfo)"
echo "addresses=$(ip -br -4 addr show | awk '$1 ~ /^eth/ { print $3 }' | xargs)"
echo "input=$(cat | wc -c)"
(echo x >/etc/soft-roce-test) 2>/dev/null && echo "wrote to /etc"
(echo x >"$OUTSIDE/more") 2>/dev/null && echo "wrote outside of the folder"
echo "read=$(cat "$OUTSIDE/file")"
echo "from the guest" >written
ls -A /dev/shm /tmp | grep -v ^prunex-roce- | grep . | grep -v : || true
""" + TALK + """
printf 'no newline'
printf 'an ' >&2
printf 'error' >/dev/stderr
sleep 1000 & # holds the pipes open
kill -KILL $$
"""


def case_guest():
    before = runs()
    with Mark() as mark, tempfile.TemporaryDirectory(dir="/var/tmp") as outside, \
            tempfile.TemporaryDirectory(prefix="prunex-roce-") as folder:
        pathlib.Path(outside, "file").write_text("of the host", encoding="utf-8")
        values = {**os.environ, "VARIABLE": "two words\nand a line, $HOME", "OUTSIDE": outside, "TMPDIR": "/nonsense"}
        done = guest("--memory", "1G", "--cpus", 1, "--timeout", 120, script=LOOK.replace("$VARIABLE", "${VARIABLE@Q}"),
                     cwd=folder, env=values, stdin=subprocess.DEVNULL)
        expect(done.code == 128 + signal.SIGKILL and done.err == "an error", done)
        expect(done.out.endswith("no newline"), done)
        lines = done.out.splitlines()
        expect(lines[0] == f"id=0 soft=1 variable=$'two words\\nand a line, $HOME' cwd={folder} tmp=unset memlock=unlimited", done)
        expect(lines[1] == "devices=rxe0 rxe1", done)
        expect(lines[2].startswith("cpus=1 memory=") and 700 < int(lines[2].rsplit("=", 1)[1]) < 1024, done)
        expect(lines[3:6] == ["addresses=10.77.0.1/24 10.77.0.2/24", "input=0", "read=of the host"], done)
        expect("20 iters" in done.out, "the devices talk to each other:", done)
        expect(pathlib.Path(folder, "written").read_text(encoding="utf-8") == "from the guest\n", folder)
        expect(os.listdir(outside) == ["file"], os.listdir(outside))
        nothing_left(mark, set())
    expect(runs() <= before, "folders left:", runs() - before)


def case_hang():
    """A command that hangs and does not listen to SIGTERM; what it said until then comes back."""
    before = runs()
    with Mark() as mark:
        done = guest("--timeout", 3, "--devices", 1, script="trap '' TERM; ibv_devices; while true; do sleep 1; done")
        expect(done.code == 124 and "3 s" in done.err, done)
        expect("rxe0" in done.out and "rxe1" not in done.out, done)
        nothing_left(mark, set())
    expect(runs() <= before, "folders left:", runs() - before)


def case_killed():
    """The guest ends with the script, however that ends; the next run clears up after it."""
    if soft_roce("--offline", "--prepare").code == 77:
        skip("no boot image: scripts/soft-roce.sh --prepare makes one")
    for number, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        before = runs()
        with Mark() as mark:
            run = subprocess.Popen([SOFT_ROCE, "--offline", "--", "sleep", "1000"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
            try:
                wait_until(lambda: "qemu" in names(mark), "a guest")
                run.send_signal(number)
                expect(run.wait(timeout=60) == code, run.returncode)
                nothing_left(mark, set())
            finally:
                run.terminate()
        soft_roce("--offline", "--prepare")
        expect(runs() <= before, "folders left:", runs() - before)


def case_missing():
    with tempfile.TemporaryDirectory() as empty:
        done = soft_roce("--offline", "--", "true", env={**os.environ, "SOFT_ROCE_CACHE": empty})
        expect(done.code == 77 and done.out == "" and done.err.startswith("soft-roce: "), done)
        expect("--prepare" in done.err or "not found" in done.err or "only for" in done.err, done)


def row(line):
    """Columns; medians come with "(smallest-largest)", which are dropped."""
    return [float(word) for word in line.split() if not word.startswith("(")]


def case_compare():
    """perftest alone would do without prunex; here its figures and those of prunex over TCP, with ratios, and prunex with zeros."""
    done = command(COMPARE, "--offline", "--runs", 1, "--iterations", 20, "--sizes", "64K", "--latency-sizes", "8", "--qps", 2,
                   "--prunex", PRUNEX, "--transport", "socket", "--prunex-devices", "eth0,eth1", "--density", ".4", "--timeout", 300)
    if done.code == 77:
        skip(last_line(done.err))
    expect(done.code == 0 and done.err == "", done)
    lines = done.out.splitlines()
    expect(len(lines) == 7 and "rxe0:1 and rxe1:1, 2 queue pair" in lines[0], done)
    for line, words in ((lines[1], ("ib_write_bw", "prunex socket", "/ perftest", "MB/s")),
                        (lines[3], ("ib_write_lat", "prunex socket", "/ perftest", "us")),
                        (lines[5], ("dense", "blocks, density .4", "mask, density .4", "/ prunex", "MB/s"))):
        expect(all(word in line for word in words), line, done)
    for line, size in ((lines[2], 65536), (lines[4], 8)):
        bytes_, perftest, ours, ratio = row(line)
        expect(bytes_ == size and perftest > 0 and ours > 0, done)
        expect(abs(ratio - ours / perftest) <= 0.002 + 0.1 * (1 / perftest + 1 / ours) * ratio, "of rounded figures:", done)
    bytes_, dense, blocks, mask, *ratios = row(lines[6])
    expect(bytes_ == 65536 and min(dense, blocks, mask) > 0 and len(ratios) == 2, done)


# What ib_write_bw does as far as the script can tell; it notes how it was called.
PERFTEST = """#!/usr/bin/env python3
import os, socket, sys
with open(os.environ["CALLS"], "a") as calls:
    print(*sys.argv[1:], file=calls)
port = int(sys.argv[sys.argv.index("-p") + 1])
if sys.argv[-1] == "127.0.0.1":
    socket.create_connection(("127.0.0.1", port)).close()
    print("1.5")
else:
    server = socket.create_server(("127.0.0.1", port))
    server.accept()
"""


def case_compare_ports():
    """The port that is named, else the first that is up, with the GID index of that port."""
    with tempfile.TemporaryDirectory() as folder:
        sysfs, bin_ = pathlib.Path(folder, "infiniband"), pathlib.Path(folder, "bin")
        bin_.mkdir()
        for name in ("ib_write_bw", "ib_write_lat"):
            (bin_ / name).write_text(PERFTEST)
            (bin_ / name).chmod(0o755)
        for device, port, state, link in (("mlx5_0", 1, "1: DOWN", "Ethernet"), ("mlx5_0", 2, "4: ACTIVE", "Ethernet"),
                                          ("mlx5_0", 10, "4: ACTIVE", "Ethernet"), ("mlx5_1", 1, "4: ACTIVE", "InfiniBand"),
                                          ("mlx5_2", 1, "2: INIT", "InfiniBand")):
            where = sysfs / device / "ports" / str(port)
            (where / "gid_attrs" / "types").mkdir(parents=True)
            (where / "gids").mkdir()
            (where / "state").write_text(state + "\n")
            (where / "link_layer").write_text(link + "\n")
            (where / "gid_attrs" / "types" / str(port + 1)).write_text("RoCE v2\n")
            (where / "gids" / str(port + 1)).write_text("0000:0000:0000:0000:0000:ffff:0a00:0001\n")

        def compare(devices, *words):
            calls = pathlib.Path(folder, "calls")
            calls.write_text("")
            done = command(COMPARE, "--offline", "--devices", devices, "--sizes", "64K", "--latency-sizes", "none", "--runs", 1,
                           *words, env={**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "CALLS": str(calls),
                                        "COMPARE_PERFTEST_SYSFS": str(sysfs)})
            return done, calls.read_text().splitlines()

        for devices, title, server, client in (
                ("mlx5_0,mlx5_1", "mlx5_0:2 and mlx5_1:1", "-d mlx5_0 -i 2 -x 3 ", "-d mlx5_1 -i 1 -p "),
                ("mlx5_1:1,mlx5_0:10", "mlx5_1:1 and mlx5_0:10", "-d mlx5_1 -i 1 -p ", "-d mlx5_0 -i 10 -x 11 ")):
            done, calls = compare(devices)
            expect(done.code == 0 and title in done.out and "187.5" in done.out, done)
            expect(len(calls) == 2 and server in calls[0] and client in calls[1], calls)
        for devices, words in (("mlx5_0:3,mlx5_1", ("no port 3", "1 2 10")), ("mlx5_1,mlx5_2", ("mlx5_2", "port 1 is '2: INIT'")),
                               ("mlx5_7:1,mlx5_1", ("'mlx5_7'", "mlx5_0"))):
            done, calls = compare(devices)
            expect(done.code == 1 and all(word in done.err for word in words) and not calls, done, calls)


def rejects(program, *words):
    done = command(program, *words)
    expect(done.code == 2 and done.out == "" and "--help" in done.err, words, done)
    expect(not words or words[0] == "--" or words[0] in done.err, words, done)


def case_usage():
    for program in (SOFT_ROCE, COMPARE):
        done = command(program, "--help")
        expect(done.code == 0 and done.err == "" and "--timeout S" in done.out, done)
    for words in ((), ("--",), ("true",), ("--nonsense", "--", "true"), ("--timeout",), ("--timeout", "0", "--", "true"),
                  ("--timeout", "soon", "--", "true"), ("--memory", "lots", "--", "true"), ("--cpus", "0", "--", "true"),
                  ("--devices", "9", "--", "true"), ("--writable", "/no/such/folder", "--", "true"),
                  ("--prepare", "--", "true")):
        rejects(SOFT_ROCE, *words)
    for words in (("true",), ("--qps", "0"), ("--runs", "many"), ("--runs",), ("--devices", "rxe0"), ("--sizes", "big"),
                  ("--sizes", "2G"), ("--sizes", ","), ("--sizes", "4K,,8K"), ("--sizes", "4K,"), ("--sizes", ",4K"), ("--sizes", "4K 8K"),
                  ("--sizes", "*"), ("--sizes", ""), ("--latency-sizes", "8,,4K"), ("--runs", "08"), ("--iterations", "010"),
                  ("--devices", "mlx5_0:0,mlx5_1"), ("--devices", "mlx5_0:256,mlx5_1"), ("--devices", "mlx5_0:,mlx5_1"),
                  ("--devices", "a,b,c"), ("--devices", "../x,y"), ("--transport", "socket", "--prunex", PRUNEX),
                  ("--prunex-devices", "eth0,eth1"), ("--iterations", "4"), ("--prunex", "/no/such/program"),
                  ("--prunex", "/"), ("--nccl", "/no/such/library"), ("--nccl", PRUNEX), ("--density", "2"),
                  ("--transport", "tcp"), ("--nccl", "/", "--prunex", PRUNEX), ("--density", "0.5"),
                  ("--density", "1.5", "--prunex", PRUNEX), ("--density", "0.5", "--sizes", "none", "--prunex", PRUNEX),
                  ("--sizes", "none", "--latency-sizes", "none")):
        rejects(COMPARE, *words)
    for density in ("0", "1", "1.0", "0.4", ".25"):  # understood: what fails is the device
        done = command(COMPARE, "--offline", "--devices", "none0,none1", "--prunex", PRUNEX, "--density", density)
        expect(done.code == 77 and "perftest" in done.err or done.code == 1 and "none0" in done.err, density, done)
    done = command(COMPARE, "--offline", "--devices", "none0,none1")
    expect(done.code == 77 and "perftest" in done.err or done.code == 1 and "none0" in done.err, done)
    if done.code == 1 and not os.path.isdir("/sys/class/infiniband"):
        expect("there are: none" in done.err, done)


if __name__ == "__main__":
    run_cases(globals())

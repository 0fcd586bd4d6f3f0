#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/netlab.sh, written from its help text. Usage: netlab_test.py CASE.

Exit status 77 (skipped) where the system permits no network namespaces.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

from lab import (LIMIT, NETLAB, ROOT, Mark, expect, netlab, nothing_left, require_namespaces, run_cases,
                 skip, start)

SHOW = """
import json, os, socket, sys
e = {k: v for k, v in os.environ.items() if k.startswith(('PRUNEX_', 'N', 'MASTER_'))}
e['hostname'] = socket.gethostname()
e['links'] = sorted(n for _, n in socket.if_nameindex())
e['cwd'] = os.getcwd()
e['stdin'] = sys.stdin.read()
sys.stdout.write(json.dumps(e) + '\\n')
"""


def nodes_of(done):
    expect(done.code == 0, done)
    shown = [json.loads(line) for line in done.out.splitlines()]
    return sorted(shown, key=lambda e: int(e["NODE_RANK"]))


def check_environment(shown, addresses):
    for i, node in enumerate(shown):
        expect(node["PRUNEX_NODE_ID"] == f"node{i}", node)
        expect(node["NODE_RANK"] == str(i) and node["NNODES"] == str(len(shown)), node)
        expect(node["NETLAB_ADDR"] == addresses[i], node)
        expect(node["NETLAB_MODE"] == "netns", node)
        expect(node["hostname"] == f"node{i}", node)
        expect(node["PRUNEX_ROOT"].rsplit(":", 1)[0] == addresses[0], node)
        expect(node["MASTER_ADDR"] == addresses[0], node)
        expect(node["PRUNEX_ROOT"].rsplit(":", 1)[1] != node["MASTER_PORT"], "torch's port is its own", node)
        expect("NCCL_SOCKET_IFNAME" not in node, node)


def case_environment():
    require_namespaces()
    os.environ["NCCL_SOCKET_IFNAME"] = "nonsense0"
    with tempfile.TemporaryDirectory() as folder:
        done = netlab("--nodes", "3", "--rate", "1gbit", script=SHOW, cwd=folder, input=None)
        shown = nodes_of(done)
        expect(done.err == "", "nothing on stderr when all is well:", done.err)
        check_environment(shown, ["10.77.0.1", "10.77.0.2", "10.77.0.3"])
        for node in shown:
            expect(node["links"] == ["eth0", "lo"], node)
            expect(node["NETLAB_RATE"] == "1gbit" and node["PRUNEX_SOCKET_IFNAME"] == "eth0", node)
            expect(node["cwd"] == os.path.realpath(folder) and node["stdin"] == "", node)


def case_unprivileged():
    """As a user without rights, in a user namespace."""
    require_namespaces()
    if os.geteuid() != 0:
        skip("only root can become another user; the other cases ran unprivileged")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "scripts", f"{folder}/scripts", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        run = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"{folder}/scripts/netlab.sh",
             "--nodes", "2", "--", "sh", "-c", "echo $NETLAB_MODE; cat /proc/self/uid_map"],
            capture_output=True, text=True, timeout=LIMIT, cwd="/")
        if "loopback" in run.stdout:
            skip("no user namespaces for unprivileged users here")
        expect(run.returncode == 0 and run.stdout.count("netns") == 2 and "65534" in run.stdout, run)


# Node 0 listens on each of its addresses, the others connect and say who they are.
REACH = """
import os, socket, time
rank, nodes, rails = int(os.environ['NODE_RANK']), int(os.environ['NNODES']), RAILS
for rail in range(rails):
    if rank == 0:
        server = socket.create_server((f'10.77.{rail}.1', 5000))
        server.settimeout(30)
        for _ in range(nodes - 1):
            peer, address = server.accept()
            print(rail, address[0], peer.makefile().read())
    else:
        for _ in range(300):
            try:
                s = socket.create_connection((f'10.77.{rail}.1', 5000), timeout=5)
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        s.sendall(socket.gethostname().encode())
        s.close()
"""


def case_rails():
    """Every node reaches every other on each of its links, at the full frame size."""
    require_namespaces()
    done = netlab("--nodes", "4", "--rails", "2", script=REACH.replace("RAILS", "2"))
    expect(done.code == 0, done)
    want = {f"{rail} 10.77.{rail}.{node + 1} node{node}" for rail in (0, 1) for node in (1, 2, 3)}
    expect(set(done.out.splitlines()) == want, done)
    script = ("import os; print(os.environ['PRUNEX_SOCKET_IFNAME'],"
              "open('/sys/class/net/eth1/mtu').read().strip() if os.path.exists('/sys/class/net/eth1') else '9000')")
    done = netlab("--nodes", "1", "--rails", "3", script=script)
    expect(done.out == "eth0,eth1,eth2 9000\n", done)


def case_eight_nodes():
    require_namespaces()
    done = netlab("--nodes", "8", "--rate", "1gbit", script=REACH.replace("RAILS", "1"))
    expect(done.code == 0 and len(done.out.splitlines()) == 7, done)


# Each (source, target) pair of PAIRS moves SIZE bytes, all at once. Targets print begin, end, bytes.
MOVE = """
import os, socket, threading, time
rank = int(os.environ['NODE_RANK'])
def send(target):
    for _ in range(300):
        try:
            s = socket.create_connection((f'10.77.0.{target + 1}', 5000), timeout=50)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    s.sendall(bytes(SIZE))
    s.close()
def receive(peer):
    begin, got = time.monotonic(), 0
    while data := peer.recv(1 << 18):
        got += len(data)
    print(begin, time.monotonic(), got)
server = socket.create_server((os.environ['NETLAB_ADDR'], 5000))
server.settimeout(30)
work = [threading.Thread(target=send, args=(t,)) for s, t in PAIRS if s == rank]
for t in work:
    t.start()
for _ in [t for s, t in PAIRS if t == rank]:
    work.append(threading.Thread(target=receive, args=(server.accept()[0],)))
    work[-1].start()
for t in work:
    t.join()
"""


def case_rate():
    """Faster than the rate is impossible: out of a node that sends to two, and into one two send to.

    Noise makes a transfer slower, never faster, so the bound holds on any machine. 2 MB are let off for
    what queues, bursts and socket buffers have already taken in when the clock starts.
    """
    require_namespaces()
    size, rate = 10_000_000, 100e6 / 8
    for pairs in ([(0, 1), (0, 2)], [(1, 0), (2, 0)]):
        script = MOVE.replace("PAIRS", repr(pairs)).replace("SIZE", str(size))
        done = netlab("--nodes", "3", "--rate", "100mbit", script=script)
        expect(done.code == 0, done)
        begins, ends, got = zip(*([float(word) for word in line.split()] for line in done.out.splitlines()))
        expect(sum(got) == 2 * size, done)
        expect(max(ends) - min(begins) >= (2 * size - 2_000_000) / rate, pairs, done)


def case_exit_status():
    require_namespaces()
    fail = "import os, sys, time\nif os.environ['NODE_RANK'] == '1': sys.exit(7)\ntime.sleep(500)"
    done = netlab("--nodes", "3", "--linger", "0", script=fail)
    expect(done.code == 7 and "node1" in done.err and "7" in done.err, done)
    killed = "import os, time\nif os.environ['NODE_RANK'] == '2': os.kill(os.getpid(), 9)\ntime.sleep(500)"
    done = netlab("--nodes", "3", "--linger", "0", script=killed)
    expect(done.code == 137 and "SIGKILL" in done.err, done)
    # The first failure counts, not the last; success elsewhere does not hide it.
    both = "import os, sys, time\nr = int(os.environ['NODE_RANK'])\ntime.sleep(r * 1.0)\nsys.exit([0, 3, 4][r])"
    done = netlab("--nodes", "3", "--linger", "10", script=both)
    expect(done.code == 3, done)
    missing = subprocess.run([NETLAB, "--nodes", "2", "--", "/no/such/program"], capture_output=True,
                             text=True, timeout=LIMIT)
    expect(missing.returncode == 127 and "/no/such/program" in missing.stderr, missing)


def case_arguments():
    """The command's words arrive as they are."""
    words = ["two words", "*", "$HOME", "", "it's", "--nodes", "a\nb"]
    script = "import sys, json; print(json.dumps(sys.argv[1:]))"
    run = subprocess.run([NETLAB, "--nodes", "1", "--", sys.executable, "-c", script, *words],
                         capture_output=True, text=True, timeout=LIMIT)
    expect(run.returncode == 0 and json.loads(run.stdout) == words, run)


def case_usage():
    for options, word in (
            (["--nodes", "0"], "0"), (["--nodes", "65"], "65"), (["--nodes", "x"], "x"), ([], "--nodes"),
            (["--nodes", "2", "--rate", "fast"], "fast"), (["--nodes", "2", "--rate", "10"], "10"),
            (["--nodes", "2", "--mtu", "9e3"], "9e3"), (["--nodes", "2", "--rails", "17"], "17"),
            (["--nodes", "2", "--linger", "-1"], "-1"), (["--nodes", "2", "--bogus"], "--bogus")):
        run = subprocess.run([NETLAB, *options, "--", "true"], capture_output=True, text=True, timeout=LIMIT)
        expect(run.returncode == 2 and word in run.stderr and run.stdout == "", options, run)
    run = subprocess.run([NETLAB, "--nodes", "2", "--"], capture_output=True, text=True, timeout=LIMIT)
    expect(run.returncode == 2 and "command" in run.stderr, run)


# A command that ignores SIGTERM and leaves a process of another session behind.
STUBBORN = """
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(['sleep', '500'], start_new_session=True)
print('up', os.getpid(), flush=True)
time.sleep(500)
"""


def stubborn_lab(mark, nodes):
    lab = start("--nodes", str(nodes), "--linger", "0", "--kill-after", "0.5", script=STUBBORN)
    lines = [lab.stdout.readline() for _ in range(nodes)]
    if not all(line.startswith("up ") for line in lines):  # netlab has ended
        lab.kill()
        expect(False, lines, lab.communicate())
    pids = [int(line.split()[1]) for line in lines]
    return lab, pids, mark.namespaces() - {os.stat("/proc/self/ns/net").st_ino}


def case_cleanup_after_kill_of_a_child():
    require_namespaces()
    with Mark() as mark:
        lab, pids, namespaces = stubborn_lab(mark, 2)
        os.kill(pids[1], signal.SIGKILL)
        expect(lab.wait(LIMIT) == 137, lab.returncode)
        expect(not mark.running(), "netlab returned before all had ended:", mark.running())
        nothing_left(mark, namespaces)
        lab.communicate()


def case_cleanup_after_term():
    require_namespaces()
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)):
        with Mark() as mark:
            lab, _, namespaces = stubborn_lab(mark, 2)
            lab.send_signal(number)
            expect(lab.wait(LIMIT) == status, number, lab.returncode)
            expect(not mark.running(), "netlab returned before all had ended:", mark.running())
            nothing_left(mark, namespaces)
            lab.communicate()


def case_cleanup_after_kill_of_netlab():
    require_namespaces()
    with Mark() as mark:
        lab, _, namespaces = stubborn_lab(mark, 3)
        lab.kill()
        lab.wait(LIMIT)
        nothing_left(mark, namespaces)
        lab.communicate()


def case_cleanup_of_daemons():
    """What a command left running ends with the lab, also when all is well."""
    require_namespaces()
    with Mark() as mark:
        script = "import subprocess\nsubprocess.Popen(['sleep', '500'], start_new_session=True, stdout=-3, stderr=-3)"
        done = netlab("--nodes", "2", script=script)
        expect(done.code == 0 and not mark.running(), done, mark.running())


def case_last_words():
    """What a node sent before it ended still arrives, at the rate of the link."""
    require_namespaces()
    script = """
import os, socket, time
address = (os.environ['MASTER_ADDR'], 5000)
if os.environ['NODE_RANK'] == '0':
    server = socket.create_server(address)
    server.settimeout(30)
    peer = server.accept()[0]
    time.sleep(0.3)
    got = 0
    while data := peer.recv(65536):
        got += len(data)
    print(got)
else:
    for _ in range(300):
        try:
            s = socket.create_connection(address, timeout=5)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    s.sendall(bytes(400000))
"""
    done = netlab("--nodes", "2", "--rate", "10mbit", script=script)
    expect(done.code == 0 and done.out == "400000\n", done)


def case_two_labs():
    """Same addresses and ports in both; each sees only its own."""
    require_namespaces()
    script = REACH.replace("RAILS", "1").replace("5000", "int(os.environ['MASTER_PORT'])")
    labs = [start("--nodes", str(n), script=script) for n in (2, 3)]
    for lab, peers in zip(labs, (1, 2)):
        out, err = lab.communicate(timeout=LIMIT)
        expect(lab.returncode == 0 and len(out.splitlines()) == peers, out, err)


def case_shared_memory():
    """What one node puts into /dev/shm is not in the other's."""
    require_namespaces()
    script = """
import os, time, uuid
rank = int(os.environ['NODE_RANK'])
open(f'/dev/shm/netlab-test-{rank}', 'w').close()
time.sleep(1)
seen = sorted(n for n in os.listdir('/dev/shm') if n.startswith('netlab-test-'))
os.write(1, f'{rank} {seen}\\n'.encode())  # in one piece: two nodes write here
os.unlink(f'/dev/shm/netlab-test-{rank}')
"""
    done = netlab("--nodes", "2", script=script)
    if sorted(done.out.splitlines()) == [f"{i} ['netlab-test-0', 'netlab-test-1']" for i in (0, 1)]:
        skip("mounts are not permitted here")
    expect(sorted(done.out.splitlines()) == [f"{i} ['netlab-test-{i}']" for i in (0, 1)], done)


def case_main_job():
    """Two nodes of two ranks, dense and compact, as scripts/demo.sh runs them, on a smaller model."""
    require_namespaces()
    run = subprocess.run(
        [NETLAB, "--nodes", "2", "--", os.environ["PRUNEX_UNDER_TEST"], "bench", "allreduce", "--check",
         "--ranks-per-node", "2", "--model", "resnet18", "--keep", "0.4", "--iters", "2", "--json", "-"],
        capture_output=True, text=True, timeout=LIMIT)
    expect(run.returncode == 0, run)
    document = json.loads(run.stdout)
    rows = {row["mode"]: row for row in document["results"]}
    expect(document["world"] == 4 and document["nodes"] == 2, document)
    expect(all(row["errors"] == 0 for row in rows.values()), rows)
    dense, compact = rows["dense"]["bytes_wire"], rows["compact"]["bytes_wire"]
    expect(0 < compact <= (rows["compact"]["density"] + 0.01) * dense, rows)


def case_two_rails():
    """Two links per node: two leaders per node, each carrying its share, and the right sums."""
    require_namespaces()
    run = subprocess.run(
        [NETLAB, "--nodes", "2", "--rails", "2", "--", "env", "PRUNEX_RAILS=2", "PRUNEX_SOCKET_IFNAME=eth0,eth1",
         "PRUNEX_DEBUG=INFO", os.environ["PRUNEX_UNDER_TEST"], "bench", "allreduce", "--check", "--ranks-per-node",
         "2", "--size", "1000,5M", "--keep", "0.4", "--iters", "2", "--json", "-"],
        capture_output=True, text=True, timeout=LIMIT)
    expect(run.returncode == 0, run)
    rows = json.loads(run.stdout)["results"]
    expect(len(rows) == 4 and all(row["errors"] == 0 for row in rows), rows)
    expect("2 rails" in run.stderr, run.stderr)


def case_loopback():
    """The fall-back: says what the rate means there, keeps the rest of the contract."""
    with Mark() as mark:
        done = netlab("--nodes", "2", "--rate", "1gbit", "--loopback", script=SHOW)
        shown = nodes_of(done)
        expect("loopback" in done.err and "1gbit" in done.err, done.err)
        for i, node in enumerate(shown):
            expect(node["PRUNEX_NODE_ID"] == f"node{i}" and node["NODE_RANK"] == str(i), node)
            expect(node["NETLAB_MODE"] == "loopback" and node["NETLAB_RATE"] == "none", node)
            expect(node["PRUNEX_PACING_RATE"] == "1gbit", node)
            expect(node["PRUNEX_ROOT"].startswith("127.0.0.1:"), node)
            expect(node["PRUNEX_ROOT"].split(":")[1] != node["MASTER_PORT"], node)
        shown = nodes_of(netlab("--nodes", "2", "--loopback", script=SHOW))
        expect(all("PRUNEX_PACING_RATE" not in node for node in shown), shown)
        fail = "import os, sys, time\nif os.environ['NODE_RANK'] == '1': sys.exit(7)\ntime.sleep(500)"
        done = netlab("--nodes", "2", "--linger", "0", "--loopback", script=fail)
        expect(done.code == 7 and not mark.running(), done, mark.running())


if __name__ == "__main__":
    run_cases(globals())

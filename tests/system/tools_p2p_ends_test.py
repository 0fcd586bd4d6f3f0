#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the two ends of `prunex bench p2p` meet and part. Usage: tools_p2p_ends_test.py CASE. Cases of user reports
begin with their id."""
import os
import signal
import socket
import struct
import time

from lab import LIMIT, Mark, expect, run_cases, wait_until
from tools_lab import prunex, start


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def hello(protocol, release):
    return struct.pack("<III", 0x50325850, protocol, len(release)) + release.ljust(48, b"\0")


def end_of_rank(rank, port, host="127.0.0.1", arguments=(), **extra):
    return start("bench", "p2p", "--size", "64k", *arguments, env={
        "PRUNEX_RANK": str(rank), "PRUNEX_WORLD_SIZE": "2", "PRUNEX_ROOT": f"{host}:{port}", **extra})


def case_meeting_ends_in_time():
    """No other end: PRUNEX_TIMEOUT ends the wait, and the error says where, how often and why."""

    def alone(*arguments, **options):
        end = end_of_rank(*arguments, PRUNEX_TIMEOUT="1.5", **options)
        out, err = end.communicate(timeout=30)  # without it, the wait is a minute
        expect(end.returncode == 1 and out == "", end.returncode, err)
        expect("within 1.5 s" in err, err)
        return err

    port = free_port()
    err = alone(0, port)
    expect(f"127.0.0.1:{port} (IPv4)" in err and "listens on IPv4 only" in err and "IPv6" in err, err)
    err = alone(1, port)
    expect(f"127.0.0.1:{port} (IPv4)" in err and " attempts, the last: " in err and "refused" in err, err)
    err = alone(1, port, host="[::1]")
    expect(f"[::1]:{port} (IPv6)" in err and "tries IPv6 only" in err and "IPv4" in err, err)
    # A black hole: its queue is full, so that nothing is answered.
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        fill = []
        for _ in range(4):
            fill.append(socket.socket())
            fill[-1].setblocking(False)
            fill[-1].connect_ex(hole.getsockname())
        time.sleep(0.1)
        err = alone(1, hole.getsockname()[1])
        expect("1 attempt, the last: no answer from 127.0.0.1:" in err, err)
        for link in fill:
            link.close()


def case_families_that_do_not_meet():
    """IPv4 at one end and IPv6 at the other: each says its own, and that the other's may differ."""
    port = free_port()
    ends = [end_of_rank(0, port, PRUNEX_TIMEOUT="2"), end_of_rank(1, port, host="[::1]", PRUNEX_TIMEOUT="2")]
    for end in ends:
        out, err = end.communicate(timeout=LIMIT)
        expect(end.returncode == 1 and out == "" and "IPv4" in err and "IPv6" in err, err)
    # They meet, but their devices do not.
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return  # this machine has no IPv6
    port = free_port()
    ends = [end_of_rank(rank, port, PRUNEX_TIMEOUT="3", NCCL_SOCKET_IFNAME="=lo", NCCL_SOCKET_FAMILY=family)
            for rank, family in enumerate(("AF_INET", "AF_INET6"))]
    for end in ends:
        out, err = end.communicate(timeout=LIMIT)
        expect(end.returncode == 1 and out == "" and "127.0.0.1 (IPv4)" in err and "::1 (IPv6)" in err, err)
        expect("NCCL_SOCKET_FAMILY" in err, err)


def case_who_gave_an_option_is_told_of_the_option():
    """The plugin speaks of PRUNEX_TRANSPORT; with --transport nobody has set that."""
    for arguments, set_, says, never in (
            (["--transport", "verbs"], {}, "leave --transport out", "unset PRUNEX_TRANSPORT"),
            ([], {"PRUNEX_TRANSPORT": "verbs"}, "unset PRUNEX_TRANSPORT", "leave --transport out")):
        port = free_port()
        ends = [end_of_rank(rank, port, arguments=arguments, PRUNEX_TIMEOUT="5", NCCL_IB_DISABLE="1", **set_)
                for rank in range(2)]
        for end in ends:
            out, err = end.communicate(timeout=LIMIT)
            expect(end.returncode != 0 and out == "" and says in err and never not in err, err)


def speak(port, text):
    """Connects as the other end would, says the text, and hears what it gets until the end."""
    deadline = time.monotonic() + 20
    while True:
        try:
            link = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            expect(time.monotonic() < deadline, "rank 0 does not listen")
            time.sleep(0.02)
    with link:
        link.sendall(text)
        heard = b""
        link.settimeout(20)
        try:
            while chunk := link.recv(4096):
                heard += chunk
        except ConnectionResetError:
            pass
        return heard


def case_G11_another_protocol():
    port = free_port()
    end = end_of_rank(0, port)
    heard = speak(port, hello(77, b"9.8.7"))
    begin = time.monotonic()
    out, err = end.communicate(timeout=LIMIT)
    expect(time.monotonic() - begin < 5 and end.returncode not in (0, None), end.returncode, err)
    mine = document_release()
    expect(out == "" and "9.8.7" in err and "protocol 77" in err and mine in err and "protocol 3" in err, err)
    # The other end can say the same: it has got a hello too.
    magic, protocol, length = struct.unpack_from("<III", heard)
    expect(magic == 0x50325850 and protocol == 3 and heard[12:12 + length].decode() == mine, heard)


def case_G11_another_release():
    port = free_port()
    end = end_of_rank(0, port)
    speak(port, hello(3, b"0.0.1"))
    out, err = end.communicate(timeout=LIMIT)
    expect(end.returncode != 0 and out == "" and "0.0.1" in err and document_release() in err, err)


def case_G11_random_bytes():
    for text in (os.urandom(60), b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"x"):
        port = free_port()
        end = end_of_rank(0, port)
        speak(port, text)
        begin = time.monotonic()
        out, err = end.communicate(timeout=LIMIT)
        expect(time.monotonic() - begin < 5 and end.returncode != 0 and out == "", end.returncode, err)
        expect(document_release() in err and text[:4].hex() in err, err)


def case_G11_server_of_another_version():
    """The end that connects says it too, and does not wait for what never comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        end = end_of_rank(1, server.getsockname()[1])
        link, _ = server.accept()
        with link:
            link.sendall(hello(77, b"9.8.7"))
            out, err = end.communicate(timeout=LIMIT)
    expect(end.returncode != 0 and out == "" and "9.8.7" in err and document_release() in err, err)


def document_release():
    return prunex("--version").out.split()[1]


def case_ends_started_differently():
    port = free_port()
    first = end_of_rank(0, port)
    second = start("bench", "p2p", "--size", "128k", env={"PRUNEX_RANK": "1", "PRUNEX_WORLD_SIZE": "2",
                                                          "PRUNEX_ROOT": f"127.0.0.1:{port}"})
    for end in (first, second):
        out, err = end.communicate(timeout=LIMIT)
        expect(end.returncode != 0 and out == "" and "65536" in err and "131072" in err, err)


def case_end_that_gives_up_is_told():
    """What one end cannot do ends the other as well, which does not call it a silence."""
    port = free_port()
    root = {"PRUNEX_WORLD_SIZE": "2", "PRUNEX_ROOT": f"127.0.0.1:{port}"}
    first = start("bench", "p2p", "--size", "64k", "--device", "nosuch", env={"PRUNEX_RANK": "0", **root})
    second = end_of_rank(1, port)
    out, err = first.communicate(timeout=LIMIT)
    expect(first.returncode != 0 and out == "" and "nosuch" in err, err)
    out, err = second.communicate(timeout=LIMIT)
    expect(second.returncode != 0 and out == "" and "has ended; it says why" in err, err)


def case_dead_end_ends_the_run():
    with Mark() as mark:
        run = start("bench", "p2p", "--size", "64k", "--duration", 100,
                    env={"NETLAB_TEST_MARK": mark.mark})
        wait_until(lambda: len(mark.running()) >= 3, "both ends")
        time.sleep(0.5)
        victim = max(mark.running())
        os.kill(victim, signal.SIGKILL)
        out, err = run.communicate(timeout=LIMIT)
        expect(run.returncode != 0 and out == "" and err != "", run.returncode, out, err)
        wait_until(lambda: not mark.running(), "the end of all")


if __name__ == "__main__":
    run_cases(globals())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `prunex info` and `prunex topo`. Usage: tools_info_test.py CASE. Cases of user reports begin with their id."""
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import xml.etree.ElementTree

from lab import LIMIT, ROOT, expect, run_cases, skip
from tools_lab import PRUNEX, document, environment, prunex

FAKE = os.environ.get("FAKE_IBVERBS_FOLDER", "")
FIXTURES = sorted((ROOT / "tests" / "topology" / "fixtures").glob("*.xml"))


def installed(folder, library=True):
    """Copies the command, and with it the library, as an installation has them. Returns both paths."""
    command, lib = pathlib.Path(folder, "bin", "prunex"), pathlib.Path(folder, "lib", "libprunex.so")
    command.parent.mkdir()
    lib.parent.mkdir()
    shutil.copy(PRUNEX, command)
    if library:
        shutil.copy(pathlib.Path(PRUNEX).parents[1] / "plugin" / "libprunex.so", lib)
    return command, lib


def with_plugin(folder):
    """The command, the library and the NCCL plugin, as an installation has them."""
    command, lib = installed(folder)
    plugin = lib.with_name("libnccl-net-prunex.so")
    shutil.copy(pathlib.Path(PRUNEX).parents[1] / "plugin" / plugin.name, plugin)
    return command, plugin


def run(command, *arguments, **extra):
    return subprocess.run([command, *arguments], capture_output=True, text=True, timeout=LIMIT, env=environment(**extra))


def case_A6_one_line_says_whether_it_works():
    with tempfile.TemporaryDirectory() as folder:
        command, lib = installed(folder)
        done = run(command, "info")
        first = done.stdout.splitlines()[0]
        expect(done.returncode == 0 and done.stderr == "", done)
        expect(first.startswith("ready") and str(lib) in first and "socket" in first and "shm" in first, first)
        lib.unlink()
        done = run(command, "info")
        expect(done.returncode == 1 and done.stdout.startswith("not ready") and "libprunex.so" in done.stdout, done)
        expect(str(lib.parent) in done.stdout, "the paths tried", done.stdout)


def case_A6_library_by_path():
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as elsewhere:
        command, lib = installed(folder)
        shutil.move(lib, elsewhere)
        expect(run(command, "info").returncode == 1, "not beside the command, not on the path")
        done = run(command, "info", LD_LIBRARY_PATH=f"/nonexistent:{elsewhere}")
        expect(done.returncode == 0 and f"{elsewhere}/libprunex.so" in done.stdout, done)


def case_A6_nccl_plugin_with_versions_and_devices():
    with tempfile.TemporaryDirectory() as folder:
        command, plugin = with_plugin(folder)
        done = run(command, "info", NCCL_NET_PLUGIN="prunex")
        first = done.stdout.splitlines()[0]
        expect(done.returncode == 0 and done.stderr == "", done)
        expect(f"NCCL plugin at {plugin}, Net v6-v12, CollNet v6-v12, Tuner v2-v6" in first, first)
        made = json.loads(run(command, "info", "--json", "-", NCCL_SOCKET_IFNAME="=lo").stdout)["nccl_plugin"]
        expect(made["path"] == str(plugin) and made["usable"] and made["devices"] == ["lo"], made)
        expect("ncclNetPlugin_v12" in made["symbols"] and "ncclCollNetPlugin_v6" in made["symbols"], made)
        plugin.unlink()
        done = run(command, "info", NCCL_NET_PLUGIN="prunex")
        expect(done.returncode == 1 and f"tried {folder}/" in done.stdout.splitlines()[0], done)
        expect(str(plugin) in done.stdout.splitlines()[0], "the paths tried", done)
        done = run(command, "info")
        first = done.stdout.splitlines()[0]
        expect(done.returncode == 0 and "no NCCL plugin" in first and "scripts/build.sh builds it" in first, done)


def case_A6_nccl_plugin_by_path():
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as elsewhere:
        command, plugin = with_plugin(folder)
        shutil.move(plugin, elsewhere)
        shutil.copy(plugin.with_name("libprunex.so"), elsewhere)
        done = run(command, "info", LD_LIBRARY_PATH=elsewhere, NCCL_NET_PLUGIN="prunex")
        expect(done.returncode == 0 and f"{elsewhere}/{plugin.name}" in done.stdout, done)


def case_A6_what_nccl_would_load():
    """NCCL_NET_PLUGIN with a '/' is that file; else LD_LIBRARY_PATH goes before what is beside the command."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as elsewhere:
        command, plugin = with_plugin(folder)
        other = pathlib.Path(elsewhere, plugin.name)
        shutil.copy(plugin, other)
        shutil.copy(plugin.with_name("libprunex.so"), elsewhere)

        def seen(**variables):
            done = run(command, "info", **variables)
            return done.returncode, done.stdout.splitlines()[0], [l.strip() for l in done.stdout.splitlines() if "would" in l]

        expect(seen()[2] == [], "nothing else would be loaded")
        for variables, why in (({"LD_LIBRARY_PATH": elsewhere, "NCCL_NET_PLUGIN": "prunex"}, "LD_LIBRARY_PATH"),
                               ({"LD_LIBRARY_PATH": f"/nonexistent:{elsewhere}"}, "LD_LIBRARY_PATH"),
                               ({"NCCL_NET_PLUGIN": str(other)}, "NCCL_NET_PLUGIN")):
            code, first, notes = seen(**variables)
            expect(code == 0 and f"NCCL plugin at {other}," in first, variables, first)
            expect(notes == [f"NCCL would load {other} ({why}), not {plugin} beside this command"], variables, notes)
        made = json.loads(run(command, "info", "--json", "-", NCCL_NET_PLUGIN=str(other)).stdout)["nccl_plugin"]
        expect(made["path"] == str(other) and "would load" in made["note"], made)
        maps = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").split()
        foreign = next(word for word in maps if word.endswith("/libc.so.6"))
        code, first, notes = seen(NCCL_NET_PLUGIN=foreign)
        expect(code == 0 and "(not PruneX's)" in first and "which is not PruneX's" in notes[0], first, notes)
        os.truncate(other, 20000)
        for variables in ({"NCCL_NET_PLUGIN": str(other)}, {"LD_LIBRARY_PATH": elsewhere}):
            code, first, _ = seen(**variables)
            expect(code == 1 and first.startswith("not ready") and f"{other}: library file truncated" in first, first)
        other.unlink()
        code, first, _ = seen(NCCL_NET_PLUGIN=str(other))
        expect(code == 1 and f"NCCL_NET_PLUGIN={other}: cannot read it" in first, first)
        code, first, notes = seen(LD_LIBRARY_PATH=elsewhere)
        expect(code == 0 and f"NCCL plugin at {plugin}," in first and notes == [], first, notes)


def case_headline_lists_what_would_be_used():
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    for variables in ({"NCCL_SOCKET_IFNAME": "=lo"}, {"NCCL_SOCKET_IFNAME": "^" + ",".join(["none", *names])}):
        done = prunex("info", env=variables)
        expect(done.code == 0 and "devices lo" in done.out.splitlines()[0], variables, done)
        expect(not any(name in done.out.splitlines()[0].split("devices")[1] for name in names), names, done)
        made = document(prunex("info", "--json", "-", env=variables))
        expect({t["name"]: t["devices"] for t in made["transports"]}["socket"] == ["lo"], made)


def case_A2_truncated_nccl_plugin():
    with tempfile.TemporaryDirectory() as folder:
        command, plugin = with_plugin(folder)
        whole = plugin.read_bytes()
        for size in (20000, 64, 10, 0, len(whole) - 1):
            os.truncate(plugin, size)
            done = run(command, "info")
            first = done.stdout.splitlines()[0]
            expect(done.returncode == 1 and f"{plugin}: library file truncated" in first, size, done)
            plugin.write_bytes(whole)
        expect(run(command, "info").returncode == 0, "whole again")


def case_nccl_plugin_without_its_library():
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as elsewhere:
        command, plugin = with_plugin(folder)
        shutil.move(plugin, elsewhere)
        done = run(command, "info", LD_LIBRARY_PATH=elsewhere)
        expect(done.returncode == 1 and "libprunex.so: cannot open" in done.stdout, "dlerror's own words", done)


def case_A2_truncated_library():
    with tempfile.TemporaryDirectory() as folder:
        command, lib = installed(folder)
        whole = lib.stat().st_size
        for size in (20000, 64, 10, 0, whole - 1):
            os.truncate(lib, size)
            done = run(command, "info")
            expect(done.returncode == 1 and "library file truncated" in done.stdout.splitlines()[0], size, done)
            shutil.copy(pathlib.Path(PRUNEX).parents[1] / "plugin" / "libprunex.so", lib)
        lib.write_text("no library at all, but long enough to hold an ELF header and something behind it")
        done = run(command, "info")
        expect(done.returncode == 1 and "ELF" in done.stdout, done)


def case_A2_truncated_or_corrupt_libraries_of_others():
    maps = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").split()
    libc = pathlib.Path(next(word for word in maps if word.endswith("/libc.so.6")))
    whole = libc.with_name("libm.so.6").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        command, _ = installed(folder)
        elsewhere = pathlib.Path(folder, "elsewhere")
        elsewhere.mkdir()
        for name in ("libibverbs.so.1", "libnccl.so.2", "libcuda.so.1"):
            library = elsewhere / name
            library.write_bytes(whole[:20000])
            done = run(command, "info", LD_LIBRARY_PATH=str(elsewhere))
            expect(done.returncode == 0 and done.stderr == "", name, done)
            expect(f"{library}: library file truncated" in done.stdout, name, done)
            # Of full length, but its code is gone: only a process that dies can tell.
            library.write_bytes(without_code(whole))
            done = run(command, "info", LD_LIBRARY_PATH=str(elsewhere))
            expect(done.returncode == 0 and done.stderr == "", name, done)
            expect(name.split(".")[0] in done.stdout and "ends the process with signal" in done.stdout, name, done)
            library.unlink()
        (elsewhere / "libibverbs.so.1").write_bytes(whole[:20000])
        done = run(command, "info", LD_LIBRARY_PATH=str(elsewhere), PRUNEX_TRANSPORT="verbs")
        expect(done.returncode == 1 and "library file truncated" in done.stdout.splitlines()[0], done)


def without_code(library):
    """The bytes of an ELF file of 64 bits whose executable segments are breakpoints."""
    out = bytearray(library)
    (table,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    for at in range(table, table + size * count, size):
        kind, flags, offset, _, _, length = struct.unpack_from("<IIQQQQ", library, at)
        if kind == 1 and flags & 1:
            out[offset : offset + length] = b"\xcc" * length
    return bytes(out)


def case_A20_variables_with_source():
    made = document(prunex("info", "--json", "-", env={"PRUNEX_TIMEOUT": "12", "NCCL_SOCKET_IFNAME": "^docker"}))
    config = {c["name"]: c for c in made["config"]}
    expect((config["PRUNEX_TIMEOUT"]["value"], config["PRUNEX_TIMEOUT"]["source"]) == ("12", "PRUNEX_TIMEOUT"), config)
    expect(config["PRUNEX_SOCKET_IFNAME"]["source"] == "NCCL_SOCKET_IFNAME", config)
    expect(config["PRUNEX_ISA"]["source"] == "default", config)
    made = document(prunex("info", "--json", "-", env={"PRUNEX_STREAM": "2"}))
    expect(any("PRUNEX_STREAM " in w and "PRUNEX_STREAMS" in w for w in made["warnings"]), made)
    done = prunex("info", env={"PRUNEX_STREAM": "2"})
    expect("PRUNEX_STREAM is set" in done.out, done)


def case_metrics_file_that_cannot_be_written():
    for path, reason in (("/nonexistent/p.prom", "No such file"), ("/tmp", "Is a directory")):
        made = document(prunex("info", "--json", "-", env={"PRUNEX_METRICS_FILE": path}))
        expect(any(f"PRUNEX_METRICS_FILE={path} cannot be written" in w and reason in w for w in made["warnings"]), made)
    made = document(prunex("info", "--json", "-", env={"PRUNEX_METRICS_FILE": "/tmp/prunex-%p.prom"}))
    expect(made["warnings"] == [], made)


def case_A20_junk_is_a_problem():
    done = prunex("info", "--json", "-", env={"PRUNEX_STREAMS": "abc"})
    made = json.loads(done.out)
    expect(done.code == 1 and made["ready"] is False, done)
    expect(any("PRUNEX_STREAMS=abc" in p for p in made["problems"]), made)


def case_no_usable_network():
    done = prunex("info", env={"PRUNEX_SOCKET_IFNAME": "eth77"})
    expect(done.code == 1 and "eth77" in done.out.splitlines()[0] and "lo" in done.out, done)


def verbs_line(devices, code=0, **extra):
    """What it says of RDMA on a libibverbs made of tests, and its whole output. devices: see library.cc there."""
    done = prunex("info", env={"FAKE_IBVERBS": devices, "LD_LIBRARY_PATH": FAKE, **extra})
    expect(done.code == code and done.err == "", done)
    line, = (line for line in done.out.splitlines() if line.split()[:1] == ["verbs"])
    return " ".join(line.split()[1:]), done.out


def case_every_rdma_port():
    if not FAKE:
        skip("built without verbs")
    line, out = verbs_line("rxe0:1,mlx5_0:2")
    expect(line == "yes: mlx5_0:1 (RoCE v2, GID 1 ::ffff:10.0.0.2, MTU 4096), rxe0:1 (RoCE v2, GID 1 ::ffff:10.0.0.1, MTU 4096)"
           or line == "yes: rxe0:1 (RoCE v2, GID 1 ::ffff:10.0.0.1, MTU 4096), mlx5_0:1 (RoCE v2, GID 1 ::ffff:10.0.0.2, MTU 4096)",
           line)
    summary = out.splitlines()[0]
    expect(summary.startswith("ready: ") and " verbs," in summary and "rxe0" in summary and "mlx5_0" in summary, summary)
    # What cannot be used stands beside it, with its reason.
    line, out = verbs_line("rxe0:1,rxe1:2:down,mlx5_0:3:closed")
    expect(line.startswith("yes: rxe0:1 (RoCE v2, GID 1 ") and "rxe1:1 is not used: its state is DOWN" in line, line)
    expect("mlx5_0:1 is not used: it cannot be opened: /dev/infiniband/uverbs" in line and "Operation not permitted" in line,
           line)
    expect("rxe1" not in out.splitlines()[0], out)
    line, _ = verbs_line("rxe0:1,rxe1:2", PRUNEX_IB_HCA="=rxe1:1")
    expect("rxe1:1 (RoCE v2" in line and "rxe0:1 (" not in line, line)
    made = document(prunex("info", "--json", "-", env={"FAKE_IBVERBS": "rxe0:1,rxe1:2:down", "LD_LIBRARY_PATH": FAKE}))
    verbs, = (t for t in made["transports"] if t["name"] == "verbs")
    expect(verbs["usable"] and verbs["devices"] == ["rxe0"] and "rxe1:1" in verbs["detail"], verbs)


def case_why_there_is_no_rdma():
    if not FAKE:
        skip("built without verbs")
    for devices, reasons in (("", ("there is no RDMA device", "/dev/infiniband")),
                             ("rxe0:1:down,rxe1:2:closed", ("rxe0:1 (its state is DOWN)", "rxe1:1 (it cannot be opened")),
                             ("rxe0:1:nomem", ("cannot be registered with rxe0:1", "ulimit -l"))):
        line, out = verbs_line(devices)
        expect(line.startswith("no: ") and all(reason in line for reason in reasons), line)
        expect(out.startswith("ready: ") and " socket," in out.splitlines()[0], out)
        # Once: the plugin, whose network fails for the same reason, does not say it again.
        line, out = verbs_line(devices, code=1, PRUNEX_TRANSPORT="verbs")
        first = out.splitlines()[0]
        expect(first.startswith("not ready: ") and line == "no: see the first line", out)
        for reason in (*reasons, "unset PRUNEX_TRANSPORT"):
            expect(reason in first and out.count(reason) == 1, reason, out)
        made = json.loads(prunex("info", "--json", "-", env={
            "FAKE_IBVERBS": devices, "LD_LIBRARY_PATH": FAKE, "PRUNEX_TRANSPORT": "verbs"}).out)
        expect(len(made["problems"]) == 1 and all(reason in made["problems"][0] for reason in reasons), made)
    line, _ = verbs_line("rxe0:1", PRUNEX_IB_DISABLE="1")
    expect(line.startswith("no: ") and "PRUNEX_IB_DISABLE" in line, line)
    line, _ = verbs_line("rxe0:1", PRUNEX_TRANSPORT="socket")
    expect(line == "no: not asked for: PRUNEX_TRANSPORT=socket", line)


def case_json():
    made = document(prunex("info", "--json", "-", env={"NCCL_DEBUG": "TRACE"}))
    expect(made["schema"] == "prunex.info" and made["version"] == 1 and made["ready"] is True, made)
    expect({t["name"] for t in made["transports"]} == {"shm", "socket", "verbs"}, made)
    expect(all(t["detail"] for t in made["transports"]), "why, or why not", made)
    expect(made["kernels"]["isa"] in made["kernels"]["available"], made)
    done = prunex("info", "--json", "/nonexist/x.json")
    expect(done.code == 1 and "/nonexist/x.json" in done.err and done.out == "", done)


def case_markdown_lists_every_variable():
    done = prunex("info", "--markdown")
    lines = done.out.splitlines()
    expect(done.code == 0 and len({line.replace("\\|", "").count("|") for line in lines}) == 1, done)
    names = {line.split("`")[1] for line in lines[2:]}
    made = document(prunex("info", "--json", "-"))
    expect(names == {c["name"] for c in made["config"]}, names)


def case_usage():
    for arguments in (("info", "--bogus"), ("info", "stray"), ("info", "--json", ""), ("topo", "--nodes", "0"),
                      ("topo", "--svg", "-", "--json", "-"), ("topo", "--bogus")):
        done = prunex(*arguments)
        expect(done.code == 2 and done.out == "" and done.err != "", arguments, done)
    done = prunex()
    expect(done.code == 2 and "allreduce" not in done.out and "bench" in done.err, done)
    done = prunex("--version")
    expect(done.code == 0 and done.out.startswith("prunex ") and done.err == "", done)


def case_topo_of_this_machine():
    done = prunex("topo")
    expect(done.code == 0 and done.err == "" and "leader" in done.out, done)
    made = document(prunex("topo", "--ranks-per-node", 3, "--nodes", 2, "--json", "-"))
    expect(made["schema"] == "prunex.topo" and made["world"] == 6 and len(made["nodes"]) == 2, made)
    for node in made["nodes"]:
        expect(len(node["ranks"]) == 3 and node["leaders"][0]["rank"] in node["ranks"], node)
        expect(all(leader["why"] for leader in node["leaders"]), node)


def case_topo_has_the_rdma_devices_of_a_job():
    if not FAKE:
        skip("built without verbs")
    fake = {"FAKE_IBVERBS": "rxe0:1,rxe1:2", "LD_LIBRARY_PATH": FAKE}
    done = prunex("topo", "--nodes", 2, env=fake)
    expect(done.code == 0 and done.err == "" and "verbs" in done.out.splitlines()[0] and "RDMA" in done.out, done)
    made = document(prunex("topo", "--ranks-per-node", 2, "--json", "-", env=fake))
    expect({leader["nic"] for leader in made["nodes"][0]["leaders"]} == {"rxe0", "rxe1"}, made)
    made = document(prunex("topo", "--json", "-", env={**fake, "PRUNEX_IB_HCA": "=rxe1"}))
    expect([leader["nic"] for leader in made["nodes"][0]["leaders"]] == ["rxe1"], made)
    done = prunex("topo", env={**fake, "PRUNEX_IB_DISABLE": "1"})
    expect(done.code == 0 and "verbs" not in done.out and "rxe" not in done.out, done)


def case_topo_missing_file_is_an_error():
    done = prunex("topo", "--input", "/nonexist/machine.xml")
    expect(done.code == 1 and "/nonexist/machine.xml" in done.err and done.out == "", done)
    with tempfile.NamedTemporaryFile(suffix=".xml") as file:
        file.write(b"this is not XML")
        file.flush()
        done = prunex("topo", "--input", file.name)
        expect(done.code == 1 and file.name in done.err and done.out == "", done)


def case_topo_draws_machines_from_files():
    expect(FIXTURES, "there are fixtures")
    for fixture in FIXTURES:
        with tempfile.TemporaryDirectory() as folder:
            svg = f"{folder}/x.svg"
            done = prunex("topo", "--input", fixture, "--input", fixture, "--svg", svg)
            expect(done.code == 0 and done.err == "" and "node 1" in done.out, fixture, done)
            expect(xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg"), fixture)
        made = document(prunex("topo", "--input", fixture, "--json", "-"))
        expect(len(made["nodes"]) == 1 and made["nodes"][0]["leaders"], fixture, made)
    done = prunex("topo", "--input", FIXTURES[0], "--svg", "-")
    expect(done.code == 0 and done.out.lstrip().startswith("<"), done)
    done = prunex("topo", "--svg", "/nonexist/x.svg")
    expect(done.code == 1 and "/nonexist/x.svg" in done.err and done.out == "", done)


def case_readme_shows_what_topo_draws():
    line = next(l for l in (ROOT / "README.md").read_text().splitlines() if "prunex topo --input" in l)
    words = line.split("`")[1].split()
    expect(words[0] == "prunex" and words[-2] == "--svg", words)
    done = prunex(*words[1:-1], "-", cwd=ROOT)
    expect(done.code == 0 and done.out == (ROOT / words[-1]).read_text(), "docs/topology.svg is out of date")


run_cases(globals())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the plugin's file as it is installed. Usage: files_test.py CASE. Cases of user reports begin with their id."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
from lab import LIMIT, ROOT, expect, run_cases, skip  # noqa: E402

BUILD = pathlib.Path(os.environ.get("PRUNEX_BUILD", ROOT / "build"))
NAME = "libnccl-net-prunex.so"

# NCCL's own steps for NCCL_NET_PLUGIN=X, see its documentation: X as it is, then libnccl-net-X.so.
LOADER = """
import ctypes, os, sys
wanted = sys.argv[1]
names = [wanted] if "/" in wanted or wanted.startswith("lib") else [wanted, f"libnccl-net-{wanted}.so"]
for name in names:
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        break
    except OSError as error:
        print(error, file=sys.stderr)
else:
    sys.exit("not found")
for version in range(6, 13):
    ctypes.c_void_p.in_dll(library, f"ncclNetPlugin_v{version}")
with open("/proc/self/maps") as maps:
    print(*sorted({line.split()[-1] for line in maps if "prunex" in line and line.split()[-1].startswith("/")}))
"""


def tool(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True).stdout


def dynamic(file, tag):
    return re.findall(rf"\({tag}\).*\[(.*)\]", tool("readelf", "-d", file))


def installed(folder):
    """Installs what is built into a prefix of its own. Returns the plugin's path and all files."""
    run = subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", folder],
                         capture_output=True, text=True, timeout=LIMIT)
    expect(run.returncode == 0, run.stdout, run.stderr)
    files = [path for path in pathlib.Path(folder).rglob("*") if not path.is_dir()]
    plugins = [path for path in files if path.name == NAME]
    expect(len(plugins) == 1, files)
    return plugins[0], files


def load(wanted, **extra):
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    run = subprocess.run([sys.executable, "-c", LOADER, wanted], capture_output=True, text=True, timeout=LIMIT,
                         env={**env, **extra})
    return run


def case_A7_installed_under_its_own_name():
    with tempfile.TemporaryDirectory() as folder:
        plugin, files = installed(folder)
        names = {path.name for path in files}
        expect("libnccl-net.so" not in names, "a bare libnccl-net.so takes over every job", names)
        expect({n for n in names if n.startswith("libnccl")} == {NAME}, names)
        expect(dynamic(plugin, "SONAME") == [NAME], "SONAME")
        expect(dynamic(plugin, "RUNPATH") in (["$ORIGIN"], ["$ORIGIN/"]) and not dynamic(plugin, "RPATH"), "RUNPATH")
        expect(plugin.with_name("libprunex.so") in files, "the library lies beside it")


def case_A7_loaded_by_suffix_by_name_and_by_path():
    with tempfile.TemporaryDirectory() as folder:
        plugin, _ = installed(folder)
        where = {"LD_LIBRARY_PATH": str(plugin.parent)}
        for wanted, extra in (("prunex", where), (NAME, where), (str(plugin), {})):
            done = load(wanted, **extra)
            expect(done.returncode == 0, wanted, done.stderr)
            expect(done.stdout.split() == sorted([str(plugin), str(plugin.with_name("libprunex.so"))]), wanted, done)
        expect(load("prunex").returncode != 0, "not on the path: not found")


def case_A7_without_its_library_it_says_so():
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as elsewhere:
        plugin, _ = installed(folder)
        moved = pathlib.Path(shutil.copy(plugin, elsewhere))
        done = load(str(moved))
        expect(done.returncode != 0 and "libprunex.so" in done.stderr, "dlerror's own words", done)


def case_A12_exports_and_needs():
    prefixes = {NAME: r"nccl(Net|CollNet|Tuner)Plugin_v\d+", "libprunex.so": r"prunex_\w+"}
    for name, allowed in prefixes.items():
        file = BUILD / "plugin" / name
        for line in tool("nm", "-D", "--defined-only", file).splitlines():
            symbol = line.split()[-1]
            expect(re.fullmatch(allowed, symbol), name, "exports", symbol)
        symbols = tool("objdump", "-T", file)
        expect("GLIBCXX_" not in symbols and "CXXABI_" not in symbols, name, "needs somebody's C++ runtime")


if any("san" in name for name in dynamic(BUILD / "plugin" / "libprunex.so", "NEEDED")):
    skip("built with a sanitizer, whose runtime has to come first")
run_cases(globals())

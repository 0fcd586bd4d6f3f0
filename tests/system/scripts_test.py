#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the scripts that judge others: check_includes.py, check_naming.py and count_tests.py; and what
soft-roce.sh says of a guest that does not come up."""
import json
import pathlib
import subprocess
import sys
import tempfile

from lab import ROOT, expect, run_cases, skip


def run(script, *arguments):
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / script), *arguments],
                          capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.splitlines()


class Tree:
    """A folder with files, given as path=text."""

    def __init__(self, files):
        self.folder = tempfile.TemporaryDirectory()
        self.path = self.folder.name
        for name, text in files.items():
            path = pathlib.Path(self.path, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


GOOD = {
    "include/prunex/prunex.h": "#include <stddef.h>\n",
    "plugin/base/result.h": "#include <string>\n",
    "kernels/mask.h": '#include "plugin/base/result.h"\n',
    "plugin/collective/plan.h": '#include "kernels/mask.h"\n',
    "plugin/api/api.cc": '#include "plugin/collective/plan.h"\n#include "prunex/prunex.h"\n',
    "tests/kernels/mask_test.cc": '#include "kernels/mask.h"\n',
}


def includes(files):
    tree = Tree(files)
    return run("check_includes.py", tree.path)


def case_includes():
    code, out = includes(GOOD)
    expect(code == 0 and out == ["6 files"], code, out)
    for path, text, fault in (
            ("plugin/base/log.h", '#include "kernels/mask.h"', "plugin/base/log.h:1: "),
            ("kernels/pack.cc", '\n\n# include "plugin/collective/plan.h"', "kernels/pack.cc:3: "),
            ("kernels/pack.cc", '#include "tests/kernels/mask_test.cc"', "kernels/pack.cc:1: "),
            ("topology/world.cc", '#include "kernels/mask.h"', "topology/world.cc:1: "),
            ("kernels/pack.cc", '#include "mask.h"', "kernels/pack.cc:1: "),
            ("kernels/pack.cc", "#include <kernels/mask.h>", "kernels/pack.cc:1: "),
            ("plugin/collective/plan.cc", '#include "prunex/prunex.h"', "plugin/collective/plan.cc:1: ")):
        code, out = includes({**GOOD, path: text + "\n"})
        expect(code == 1 and len(out) == 1 and out[0].startswith(fault), path, text, out)


def configured_archs(text):
    tree = Tree({} if text is None else {"meson-info/intro-buildoptions.json": text})
    done = subprocess.run(["bash", "-euc", '. scripts/lib.sh; configured_archs "$1"', "_", tree.path], cwd=ROOT,
                          capture_output=True, text=True, timeout=60)
    expect(done.returncode == 0 and not done.stderr, done)
    return done.stdout.strip()


def case_archs():
    """A tree that was configured for all architectures is built for them again."""
    options = [{"name": "cuda", "value": "auto"}, {"name": "nvcc_archs", "value": ["80", "90", "100"]}]
    expect(configured_archs(json.dumps(options)) == "80,90,100")
    expect(configured_archs(json.dumps(options[:1])) == "", "a tree from before there was the option")
    expect(configured_archs("half a fi") == "")
    expect(configured_archs(None) == "", "no tree yet")
    text = (ROOT / "scripts" / "build.sh").read_text(encoding="utf-8")
    expect("-Dnvcc_archs=90" not in text, "build.sh turns a tree back")


NAMED = {
    ".clang-tidy": (ROOT / ".clang-tidy").read_text(encoding="utf-8"),
    "plugin/base/a.h": "#pragma once\ninline int half_of(int whole) { return whole / 2; }\n",
    # Each compiles alone, none beside the one before: what they have in common is told too late.
    "plugin/base/a.cc": '#include "plugin/base/a.h"\nnamespace { constexpr int kMost = 3; }\n'
                        'int most_of_a() { return half_of(kMost); }\n',
    "plugin/base/b.cc": '#include "plugin/base/a.h"\nnamespace { constexpr int kMost = 4; }\n'
                        'int most_of_b() { return half_of(kMost); }\n',
    "plugin/base/c.cc": "namespace {\nconstexpr int kMost = 5;\n}\nint most_of_c() { return kMost; }\n",
    "tests/base/a_test.cc": '#include "plugin/base/a.h"\nint main() { return half_of(0); }\n',
}


def naming(files):
    tree = Tree(files)
    commands = [{"directory": tree.path, "file": name,
                 "command": f"ccache g++ -I{tree.path} -std=c++20 -Wall -MD -MF x.d -o x.o -c {name}"}
                for name in files if name.endswith(".cc")]
    pathlib.Path(tree.path, "compile_commands.json").write_text(json.dumps(commands), encoding="utf-8")
    code, out = run("check_naming.py", "--tree", tree.path, "--build", tree.path)
    return code, [line.replace(tree.path + "/", "") for line in out]


# In a file, a header, a test; next to files with which it cannot be compiled.
def case_naming():
    code, out = naming(NAMED)
    if code == 77:
        skip(out[-1])
    expect(code == 0 and out == [], code, out)
    for path, text, fault in (
            ("plugin/base/a.cc", "int MostOfAll() { return 1; }", "4:5: error: invalid case style for function"),
            ("plugin/base/b.cc", "struct small_thing {};", "4:8: error: invalid case style for struct"),
            ("plugin/base/c.cc", "class C {\n  int count = 0;\n};", "6:7: error: invalid case style for private member"),
            ("plugin/base/a.h", "inline int Twice(int n) { return n; }", "3:12: error: invalid case style for function"),
            ("plugin/base/a.h", "constexpr int limit = 3;", "3:15: error: invalid case style for constexpr"),
            ("tests/base/a_test.cc", "namespace Tests {}", "3:11: error: invalid case style for namespace"),
            ("plugin/base/c.cc", "int broken() { return nothing; }", "5:23: error: use of undeclared")):
        code, out = naming({**NAMED, path: NAMED[path] + text + "\n"})
        expect(code == 1 and len(out) == 1 and out[0].startswith(f"{path}:{fault}"), path, text, out)


def xml(*cases):
    return ("<testsuites><testsuite>" + "".join(
        f'<testcase classname="S" name="{name}" status="run">{inner}</testcase>' for name, inner in cases)
        + "</testsuite></testsuites>")


PROGRAM = """#!/bin/sh
echo "S."
echo "  a"
echo "  b"
"""


def count(tests, files, *options):
    """tests: (name, protocol, result, status, stdout). Returns what was printed and the three counts."""
    tree = Tree({"program": PROGRAM, **files})
    program = pathlib.Path(tree.path, "program")
    program.chmod(0o755)
    for folder in ("meson-logs", "meson-info"):
        pathlib.Path(tree.path, folder).mkdir()
    pathlib.Path(tree.path, "meson-logs", "testlog.json").write_text("".join(
        json.dumps({"name": f"prunex:area / {name}", "result": result, "returncode": status, "stdout": out}) + "\n"
        for name, _, result, status, out in tests), encoding="utf-8")
    pathlib.Path(tree.path, "meson-info", "intro-tests.json").write_text(json.dumps(
        [{"name": t[0], "protocol": t[1], "cmd": [str(program)]} for t in tests]), encoding="utf-8")
    code, out = run("count_tests.py", tree.path, *options)
    expect(code == 0, code, out)
    return out[:-1], tuple(int(n) for n in out[-1].split())


def case_counts():
    skipped = '<skipped message="f.cc:3&#x0A;no GPU here&#x0A;"/>'
    failed = '<failure message="f.cc:9&#x0A;Expected equality"/>'
    out, counts = count([("one", "gtest", "FAIL", 1, "")],
                        {"one.xml": xml(("a", ""), ("b", failed), ("c", skipped), ("d", ""))})
    expect(counts == (2, 1, 1), counts)
    expect(any("S.c" in line and "no GPU here" in line for line in out), out)
    # A skip that does not say why is a failure.
    expect(count([("one", "gtest", "OK", 0, "")],
                 {"one.xml": xml(("a", '<skipped message="f.cc:3&#x0A;"/>'))})[1] == (0, 1, 0))
    # All cases passed and then the process died: a leak, a crash in a destructor.
    expect(count([("one", "gtest", "FAIL", 1, "")], {"one.xml": xml(("a", ""))})[1] == (1, 1, 0))
    # It died before it could write.
    expect(count([("one", "gtest", "TIMEOUT", -9, "")], {})[1] == (0, 1, 0))
    # Not GoogleTest.
    expect(count([("s", "exitcode", "OK", 0, ""), ("t", "exitcode", "FAIL", 3, "")], {})[1] == (1, 1, 0))
    expect(count([("s", "exitcode", "SKIP", 77, "skipped: no namespaces\n")], {})[1] == (0, 0, 1))
    expect(count([("s", "exitcode", "SKIP", 77, "")], {})[1] == (0, 1, 0))
    # One name twice: one result would hide the other.
    expect(count([("s", "exitcode", "OK", 0, ""), ("s", "exitcode", "OK", 0, "")], {})[1] == (2, 1, 0))
    expect(count([], {})[1] == (0, 1, 0))


def case_counts_what_no_filter_runs():
    test, files = [("one", "gtest", "OK", 0, "")], {"one.xml": xml(("a", ""))}
    expect(count(test, files)[1] == (1, 0, 0))
    out, counts = count(test, files, "--complete")
    expect(counts == (1, 1, 0) and "S.b" in out[0], out, counts)


def boot(guest, limit):
    """soft-roce.sh's own boot() with a program of ours as qemu."""
    with tempfile.TemporaryDirectory() as run:
        script = f"""
            . {ROOT}/scripts/soft-roce.sh
            exec {{never}}<> <(:)
            run={run} boot_limit={limit}
            start_guest() {{ echo start >>"$run/starts"; ({guest}) >"$run/console" 2>&1 & vm=$!; }}
            (boot) || echo "status $?"
            echo "starts $(wc -l <"$run/starts")"
        """
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
        return done.stdout.split("\n"), done.stderr


def case_soft_roce_guest_that_does_not_come_up():
    out, err = boot("exec sleep 30", 1)
    expect("status 125" in out and "starts 2" in out, out, err)
    expect("within 1 s (--boot-timeout)" in err and "console is still empty" in err, err)
    out, err = boot("echo Linux version; exec sleep 30", 1)
    expect("starts 2" in out and "Linux version" in err and "console is above" in err, out, err)
    # What qemu itself refuses it refuses again.
    refusal = "qemu-system-x86_64: cannot set up guest memory 'pc.ram': Cannot allocate memory"
    out, err = boot(f'echo "{refusal}"; exit 1', 20)
    expect("status 125" in out and "starts 1" in out and f"refuses it: {refusal}" in err, out, err)
    expect("--boot-timeout" not in err, err)
    out, err = boot('echo up >"$run/up"; exec sleep 1', 20)
    expect(out[0] == "starts 1" and err == "", out, err)
    done = subprocess.run([str(ROOT / "scripts" / "soft-roce.sh"), "--memory", "999999G", "--", "true"],
                          capture_output=True, text=True, timeout=60)
    expect(done.returncode == 2 and "--memory 999999G is more than" in done.stderr, done)
    with tempfile.TemporaryDirectory(dir="/tmp") as hidden:
        done = subprocess.run([str(ROOT / "scripts" / "soft-roce.sh"), "--offline", "--writable", "/", "--", "true"],
                              capture_output=True, text=True, timeout=60, cwd=hidden)
    expect(done.returncode == 77 and f"the guest does not see {hidden}" in done.stderr, done)


if __name__ == "__main__":
    run_cases(globals())

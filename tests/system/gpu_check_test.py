#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check.sh on a machine without a GPU: what it does when steps hang, fail or write rubbish.

  gpu_check_test.py CASE

nvidia-smi, the compiler and what is built are scripts of a few lines.
"""
import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid

from lab import expect, processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu-check.sh"
LIMIT = 90  # seconds: no run here takes longer

Done = collections.namedtuple("Done", "code out report seconds")
FINE = "echo all is well"
HANGS = "trap '' TERM\nsleep 300 &\nsleep 300\nwait"


class Machine:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.mark = uuid.uuid4().hex
        for name in ("bin", "build", "build/o"):
            (self.folder / name).mkdir()
        self.script("bin/nvidia-smi", "echo 'NVIDIA Stand-in, 9.0, 580.159.03'")
        for name in ("cuda_host_test", "cuda_device_test", "cuda_pack_bench", "nccl_check", "libprunex.so"):
            self.script("build/" + name, FINE)
        self.script("bin/compute-sanitizer", FINE)
        real = subprocess.run(["bash", "-c", "command -v python3"], capture_output=True, text=True, check=True)
        self.script("bin/python3", f'case "$*" in *ddp_device*) {FINE} ;; *) exec {real.stdout.strip()} "$@" ;; esac')

    def script(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/usr/bin/env bash\n" + text + "\n", encoding="utf-8")
        path.chmod(0o755)

    def command(self, *options):
        return [str(SCRIPT), "--build", str(self.folder / "build"), "--out", str(self.folder / "out"), *options]

    def environment(self, **more):
        path = str(self.folder / "bin") + ":" + os.environ["PATH"]
        return dict(os.environ, PATH=path, GPU_CHECK_MARK=self.mark, **more)

    def run(self, *options, **environment):
        begin = time.monotonic()
        run = subprocess.run(self.command(*options), env=self.environment(**environment), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT)
        expect(not self.left(), "processes are left behind", self.left(), run.stdout)
        return Done(run.returncode, run.stdout, self.report(), time.monotonic() - begin)

    def report(self):
        return json.loads((self.folder / "out" / "gpu-check.json").read_text(encoding="utf-8"))

    def left(self):
        return processes(self.mark)


def results(done):
    return {step["name"]: step["result"] for step in done.report["steps"]}


def everything_passes(machine):
    done = machine.run("--no-build")
    expect(done.code == 0, done.out)
    expect(set(results(done).values()) == {"pass"}, done.report)
    expect(done.report["gpu"] == "NVIDIA Stand-in" and done.report["arch"] == "90", done.report)
    expect(done.report["driver"] == "580.159.03", done.report)
    with tarfile.open(machine.folder / "out" / "gpu-check.tar.gz") as archive:
        expect({"gpu-check.json", "device.log", "steps.tsv"} <= set(archive.getnames()), archive.getnames())
    expect(done.report["result"] == "pass" and done.report["prunex"]["version"], done.report)
    expect(len(done.report["prunex"]["commit"]) == 40 or done.report["prunex"]["commit"] == "unknown", done.report)
    expect("nccl_version" in done.report and "nvcc" in done.report, done.report)
    expect("pass: PruneX" in done.out and "NVIDIA Stand-in, driver 580.159.03" in done.out, done.out)
    expect(done.report["schema"] == "prunex-gpu-check" and done.report["version"] == 1, done.report)


def a_step_that_hangs_is_killed(machine):
    machine.script("build/cuda_device_test", "echo first words\n" + HANGS)
    done = machine.run("--no-build", "--step-seconds", "3")
    expect(done.code == 1, done.out)
    wanted = {"device": "fail", "sanitizer": "pass", "pack": "pass", "nccl": "pass", "torch": "pass",
              "emulated": "pass", "machine": "pass"}
    expect(results(done) == wanted, done.report)
    note = next(step["note"] for step in done.report["steps"] if step["name"] == "device")
    expect(note == "killed after 3 s; its last line: first words", note)
    table = done.out[done.out.rindex("\nwhat "):]
    expect("device " in table and "killed after 3 s" in table, done.out)


def everything_ends_in_time(machine):
    for name in ("cuda_device_test", "cuda_pack_bench", "nccl_check"):
        machine.script("build/" + name, HANGS)
    done = machine.run("--no-build", "--seconds", "8")
    expect(done.code == 1 and done.seconds < 30, done.seconds, done.out)
    expect(results(done)["device"] == "fail" and results(done)["sanitizer"] == "skip", done.report)


def toolkit(machine, compiles):
    machine.script("cuda/bin/nvcc",
                   f'case "$*" in *--dryrun*) echo "#\\$ TOP={machine.folder}/cuda" ;;\n'
                   f"*--list-gpu-arch*) echo compute_90 ;;\n*) {compiles} ;; esac")
    for name in ("include/cub/version.cuh", "lib64/libcudart_static.a"):
        path = machine.folder / "cuda" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (machine.folder / "bin" / "nvcc").symlink_to(machine.folder / "cuda" / "bin" / "nvcc")


def a_compiler_that_hangs(machine):
    toolkit(machine, "sleep 300")
    machine.script("bin/hanging-cxx", HANGS)
    done = machine.run("--step-seconds", "3", CXX="hanging-cxx")
    expect(done.code == 1 and results(done)["compile"] == "fail", done.report, done.out)
    expect(all(results(done)[name] == "skip" for name in ("link", "device", "pack", "nccl", "sanitizer")), done.report)
    expect("the build failed" in done.out, done.out)


def what_the_build_defines(machine):
    """gpu_build.sh compiles the library's sources without Meson: what Meson defines for them it must define, too."""
    del machine
    build = pathlib.Path(os.environ["PRUNEX_UNDER_TEST"]).parents[1]
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    script = (ROOT / "scripts" / "gpu_build.sh").read_text(encoding="utf-8")
    seen = 0
    for command in commands:
        name = os.path.relpath(os.path.join(command["directory"], command["file"]), ROOT)
        if not name.startswith(("plugin/", "kernels/", "topology/")):
            continue
        seen += 1
        for define in re.findall(r"-D(PRUNEX_\w+)", command["command"]):
            expect(f"-D{define}" in script, f"{name} is compiled with {define}, gpu_build.sh knows nothing of it")
    expect(seen > 100, "which sources?", seen)


def a_file_that_does_not_compile(machine):
    """The plugin cannot be made then; the kernels can, and are tested."""
    makes = ('while [[ $1 != -o ]]; do shift; done; printf "#!/usr/bin/env bash\\necho all is well\\n" >"$2"; '
             'chmod +x "$2"')
    toolkit(machine, makes)
    machine.script("bin/ar", "true")
    machine.script("bin/broken-cxx", 'case "$*" in *"-c plugin/api/registry.cc"*) echo no such type >&2; exit 1 ;;\n'
                   f'*-shared*libprunex.so*) echo registry.cc.o is missing; exit 1 ;; esac\n{makes}')
    done = machine.run(CXX="broken-cxx")
    wanted = {"machine": "pass", "compile": "fail", "link": "pass", "link-tests": "pass", "plugin": "fail", "resources": "fail", "emulated": "pass",
              "device": "pass", "pack": "pass", "nccl": "skip", "torch": "skip", "sanitizer": "pass"}
    expect(done.code == 1 and results(done) == wanted, done.report, done.out)
    expect("no such type" in done.out, done.out)
    made = {path.name for path in (machine.folder / "build" / "o").glob("*.o")}
    for folder in ("kernels", "kernels/host", "kernels/cuda", "plugin/base", "plugin/nccl/module"):
        missing = {f"{folder}/{path.name}".replace("/", "_") + ".o" for path in (ROOT / folder).glob("*.cc")} - made
        expect(missing <= {"kernels_host_avx512.cc.o"}, missing)  # that is compiled twice, under other names


def sources_of_a_bare_machine(machine):
    """What needs headers that are not there is left out, and what stands in for it is not."""
    def names(folder, headers):
        listed = subprocess.run(["bash", "-c", ". scripts/gpu_build.sh; library_sources"], cwd=ROOT, check=True, text=True,
                                stdout=subprocess.PIPE, env=dict(os.environ, PRUNEX_SYSTEM_HEADERS=str(headers))).stdout
        return {pathlib.Path(line).name for line in listed.split() if folder in line}

    bare, full = machine.folder / "bare", machine.folder / "full"
    for header in ("hwloc.h", "infiniband/verbs.h"):
        (full / header).parent.mkdir(parents=True, exist_ok=True)
        (full / header).touch()
    expect(names("/verbs/", bare) == {"devices.cc", "verbs_none.cc"}, names("/verbs/", bare))
    expect(names("topology/", bare) - names("topology/", full) == {"discover_hwloc_none.cc"}, names("topology/", bare))
    expect(names("topology/", full) - names("topology/", bare) == {"discover_hwloc.cc", "hwloc_api.cc"}, names("topology/", full))
    there = {path.name for path in (ROOT / "plugin/transport/verbs").glob("*.cc")}
    expect(names("/verbs/", full) == there - {"verbs_none.cc"}, names("/verbs/", full))


def a_driver_that_hangs(machine):
    machine.script("bin/nvidia-smi", HANGS)
    done = machine.run("--no-build", "--step-seconds", "2")
    expect(done.code == 0 and done.report["gpu"] == "none", done.report)
    expect([results(done)[name] for name in ("device", "pack", "nccl", "torch", "sanitizer")] == ["skip"] * 5, done.report)


def failures_are_told(machine):
    machine.script("build/cuda_device_test", "echo it is broken\nexit 3")
    machine.script("build/cuda_pack_bench", "echo no device after all; exit 77")
    machine.script("build/nccl_check", 'echo \'[{"case": "net", "result": "fail", "seconds": 1.5, "fault": "wrong sum", '
                   '"counted": {"raw": 3}}]\' >"$3/nccl.json"; exit 1')
    done = machine.run("--no-build")
    expect(done.code == 1, done.out)
    expect([results(done)[name] for name in ("device", "pack", "nccl")] == ["fail"] * 3, done.report)
    expect(done.report["nccl"][0]["counted"]["raw"] == 3, done.report)
    expect("status 3: it is broken" in done.out and "wrong sum" in done.out, done.out)


def skipped_tests_are_no_pass(machine):
    machine.script("build/cuda_device_test", 'for a; do case $a in --gtest_output=json:*) '
                   'echo \'{"testsuites": [{"testsuite": [{"name": "x", "result": "SKIPPED"}]}]}\' '
                   '>"${a#*json:}" ;; esac; done')
    machine.script("build/nccl_check", "echo cannot run: no NCCL; exit 77")
    done = machine.run("--no-build")
    expect(done.code == 1 and results(done)["device"] == "fail" and results(done)["nccl"] == "skip", done.report)
    expect(done.report["device"] == {"tests": 1, "failed": [], "skipped": 1}, done.report)


def a_sandbox_without_what_the_sanitizer_needs(machine):
    machine.script("bin/compute-sanitizer", "echo '========= Error: Device not supported. See the list'; exit 9")
    done = machine.run("--no-build")
    expect(done.code == 0 and results(done)["sanitizer"] == "skip", done.report)
    machine.script("bin/compute-sanitizer", "echo '========= Invalid __global__ write'; exit 9")
    done = machine.run("--no-build")
    expect(done.code == 1 and results(done)["sanitizer"] == "fail", done.report)


def half_a_file(machine):
    machine.script("build/cuda_pack_bench", 'while (($# > 1)) && [[ $1 != --json ]]; do shift; done\n'
                   'echo \'{"rows": [\' >"$2"; kill -SEGV $$')
    done = machine.run("--no-build")
    expect(done.code == 1 and done.report["pack"] is None, done.report)
    expect(len(done.report["unreadable"]) == 1 and "pack.json" in done.report["unreadable"][0], done.report)


def ended_from_outside(machine):
    machine.script("build/cuda_pack_bench", f"touch {machine.folder}/there\n" + HANGS)
    with subprocess.Popen(machine.command("--no-build"), env=machine.environment(), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        end = time.monotonic() + 30
        while not (machine.folder / "there").exists():
            expect(time.monotonic() < end, "the step does not start")
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        out, _ = run.communicate(timeout=30)
    expect(run.returncode == 143, run.returncode, out)
    expect(not machine.left(), machine.left())
    steps = {step["name"]: step["result"] for step in machine.report()["steps"]}
    expect(steps == {"machine": "pass", "emulated": "pass", "device": "pass", "pack": "fail"}, steps)
    expect("ended from outside" in out[out.rindex("\nwhat "):], out)


def nothing_was_built(machine):
    for name in ("cuda_host_test", "cuda_device_test", "cuda_pack_bench", "nccl_check", "libprunex.so"):
        (machine.folder / "build" / name).unlink()
    for there in (True, False):
        if not there:
            machine.script("bin/nvidia-smi", "exit 9")
        done = machine.run("--no-build")
        expect(done.code == 1 and done.report["result"] == "fail", done.report, done.out)
        expect(results(done)["built"] == "fail" and "run without --no-build" in done.out, done.out)
        expect(len(done.report["steps"]) == 8, "every part is told of", done.report)


def no_compiler_for_gpus(machine):
    """All parts are in the report, with the reason."""
    done = machine.run(CXX="no-such-compiler")
    expect(done.code == 1 and done.report["result"] == "fail", done.out)
    expect(results(done)["tools"] == "fail" and "no no-such-compiler here" in done.out, done.out)
    expect(all(results(done)[name] == "skip" for name in ("compile", "device", "pack", "nccl", "torch")), done.report)


def an_old_toolkit(machine):
    toolkit(machine, "echo 'Cuda compilation tools, release 12.4, V12.4.131'")
    done = machine.run()
    expect(done.code == 1 and "nvcc 12.5 or newer is needed" in done.out and "is 12.4" in done.out, done.out)


def one_process_at_a_time(machine):
    machine.script("bin/nvidia-smi", 'case "$*" in *compute_mode*) echo "Exclusive_Process, Disabled" ;;\n'
                   '*) echo "NVIDIA Stand-in, 9.0, 580.159.03" ;; esac')
    done = machine.run("--no-build")
    expect(done.code == 0 and results(done)["device"] == "pass", done.report)
    expect(results(done)["nccl"] == "skip" and results(done)["torch"] == "skip", done.report)
    expect("compute mode is Exclusive_Process" in done.out, done.out)


def what_others_set_is_left_out(machine):
    machine.script("build/nccl_check", 'echo "socket ${NCCL_NET-none} ${NCCL_TOPO_FILE-none}"')
    done = machine.run("--no-build", NCCL_NET="IB", NCCL_TOPO_FILE="/none")
    note = next(step["note"] for step in done.report["steps"] if step["name"] == "nccl")
    expect(note == "socket none none", note)


def goals_are_told(machine):
    machine.script("build/cuda_pack_bench", 'while [[ $1 != --json ]]; do shift; done\n'
                   'echo \'{"rows": [{"subject": "x", "dtype": "f32", "step": "pack", "of_copy": 0.5, "goal": "copy >= 0.85", '
                   '"reached": false}, {"subject": "y", "step": "compile", "us": 7, "of_copy": null, "goal": "<= 200 us", '
                   '"reached": true}]}\' >"$2"; echo 2 goals, 1 reached, 1 missed')
    done = machine.run("--no-build")
    expect(done.code == 0, "a missed goal is no failure", done.out)
    expect("goal copy >= 0.85: NOT REACHED" in done.out and "goal <= 200 us: reached" in done.out, done.out)
    note = next(step["note"] for step in done.report["steps"] if step["name"] == "pack")
    expect(note == "2 goals, 1 reached, 1 missed", note)


def usage(machine):
    for options in (["--seconds", "x"], ["--seconds"], ["--step-seconds", "0"], ["--nothing"], ["--out"], ["--build"],
                    ["--out", "--quick"], ["--bundle"]):
        run = subprocess.run([str(SCRIPT), *options], capture_output=True, text=True, timeout=30, check=False)
        expect(run.returncode == 2 and "try --help" in run.stderr, options, run.stderr)
    shown = subprocess.run([str(SCRIPT), "--help"], capture_output=True, text=True, timeout=30, check=False)
    expect(shown.returncode == 0 and "--bundle" in shown.stdout, shown.stdout)
    expect(not (machine.folder / "out").exists())


def main():
    with tempfile.TemporaryDirectory() as folder:
        globals()[sys.argv[1]](Machine(folder))


if __name__ == "__main__":
    main()

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything of PruneX that needs an NVIDIA GPU, on a machine that has one and little else: builds the
# CUDA library for that GPU, runs its tests (also under compute-sanitizer), the pack benchmark, and NCCL
# itself over the plugin with two processes on the one GPU; DDP, too, where there is a PyTorch for it.
#
#   scripts/gpu-check.sh [--out FOLDER] [--quick] [--seconds N] [--step-seconds N] [--no-build] [--build FOLDER]
#   scripts/gpu-check.sh --prepare | --bundle FILE.tar.gz
#
#   --out FOLDER     logs and results; default build-gpu/results. FOLDER/gpu-check.json sums up, and
#                    FOLDER/gpu-check.tar.gz holds every file
#   --quick          smaller benchmark, no compute-sanitizer
#   --seconds N      everything ends within N seconds, default 450: what runs then is killed, what has
#                    not run is skipped
#   --step-seconds N no step longer than that; by itself each has a limit of its own
#   --no-build       takes what an earlier run built
#   --build FOLDER   where to build, default build-gpu
#   --prepare        on another machine, before the tree travels: puts what the GPU's machine may lack
#                    (tl::expected, xxhash, GoogleTest's sources) into .gpu-check/
#   --bundle FILE    the same, and packs the tree with it into one archive
#
# NCCL is looked for in $NCCL_HOME/lib, among Python's packages (pip install nvidia-nccl-cu12 or -cu13) and
# where the dynamic linker looks.
# Needs g++ ($CXX), python3 and nvcc (PATH, /usr/local/cuda, Python's packages or what scripts/build.sh
# --all-archs fetched); neither Meson nor a network. Without a GPU it builds, skips the rest and says so.
# Every step has a time limit. Exit status 1 if anything failed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program="gpu-check"
cd "$repo_root"
# shellcheck source=scripts/gpu_build.sh
. scripts/gpu_build.sh

build=build-gpu out='' quick=false limit=450 step_limit=3600 no_build=false
carried=.gpu-check CXX=${CXX:-g++}
while (($#)); do
  case $1 in
    --out | --build)
      [[ -n ${2:-} && ${2:-} != --* ]] || usage_error "$1 needs a folder"
      if [[ $1 == --out ]]; then out=$2; else build=$2; fi
      shift 2
      ;;
    --seconds | --step-seconds)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || usage_error "$1 '${2:-}': a whole number of seconds"
      if [[ $1 == --seconds ]]; then limit=$2; else step_limit=$2; fi
      shift 2
      ;;
    --quick) quick=true && shift ;;
    --no-build) no_build=true && shift ;;
    --prepare)
      prepare
      exit 0
      ;;
    --bundle)
      [[ -n ${2:-} ]] || usage_error "--bundle needs a file"
      bundle "$2"
      exit 0
      ;;
    -h | --help) show_help && exit 0 ;;
    *) usage_error "unknown option '$1'" ;;
  esac
done
out=${out:-$build/results}
started=$(now) gpu=none arch=90 driver='' running='' mode='' nccl=''
export repo_root program build out quick carried CXX arch nccl

# ---- steps --------------------------------------------------------------------------------------------

# Whole seconds that are left of all.
left() { awk -v a="$(since "$started")" -v l="$limit" 'BEGIN { printf "%d", (l > a ? l - a : 0) }'; }

# Ends the step under way with all its processes.
end_running() {
  [[ -n $running ]] || return 0
  kill "-$1" -- "-$running" 2>/dev/null || kill "-$1" "$running" 2>/dev/null || true
}

# limited SECONDS COMMAND...: in a session of its own, ended when its time is over, by force if need be.
# 124: it was. A process that even SIGKILL does not end (one in the driver) is left behind.
limited() {
  local seconds=$1 code=0 end
  shift
  if declare -F "$1" >/dev/null; then set -- bash -euo pipefail -c '"$@"' _ "$@"; fi
  setsid "$@" </dev/null 3>&- 4>&- &
  running=$!
  end=$(awk -v a="$(now)" -v s="$seconds" 'BEGIN { printf "%.3f", a + s }')
  while kill -0 "$running" 2>/dev/null; do
    if awk -v a="$(now)" -v e="$end" 'BEGIN { exit a < e }'; then
      end_running TERM
      sleep 1
      end_running KILL
      sleep 0.2
      disown "$running" 2>/dev/null || true
      running=''
      return 124
    fi
    sleep 0.1
  done
  wait "$running" || code=$?
  running=''
  return $code
}

# record RESULT NOTE: of the current step.
record() {
  printf '%s\t%s\t%s\t%s\n' "$current" "$1" "$(since "$begin")" "${2:0:200}" >>"$out/steps.tsv"
  printf '%-12s %-5s %7s s  %s\n' "$current" "$1" "$(since "$begin")" "${2:0:100}"
  current=''
}
# step NAME SECONDS COMMAND...: output to FOLDER/NAME.log; 77 is a skip, and the last line says why.
step() {
  local name=$1 seconds=$2 code=0 note='' result rest
  shift 2
  current=$name begin=$(now)
  rest=$(left)
  ((seconds <= rest)) || seconds=$rest
  ((seconds <= step_limit)) || seconds=$step_limit
  : >"$out/$name.log"
  if ((rest < 2)); then
    code=77 note="not started: $limit s are over"
  else
    limited "$seconds" "$@" >"$out/$name.log" 2>&1 || code=$?
    note=$(grep -avE '^\s*$' "$out/$name.log" | tail -n 1 | tr -d '\t\r' || true)
  fi
  case $code in
    0) result=pass ;;
    77) result=skip ;;
    124) result=FAIL note="killed after $seconds s; its last line: $note" ;;
    *) result=FAIL note="status $code: $note" ;;
  esac
  if [[ $result == FAIL ]]; then
    failed=1
    tail -n 30 "$out/$name.log" >&2
  fi
  record "$result" "$note"
  [[ $result == pass ]]
}

device_tests() {
  [[ -x $build/cuda_device_test ]] || { echo "GoogleTest is neither in $carried/ nor installed" && return 77; }
  "$build/cuda_device_test" --gtest_brief=1 "--gtest_output=json:$out/device.json" || return
  # There is a GPU, says nvidia-smi: tests that skip for want of one have not passed.
  if grep -q '"result": "SKIPPED"' "$out/device.json" 2>/dev/null; then
    grep -A 1 Skipped "$out/device.log" | tail -n 1
    echo "tests were skipped: the CUDA runtime finds no GPU that nvidia-smi finds"
    return 1
  fi
}
emulated_tests() {
  [[ -x $build/cuda_host_test ]] || { echo "GoogleTest is neither in $carried/ nor installed" && return 77; }
  "$build/cuda_host_test" --gtest_brief=1
}
sanitizer_tests() {
  local tool code=0
  [[ $quick == false ]] || { echo "left out by --quick" && return 77; }
  [[ -x $build/cuda_device_test ]] || { echo "GoogleTest is neither in $carried/ nor installed" && return 77; }
  tool=$(command -v compute-sanitizer || first_with bin/compute-sanitizer "${cuda:-/usr/local/cuda}") ||
    { echo "compute-sanitizer is not installed" && return 77; }
  [[ -x $tool && ! -d $tool ]] || tool=$tool/bin/compute-sanitizer
  "$tool" --tool memcheck --error-exitcode 9 "$build/cuda_device_test" --gtest_brief=1 \
    --gtest_filter='CudaDevice.slices:CudaDevice.reduction*:CudaDeviceIndex.zero_blocks:CudaDeviceIndex.top*' || code=$?
  # Some sandboxes hide from it what it needs; then nothing that it says is about the kernels.
  if ((code != 0)) && grep -q 'Device not supported' "$out/sanitizer.log"; then
    echo "compute-sanitizer does not support the GPU of this machine" && return 77
  fi
  return $code
}
pack_bench() {
  local options=(--json "$out/pack.json")
  [[ $quick == false ]] || options+=(--quick)
  local code=0
  "$build/cuda_pack_bench" "${options[@]}" || code=$?
  ((code != 77)) || code=1
  return $code
}
have_plugin() { [[ -e $build/libprunex.so && -x $build/nccl_check ]] || { echo "libprunex.so was not built" && return 77; }; }
# nccl_steps SECONDS: of all cases together.
nccl_steps() {
  local name
  have_plugin || return
  one_process_only && return 77
  # What a machine sets for its jobs is about other networks than this one.
  for name in $(compgen -e | grep -E '^(NCCL|PRUNEX)_' || true); do unset "$name"; done
  LD_LIBRARY_PATH=$repo_root/$build${nccl:+:$nccl}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    "$build/nccl_check" "$repo_root/$build/libprunex-cuda.so" "$repo_root/$build/libprunex.so" "$out" 30 "$1"
}
# DDP with CUDA gradients, where there is a PyTorch for it.
torch_ddp() {
  have_plugin || return
  one_process_only && return 77
  PYTHONPATH=$repo_root/python PYTHONDONTWRITEBYTECODE=1 PRUNEX_LIBRARY=$repo_root/$build/libprunex.so \
    python3 python/tests/ddp_device.py
}
# In an exclusive compute mode the second of two processes gets no GPU, and in none does anyone.
one_process_only() {
  [[ $mode == *Exclusive* || $mode == *Prohibited* ]] || return 1
  echo "the GPU's compute mode is $mode: two processes cannot share it (nvidia-smi -c DEFAULT changes that)"
}
no_gpu() { echo "no NVIDIA GPU here" && return 77; }
not_built() { echo "$1" && return 77; }
built() {
  local name missing=()
  for name in cuda_pack_bench nccl_check libprunex.so; do [[ -e $build/$name ]] || missing+=("$name"); done
  ((${#missing[@]} == 0)) || { echo "not in $build/: ${missing[*]}; run without --no-build" && return 1; }
}
# What of the machine may explain a result.
machine() {
  echo "user $(id -u), locked memory $(ulimit -l) KiB, open files $(ulimit -n), $(cores) cores"
  df -h /dev/shm 2>&1 | tail -n 1
  # An MPS daemon changes how processes share the GPU.
  env | grep -E '^(CUDA|NCCL|PRUNEX|NVIDIA|LD_LIBRARY_PATH)' || true
  [[ $gpu == none ]] || limited_here 20 nvidia-smi
  for tool in compute-sanitizer nvcc python3 "${CXX%% *}"; do command -v "$tool" || echo "no $tool on the PATH"; done
  # Of a wheel or a distribution, whichever nccl_steps will load.
  find_nccl
}
limited_here() { timeout --foreground -k 2 "$@" 2>&1 || true; }
# Its folder and its version, for the report and for nccl_steps.
find_nccl() {
  nccl_folder >"$out/nccl-folder.txt"
  limited_here 20 python3 - "$(cat "$out/nccl-folder.txt")" >"$out/nccl-version.txt" <<'END'
import ctypes, os, sys
folder = sys.argv[1]
try:
    library = ctypes.CDLL(os.path.join(folder, "libnccl.so.2"))
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    v = number.value
    major = 10000 if v >= 10000 else 1000
    print(f"{v // major}.{v % major // 100}.{v % 100}")
except (OSError, AttributeError) as error:
    print(f"none ({error})")
END
  echo "NCCL: $(tail -n 1 "$out/nccl-version.txt") in $(cat "$out/nccl-folder.txt")"
}
ask_mode() { nvidia-smi --query-gpu=compute_mode,mig.mode.current --format=csv,noheader; }
ask_gpu() { nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader; }

# Every file of the results in one.
gather() {
  cd "$out"
  shopt -s nullglob
  tar -czf gpu-check.tar.gz -- *.json *.log *.prom *.tsv *.txt
}

version_here() { sed -n "s/^  version: '\(.*\)',/\1/p" meson.build | head -n 1; }
commit_here() {
  git rev-parse HEAD 2>/dev/null || cat "$carried/commit" 2>/dev/null || echo unknown
}
nvcc_here() {
  [[ -z ${cuda:-} ]] || nvcc_release
}

# The table and the JSON, whatever has happened.
report() {
  local code=$?
  trap - EXIT INT TERM
  exec >&3 2>&4 # a step's output may be redirected where a signal comes
  end_running KILL
  running=''
  [[ -z $current ]] || record FAIL "ended from outside"
  PRUNEX_VERSION=$(version_here) PRUNEX_COMMIT=$(commit_here) PRUNEX_NVCC=$(nvcc_here) PRUNEX_MODE=$mode \
    PRUNEX_NCCL=$(tail -n 1 "$out/nccl-version.txt" 2>/dev/null || true) PRUNEX_STATUS=$code \
    PRUNEX_GPU=$gpu PRUNEX_ARCH=$arch PRUNEX_DRIVER=${driver# } PRUNEX_SECONDS=$(since "$started") \
    limited 20 python3 scripts/gpu_report.py "$out" || code=1
  limited 20 gather || say "$out/gpu-check.tar.gz could not be written"
  exit "$code"
}

failed=0 current='' begin=0
exec 3>&1 4>&2
mkdir -p "$build" "$out"
build=$(realpath --relative-to=. "$build") out=$(realpath "$out")
rm -f "$build/nvcc-release" "$out"/{steps.tsv,pack.json,nccl.json,device.json,gpu-check.json,gpu-check.tar.gz} "$out"/*.{log,prom,txt}
export -f one_process_only not_built built machine limited_here find_nccl ask_mode
export -f have say die first_with python_paths nccl_folder library_sources test_sources gencode commands object_name \
  cores compile_all link_plugin link_cuda link_tests have_plugin device_tests emulated_tests sanitizer_tests pack_bench nccl_steps torch_ddp \
  no_gpu ask_gpu gather
trap report EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A driver that hangs answers nothing, not even this.
if have nvidia-smi && limited $((step_limit < 30 ? step_limit : 30)) ask_gpu >"$out/gpu.log" 2>&1 && IFS=, read -r gpu arch driver < <(head -n 1 "$out/gpu.log"); then
  arch=${arch//[!0-9]/}
fi
[[ $arch =~ ^[0-9]+$ ]] || gpu=none arch=90
if [[ $gpu != none ]] && limited 20 ask_mode >"$out/mode.log" 2>&1; then mode=$(head -n 1 "$out/mode.log"); fi
export mode gpu
step machine 60 machine || true
nccl=$(tail -n 1 "$out/nccl-folder.txt" 2>/dev/null || true)

# What cannot be built leaves the rest to be told of, not to be forgotten.
give_up_on() {
  local why=$1 name
  for name in "${@:2}"; do step "$name" 5 not_built "$why" || true; done
}
after=(emulated device pack nccl torch sanitizer)
build_all() {
  local missing
  # In a shell of its own first: it ends where something is missing.
  if ! missing=$( (find_tools) 2>&1); then
    current=tools begin=$(now) failed=1
    record FAIL "$missing"
    give_up_on "not built: $missing" compile link link-tests plugin resources "${after[@]}"
    return 1
  fi
  find_tools
  echo "GPU: $gpu, sm_$arch; nvcc: $cuda; $(cores) cores"
  # Where one file does not compile, what does without it is still worth a look.
  if ! step compile $(($(cores) < 8 ? 1500 : 260)) compile_all &&
    [[ $(compgen -G "$build/o/*.cu.o" | wc -l) != $(compgen -G "kernels/cuda/*.cu" | wc -l) ]]; then
    say "the build failed: see $out/compile.log"
    give_up_on "the build failed" link link-tests plugin resources "${after[@]}"
    return 1
  fi
  if ! step link 60 link_cuda; then
    say "the build failed: see $out/link.log"
    give_up_on "libprunex-cuda.so was not linked" link-tests plugin resources "${after[@]}"
    return 1
  fi
  step link-tests 60 link_tests || true
  step plugin 60 link_plugin || true
  step resources 20 python3 scripts/check_cuda_resources.py --list "$build"/o/*.resources || true
}
if [[ $no_build == false ]]; then
  build_all || exit 1
elif ! built >/dev/null; then
  step built 5 built || true
fi
export TEST_CUDA_LIBRARY=$repo_root/$build/libprunex-cuda.so
step emulated 60 emulated_tests || true
if [[ $gpu == none ]]; then
  for name in device pack nccl torch sanitizer; do step $name 5 no_gpu || true; done
else
  step device 100 device_tests || true
  step pack 90 pack_bench || true
  rest=$(left)
  ((rest < 180)) || rest=180
  step nccl "$rest" nccl_steps $((rest > 12 ? rest - 10 : 2)) || true
  step torch 90 torch_ddp || true
  step sanitizer 90 sanitizer_tests || true
fi
exit $failed

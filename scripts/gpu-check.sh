#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything of PruneX that needs an NVIDIA GPU, on a machine that has one and little else: builds the
# CUDA library for that GPU, runs its tests (also under compute-sanitizer), the pack benchmark, and NCCL
# itself over the plugin with two processes on the one GPU.
#
#   scripts/gpu-check.sh [--out FOLDER] [--quick] [--seconds N]
#   scripts/gpu-check.sh --prepare
#
#   --out FOLDER   logs and results; default build-gpu/results. FOLDER/gpu-check.json has all of it
#   --quick        smaller benchmark, no compute-sanitizer
#   --seconds N    no step starts later than that, default 420
#   --prepare      on another machine, before the tree travels: puts the headers and libraries that the
#                  GPU's machine may lack (GoogleTest, tl::expected, xxhash) into .gpu-check/
#
# NCCL is looked for among Python's packages (pip install nvidia-nccl-cu12 or -cu13), in $NCCL_HOME/lib and
# where the dynamic linker looks.
# Needs g++ and nvcc (PATH, /usr/local/cuda or what scripts/build.sh --all-archs fetched); neither Meson
# nor a network. Without a GPU it builds, skips the rest and says so. Exit status 1 if anything failed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program="gpu-check"
cd "$repo_root"

build=build-gpu out='' quick=false limit=420 prepare=false
readonly carried=.gpu-check
while (($#)); do
  case $1 in
    --out) out=${2:?--out needs a folder} && shift 2 ;;
    --seconds) limit=${2:?--seconds needs a number} && shift 2 ;;
    --quick) quick=true && shift ;;
    --prepare) prepare=true && shift ;;
    -h | --help) show_help && exit 0 ;;
    *) usage_error "unknown option '$1'" ;;
  esac
done
out=${out:-$build/results}

if [[ $prepare == true ]]; then
  mkdir -p $carried/include $carried/lib
  for header in tl xxhash.h xxh3.h gtest; do
    [[ ! -e /usr/include/$header ]] || cp -r "/usr/include/$header" $carried/include/
  done
  cp "$(g++ -print-file-name=libgtest.a)" "$(g++ -print-file-name=libgtest_main.a)" $carried/lib/
  du -sh $carried
  exit 0
fi

# ---- what there is --------------------------------------------------------------------------------------

find_cuda() {
  local root
  for root in /usr/local/cuda "$repo_root/.venv-tools/cuda/nvidia/cu13" \
    "$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /none/bin/nvcc)")")")"; do
    [[ ! -x $root/bin/nvcc ]] || { echo "$root" && return 0; }
  done
  return 1
}
# first_with FILE FOLDER...: the first folder that holds the file.
first_with() {
  local file=$1 folder
  for folder in "${@:2}"; do
    [[ ! -e $folder/$file ]] || { echo "$folder" && return 0; }
  done
  return 1
}

started=$(now)
spent() { awk -v a="$(since "$started")" 'BEGIN { printf "%d", a }'; }
cuda=$(find_cuda) || die "no nvcc in /usr/local/cuda, in .venv-tools/ or on the PATH"
fetched=$repo_root/.venv-tools/cuda/nvidia/cu13
cccl=$(first_with cub/version.cuh "$cuda/include/cccl" "$cuda/include" "$fetched/include/cccl") ||
  die "no CCCL headers (cub/version.cuh) under $cuda/include: scripts/build.sh --all-archs fetches them"
runtime=$(first_with libcudart_static.a "$cuda/lib64" "$cuda/lib" "$cuda/targets/x86_64-linux/lib" "$fetched/lib") ||
  die "no libcudart_static.a under $cuda"
for header in tl/expected.hpp xxhash.h gtest/gtest.h; do
  [[ -e /usr/include/$header || -e $carried/include/$header ]] ||
    die "$header is neither installed nor in $carried/: run scripts/gpu-check.sh --prepare where it is"
done

gpu=none arch=90
if have nvidia-smi && gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) && [[ -n $gpu ]]; then
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')
else
  gpu=none
fi
mkdir -p "$build/o" "$out"
rm -f "$out/pack.json" "$out/nccl.json"

# ---- building -----------------------------------------------------------------------------------------

includes="-I. -Iinclude -idirafter $carried/include -isystem $cuda/include"
version=$(sed -n "s/^  version: '\(.*\)',/\1/p" meson.build | head -n 1)

# What libprunex.so is made of, as the build does it: hwloc and verbs where their headers are.
library_sources() {
  local without='/discover_hwloc_none\.cc$'
  [[ -e /usr/include/hwloc.h ]] || without='/(hwloc_api|discover_hwloc)\.cc$'
  if [[ -e /usr/include/infiniband/verbs.h ]]; then
    without+='|/verbs_none\.cc$'
  else
    # All but devices.cc and verbs_none.cc.
    without+='|/verbs/(device|[^/_]*[^s/_])\.cc$|/verbs/(verbs|rails|queue_pair)\.cc$'
  fi
  find topology plugin -name '*.cc' -not -path 'plugin/base/*' -not -path 'plugin/nccl/module/*' | grep -vE "$without" | sort
}

# One line for each object: its name, a tab, the command.
commands() {
  local file flags
  for file in kernels/cuda/*.cu; do
    printf '%s\t%s\n' "$build/o/$(basename "$file").o" \
      "python3 scripts/nvcc_object.py $build/o/$(basename "$file").resources $cuda/bin/nvcc -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -Xcompiler -fPIC,-fvisibility=hidden -gencode=arch=compute_$arch,code=sm_$arch -isystem $cccl -I. -DPRUNEX_VERSION='\"$version\"' -DPRUNEX_CUDA_ARCHS='\"$arch\"' -c $file -o"
  done
  for file in plugin/base/*.cc kernels/*.cc kernels/host/{scalar,select}.cc kernels/cuda/*.cc tests/kernels/pack_{data,support}.cc \
    tests/cuda/*.cc bench/cuda_pack_bench.cc bench/nccl_check.cc kernels/host/avx2.cc \
    plugin/nccl/module/*.cc $(library_sources); do
    flags=
    [[ $file != *avx2.cc ]] || flags='-mavx2 -mbmi -mbmi2 -mf16c -mpopcnt -Wno-maybe-uninitialized'
    printf '%s\t%s\n' "$build/o/${file//\//_}.o" \
      "g++ -std=c++20 -O2 -fPIC -ffp-contract=off -fvisibility=hidden -fvisibility-inlines-hidden -D_GNU_SOURCE -DPRUNEX_VERSION='\"$version\"' $flags $includes -c $file -o"
  done
  flags='-mavx2 -mbmi -mbmi2 -mf16c -mpopcnt -mavx512f -mavx512bw -mavx512vl -mavx512dq -Wno-maybe-uninitialized'
  printf '%s\t%s\n' "$build/o/kernels_avx512.o" "g++ -std=c++20 -O2 -fPIC $flags -D_GNU_SOURCE $includes -c kernels/host/avx512.cc -o"
  printf '%s\t%s\n' "$build/o/kernels_vbmi2.o" \
    "g++ -std=c++20 -O2 -fPIC $flags -mavx512vbmi -mavx512vbmi2 -D_GNU_SOURCE $includes -c kernels/host/avx512.cc -o"
}

compile_all() {
  local object command
  while IFS=$'\t' read -r object command; do
    printf '%s\0' "$command $object"
  done < <(commands) | xargs -0 -P "$(cores)" -n 1 bash -c
}

# libprunex.so, the NCCL plugin beside it, and the program that drives NCCL over them.
link_plugin() {
  # shellcheck disable=SC2054
  local guest=(-static-libstdc++ -static-libgcc -Wl,-z,nodelete -Wl,-z,now -Wl,-z,defs -lpthread -ldl)
  local library=() file
  for file in $(library_sources); do library+=("$build/o/${file//\//_}.o"); done
  g++ -shared -o $build/libprunex.so -Wl,-soname,libprunex.so -Wl,--version-script=plugin/libprunex.map \
    "$build"/o/plugin_base_*.o "$build"/o/kernels_*.o "${library[@]}" "${guest[@]}" &&
    g++ -shared -o $build/libnccl-net-prunex.so -Wl,-soname,libnccl-net-prunex.so \
      -Wl,--version-script=plugin/nccl/module/libnccl-net-prunex.map -Wl,--enable-new-dtags "-Wl,-rpath,\$ORIGIN" \
      "$build"/o/plugin_nccl_module_*.o -L$build -lprunex "${guest[@]}" &&
    g++ -o $build/nccl_check $build/o/bench_nccl_check.cc.o $build/o/plugin_device_nccl_library.cc.o \
      "$build"/o/plugin_base_*.o -lpthread -ldl
}

link_all() {
  local core=("$build"/o/plugin_base_*.o "$build"/o/kernels_*.o) support=("$build"/o/tests_kernels_*.o)
  local cudart=("$runtime/libcudart_static.a" -ldl -lrt -lpthread) gtest=(-L"$carried/lib" -lgtest -lgtest_main -lpthread)
  g++ -shared -o $build/libprunex-cuda.so $build/o/*.cu.o "${cudart[@]}" -static-libstdc++ -static-libgcc \
    -Wl,--exclude-libs,ALL -Wl,--version-script=kernels/cuda/libprunex-cuda.map -Wl,-z,defs &&
    g++ -o $build/cuda_host_test $build/o/tests_cuda_{index,move,reduce}_test.cc.o "${support[@]}" "${core[@]}" "${gtest[@]}" &&
    g++ -o $build/cuda_device_test $build/o/tests_cuda_device*.o "${support[@]}" "${core[@]}" "${gtest[@]}" "${cudart[@]}" &&
    link_plugin && g++ -o $build/cuda_pack_bench $build/o/bench_cuda_pack_bench.cc.o "${core[@]}" "${cudart[@]}"
}

# ---- steps --------------------------------------------------------------------------------------------

names=() results=() times=() notes=()
# step NAME LIMIT COMMAND...: output to FOLDER/NAME.log; 77 is a skip, and the last line says why.
step() {
  local name=$1 seconds=$2 begin code=0 note=
  shift 2
  begin=$(now)
  if (($(spent) >= limit)); then
    code=77 note="not started: $limit s are over"
  else
    if declare -F "$1" >/dev/null; then "$@" >"$out/$name.log" 2>&1 || code=$?; else timeout "$seconds" "$@" >"$out/$name.log" 2>&1 || code=$?; fi
    note=$(grep -vE '^\s*$' "$out/$name.log" | tail -n 1 || true)
  fi
  names+=("$name") times+=("$(since "$begin")")
  case $code in
    0) results+=(pass) ;;
    77) results+=(skip) ;;
    *) results+=(FAIL) && tail -n 30 "$out/$name.log" >&2 ;;
  esac
  notes+=("${note:0:100}")
  printf '%-12s %-5s %7s s  %s\n' "$name" "${results[-1]}" "${times[-1]}" "${notes[-1]}"
  [[ ${results[-1]} != FAIL ]]
}
device_tests() { timeout 240 $build/cuda_device_test --gtest_brief=1 "--gtest_output=json:$out/device.json"; }
sanitizer_tests() {
  local tool
  tool=$(command -v compute-sanitizer || first_with compute-sanitizer "$cuda/bin") ||
    { echo "compute-sanitizer is not installed" && return 77; }
  [[ -x $tool ]] || tool=$tool/compute-sanitizer
  timeout 120 "$tool" --tool memcheck --error-exitcode 9 $build/cuda_device_test --gtest_brief=1 \
    --gtest_filter='CudaDevice.slices:CudaDevice.reduction*:CudaDeviceIndex.zero_blocks:CudaDeviceIndex.top*'
}
# The folder of libnccl.so.2; nothing: as the dynamic linker finds it.
nccl_folder() {
  local folder
  for folder in "${NCCL_HOME:-/none}/lib" \
    $(python3 -c 'import sys; print(*(p + "/nvidia/nccl/lib" for p in sys.path if p))' 2>/dev/null); do
    [[ ! -e $folder/libnccl.so.2 ]] || { echo "$folder" && return 0; }
  done
}
nccl_steps() {
  local folder
  folder=$(nccl_folder)
  LD_LIBRARY_PATH=$repo_root/$build${folder:+:$folder}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout 130 \
    $build/nccl_check "$repo_root/$build/libprunex-cuda.so" "$repo_root/$build/libprunex.so" "$out" 40
}
no_gpu() { echo "no NVIDIA GPU here" && return 77; }
write_json() {
  local i sep=''
  {
    printf '{"gpu": "%s", "arch": "%s", "seconds": %s, "steps": [' "$gpu" "$arch" "$(since "$started")"
    for i in "${!names[@]}"; do
      printf '%s\n  {"name": "%s", "result": "%s", "seconds": %s}' "$sep" "${names[i]}" "${results[i]}" "${times[i]}"
      sep=,
    done
    printf '],\n"pack": %s,\n' "$(cat "$out/pack.json" 2>/dev/null || echo null)"
    printf '"nccl": %s}\n' "$(cat "$out/nccl.json" 2>/dev/null || echo null)"
  } >"$out/gpu-check.json"
}

failed=0
echo "GPU: $gpu, sm_$arch; nvcc: $cuda"
step compile 300 compile_all && step link 60 link_all || {
  write_json
  die "the build failed: $out/compile.log, $out/link.log"
}
export TEST_CUDA_LIBRARY=$repo_root/$build/libprunex-cuda.so
step resources 20 python3 scripts/check_cuda_resources.py --list $build/o/*.resources || failed=1
step emulated 120 $build/cuda_host_test --gtest_brief=1 || failed=1
if [[ $gpu == none ]]; then
  for name in device pack nccl sanitizer; do step $name 5 no_gpu; done
else
  step device 240 device_tests || failed=1
  bench=("$build/cuda_pack_bench" --json "$out/pack.json")
  [[ $quick == false ]] || bench+=(--quick)
  step pack 150 "${bench[@]}" || failed=1
  step nccl 130 nccl_steps || failed=1
  [[ $quick == true ]] || step sanitizer 120 sanitizer_tests || failed=1
  for name in pack nccl; do [[ ! -s $out/$name.log ]] || cat "$out/$name.log"; done
fi
write_json
echo "$out/gpu-check.json"
exit $failed

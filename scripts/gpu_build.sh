# SPDX-License-Identifier: Apache-2.0
# What gpu-check.sh builds with, and how: g++ and nvcc alone, no Meson. Sourced, never run; the functions
# run in shells of their own, so that each can be ended, and what they share is exported.
# shellcheck shell=bash disable=SC2154

# first_with FILE FOLDER...: the first folder that holds the file.
first_with() {
  local file=$1 folder
  for folder in "${@:2}"; do
    [[ ! -e $folder/$file ]] || { echo "$folder" && return 0; }
  done
  return 1
}

# Folders of Python's packages.
python_paths() { timeout --foreground 20 python3 -c 'import sys; print(*(p for p in sys.path if p), sep="\n")' 2>/dev/null || true; }

find_cuda() {
  local on_path candidates=(/usr/local/cuda "$repo_root/.venv-tools/cuda/nvidia/cu13")
  if on_path=$(command -v nvcc); then
    # A wrapper script says where it is by where nvcc has its libraries.
    on_path=$(timeout --foreground 20 nvcc --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p' | head -n 1)
    [[ -z $on_path ]] || candidates=("$(readlink -f "$on_path")" "${candidates[@]}")
  fi
  mapfile -t -O ${#candidates[@]} candidates < <(python_paths | sed 's|$|/nvidia/cu13|')
  candidates+=(/usr/local/cuda-* /usr)
  first_with bin/nvcc "${candidates[@]}"
}

# The folder of libnccl.so.2; nothing: as the dynamic linker finds it.
nccl_folder() {
  local candidates=("${NCCL_HOME:-/none}/lib")
  mapfile -t -O 1 candidates < <(python_paths | sed 's|$|/nvidia/nccl/lib|')
  first_with libnccl.so.2 "${candidates[@]}" && return
  # Of a Python that is not the one on the PATH.
  timeout --foreground 20 find /usr /opt /home /root -path /proc -prune -o -name libnccl.so.2 -printf '%h\n' -quit 2>/dev/null || true
}

# Asked once: one that hangs costs its limit.
nvcc_release() {
  local file=$build/nvcc-release
  # With its children, which would hold a pipe open.
  [[ -e $file ]] || timeout 10 "$cuda/bin/nvcc" --version >"$file" 2>/dev/null </dev/null || true
  sed -n 's/.*release \([0-9.]*\),.*/\1/p' "$file" | head -n 1
}

# Sets and exports what the functions below use: cuda, cccl, runtime, gtest, includes, version.
find_tools() {
  local fetched=$repo_root/.venv-tools/cuda/nvidia/cu13 header release
  have "${CXX%% *}" || die "no ${CXX%% *} here"
  have python3 || die "no python3 here"
  cuda=$(find_cuda) || die "no nvcc on the PATH, in /usr/local/cuda, among Python's packages or in .venv-tools/"
  # As kernels/cuda/meson.build asks for.
  release=$(nvcc_release)
  [[ -z $release || $(printf '12.5\n%s\n' "$release" | sort -V | head -n 1) == 12.5 ]] ||
    die "nvcc 12.5 or newer is needed: $cuda/bin/nvcc is $release"
  cccl=$(first_with cub/version.cuh "$cuda/include/cccl" "$cuda/include" "$fetched/include/cccl") ||
    die "no CCCL headers (cub/version.cuh) under $cuda/include: scripts/build.sh --all-archs fetches them"
  runtime=$(first_with libcudart_static.a "$cuda/lib64" "$cuda/lib" "$cuda/targets/x86_64-linux/lib" \
    "$cuda/lib/x86_64-linux-gnu" "$fetched/lib") || die "no libcudart_static.a under $cuda"
  for header in tl/expected.hpp xxhash.h; do
    [[ -e /usr/include/$header || -e $carried/include/$header ]] ||
      die "$header is neither installed nor in $carried/: run scripts/gpu-check.sh --prepare where it is"
  done
  # GoogleTest's sources: a library of another distribution need not fit this one's C++ library.
  gtest=$(first_with src/gtest-all.cc "$carried/googletest" /usr/src/googletest/googletest) || gtest=
  includes="-I. -Iinclude -idirafter $carried/include -isystem $cuda/include"
  version=$(sed -n "s/^  version: '\(.*\)',/\1/p" meson.build | head -n 1)
  export cuda cccl runtime gtest includes version
}

# What libprunex.so is made of, as the build does it: hwloc and verbs where their headers are.
library_sources() {
  local headers=${PRUNEX_SYSTEM_HEADERS:-/usr/include} without=(-name verbs_none.cc -o -name discover_hwloc_none.cc)
  [[ -e $headers/hwloc.h ]] || without=(-name verbs_none.cc -o -name hwloc_api.cc -o -name discover_hwloc.cc)
  [[ -e $headers/infiniband/verbs.h ]] ||
    without=("${without[@]:3}" -o -path '*/verbs/*' -not -name devices.cc -not -name verbs_none.cc)
  find topology plugin -name '*.cc' -not -path 'plugin/base/*' -not -path 'plugin/nccl/module/*' -not '(' "${without[@]}" ')' | sort
}

test_sources() {
  [[ -z $gtest ]] || printf '%s\n' tests/kernels/pack_{data,support}.cc tests/cuda/*.cc "$gtest"/src/gtest{-all,_main}.cc
}

# This nvcc may be older than the GPU: then the newest code that the driver can translate.
gencode() {
  local newest
  if "$cuda/bin/nvcc" --list-gpu-arch | grep -qx "compute_$arch"; then
    echo "-gencode=arch=compute_$arch,code=sm_$arch"
  else
    newest=$("$cuda/bin/nvcc" --list-gpu-arch | sed -n 's/^compute_\([0-9]*\)$/\1/p' | sort -n | awk -v a="$arch" '$1 <= a' | tail -n 1)
    echo "-gencode=arch=compute_$newest,code=compute_$newest -gencode=arch=compute_$newest,code=sm_$newest"
  fi
}

# One line for each object: its name, a tab, the command. The longest first.
commands() {
  local file flags code
  code=$(gencode)
  for file in kernels/cuda/*.cu; do
    printf '%s\t%s\n' "$build/o/$(basename "$file").o" \
      "python3 scripts/nvcc_object.py $build/o/$(basename "$file").resources $cuda/bin/nvcc -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -Xcompiler -fPIC,-fvisibility=hidden $code -isystem $cccl -I. -DPRUNEX_VERSION='\"$version\"' -DPRUNEX_CUDA_ARCHS='\"$arch\"' -c $file -o"
  done
  for file in $(test_sources) plugin/base/*.cc kernels/{,host/,cuda/}*.cc bench/cuda_pack_*.cc bench/nccl_check*.cc \
    plugin/nccl/module/*.cc $(library_sources); do
    [[ $file != */avx512.cc ]] || continue # twice, below
    flags=
    [[ $file != *avx2.cc ]] || flags='-mavx2 -mbmi -mbmi2 -mf16c -mpopcnt -Wno-maybe-uninitialized'
    [[ -z $gtest ]] || flags+=" -isystem $gtest/include -isystem $gtest"
    printf '%s\t%s\n' "$build/o/$(object_name "$file")" \
      "$CXX -std=c++20 -O2 -fPIC -ffp-contract=off -fvisibility=hidden -fvisibility-inlines-hidden -D_GNU_SOURCE -DPRUNEX_VERSION='\"$version\"' $flags $includes -c $file -o"
  done
  flags='-mavx2 -mbmi -mbmi2 -mf16c -mpopcnt -mavx512f -mavx512bw -mavx512vl -mavx512dq -Wno-maybe-uninitialized'
  printf '%s\t%s\n' "$build/o/kernels_avx512.o" "$CXX -std=c++20 -O2 -fPIC $flags -D_GNU_SOURCE $includes -c kernels/host/avx512.cc -o"
  printf '%s\t%s\n' "$build/o/kernels_vbmi2.o" \
    "$CXX -std=c++20 -O2 -fPIC $flags -mavx512vbmi -mavx512vbmi2 -D_GNU_SOURCE $includes -c kernels/host/avx512.cc -o"
}
object_name() {
  local name=${1#"$repo_root/"}
  name=${name#/}
  case $1 in
    */gtest-all.cc | */gtest_main.cc) name=googletest_$(basename "$1") ;;
  esac
  echo "${name//\//_}.o"
}

compile_all() {
  local object command
  rm -rf "$build"/{o,libprunex.so,libnccl-net-prunex.so,libprunex-cuda.so,nccl_check,cuda_pack_bench,cuda_{host,device}_test}
  mkdir -p "$build/o"
  while IFS=$'\t' read -r object command; do
    printf '%s\0' "$command $object"
  done < <(commands) | xargs -0 -P "$(cores)" -n 1 bash -c
  echo "$(find "$build/o" -name '*.o' | wc -l) objects, $(cores) at a time"
}

# libprunex.so, the NCCL plugin beside it, and the program that drives NCCL over them.
link_plugin() {
  # shellcheck disable=SC2054
  local guest=(-static-libstdc++ -static-libgcc -Wl,-z,nodelete -Wl,-z,now -Wl,-z,defs -lpthread -ldl)
  local library=() file
  for file in $(library_sources); do library+=("$build/o/$(object_name "$file")"); done
  $CXX -shared -o $build/libprunex.so -Wl,-soname,libprunex.so -Wl,--version-script=plugin/libprunex.map \
    "$build"/o/plugin_base_*.o "$build"/o/kernels_*.o "${library[@]}" "${guest[@]}"
  $CXX -shared -o $build/libnccl-net-prunex.so -Wl,-soname,libnccl-net-prunex.so \
    -Wl,--version-script=plugin/nccl/module/libnccl-net-prunex.map -Wl,--enable-new-dtags "-Wl,-rpath,\$ORIGIN" \
    "$build"/o/plugin_nccl_module_*.o -L$build -lprunex "${guest[@]}"
  $CXX -o $build/nccl_check $build/o/bench_nccl_check*.o $build/o/plugin_device_nccl_library.cc.o \
    "$build"/o/plugin_base_*.o -lpthread -ldl
}

# libprunex-cuda.so and the benchmark.
link_cuda() {
  local core=("$build"/o/plugin_base_*.o "$build"/o/kernels_*.o) cudart=("$runtime/libcudart_static.a" -ldl -lrt -lpthread)
  $CXX -shared -o $build/libprunex-cuda.so $build/o/*.cu.o "${cudart[@]}" -static-libstdc++ -static-libgcc \
    -Wl,--exclude-libs,ALL -Wl,--version-script=kernels/cuda/libprunex-cuda.map -Wl,-z,nodelete -Wl,-z,now -Wl,-z,defs
  $CXX -o $build/cuda_pack_bench $build/o/bench_cuda_pack_*.o "${core[@]}" "${cudart[@]}"
}

link_tests() {
  local file host=() library=() core=("$build"/o/plugin_base_*.o "$build"/o/kernels_*.o) support=("$build"/o/tests_kernels_*.o)
  local cudart=("$runtime/libcudart_static.a" -ldl -lrt -lpthread) googletest=("$build"/o/googletest_*.o -lpthread)
  [[ -n $gtest ]] || { echo "GoogleTest is neither in $carried/ nor installed" && return 77; }
  # Of the library what the tests use, which the linker finds.
  for file in $(library_sources); do library+=("$build/o/$(object_name "$file")"); done
  rm -f $build/o/library.a
  ar rc $build/o/library.a "${library[@]}"
  for file in "$build"/o/tests_cuda_*.o; do [[ $file == */tests_cuda_device* ]] || host+=("$file"); done
  $CXX -o $build/cuda_host_test "${host[@]}" "${support[@]}" "${core[@]}" "${googletest[@]}"
  $CXX -o $build/cuda_device_test $build/o/tests_cuda_device*.o "${support[@]}" $build/o/library.a "${core[@]}" "${googletest[@]}" "${cudart[@]}"
}

# ---- for a machine that has none of it ----------------------------------------------------------------

# Headers, and GoogleTest's sources, into $carried/.
prepare() {
  local header
  mkdir -p "$carried/include"
  for header in tl xxhash.h xxh3.h; do
    [[ ! -e /usr/include/$header ]] || cp -r "/usr/include/$header" "$carried/include/"
  done
  [[ -e $carried/include/tl/expected.hpp && -e $carried/include/xxhash.h ]] ||
    die "libexpected-dev and libxxhash-dev are needed here: scripts/build.sh installs them"
  [[ -e /usr/src/googletest/googletest/src/gtest-all.cc ]] ||
    die "GoogleTest's sources are needed here: apt-get install libgtest-dev"
  mkdir -p "$carried/googletest"
  cp -r /usr/src/googletest/googletest/{include,src} "$carried/googletest/"
  git rev-parse HEAD >"$carried/commit" 2>/dev/null || rm -f "$carried/commit"
  du -sh "$carried"
}

# bundle FILE: the tree as git knows it, and what prepare() gathered, in one archive.
bundle() {
  local file
  prepare
  mkdir -p "$(dirname "$1")"
  { git ls-files -z --cached --others --exclude-standard && find "$carried" -type f -print0; } |
    while IFS= read -r -d '' file; do [[ ! -e $file ]] || printf '%s\0' "$file"; done |
    tar --null --files-from=- --transform 's|^|prunex/|' -czf "$1"
  echo "$1: unpack it there, then prunex/scripts/gpu-check.sh"
}

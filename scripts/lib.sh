# SPDX-License-Identifier: Apache-2.0
# Shell helpers of the scripts; sourced, never run. Bash 5.
# shellcheck shell=bash

repo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=${program:-$(basename "$0")}

say() { printf '%s: %s\n' "$program" "$*" >&2; }
die() {
  say "$*"
  exit 1
}
# An error of usage, as getopt's: 2.
usage_error() {
  say "$*; try --help"
  exit 2
}
have() { command -v "$1" >/dev/null 2>&1; }
# The comment block at the head of the calling script, without the licence and the leading '# '.
show_help() { sed -n '3,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$0"; }

# Seconds since the epoch with milliseconds, and the difference to an earlier reading.
now() { printf '%s' "${EPOCHREALTIME/,/.}"; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'; }

cores() { nproc 2>/dev/null || echo 2; }

# ---- packages -----------------------------------------------------------------------------------------

# What the library, the tools and netlab need, and what the tests need on top.
build_packages=(g++ meson ninja-build pkg-config python3 libexpected-dev libxxhash-dev libhwloc-dev
  libibverbs-dev nlohmann-json3-dev libcli11-dev iproute2 util-linux binutils)
unit_packages=(libgtest-dev libgmock-dev)
check_packages=(clang clang-tidy libclang-rt-dev shellcheck python3-venv)

# Prints those of the packages that are not installed. No network, milliseconds.
missing_packages() {
  local installed package
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null |
    sed -n 's/ installed$//p' || true)
  for package in "$@"; do
    grep -qxF "$package" <<<"$installed" || echo "$package"
  done
}

# Runs apt-get without questions, waiting for other package managers. Output goes to the log.
run_apt() {
  local attempt as_root=(env)
  ((EUID == 0)) || as_root=(sudo)
  for attempt in {1..60}; do
    if "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a apt-get -y \
      -o DPkg::Lock::Timeout=300 -o Acquire::Retries=2 -o Dpkg::Use-Pty=0 "$@" >"$apt_log" 2>&1; then
      return 0
    fi
    # The lock of the package lists has no time-out of its own.
    grep -q 'Could not get lock' "$apt_log" || return 1
    ((attempt > 1)) || say "another package manager is at work; waiting for it"
    sleep 5
  done
  return 1
}

# Installs what is missing of the packages; returns at once when nothing is.
install_packages() {
  local missing=()
  if ! have dpkg-query || ! have apt-get; then
    say "not a Debian or Ubuntu system: please provide what these packages hold: $*"
    return 0
  fi
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  if ((EUID != 0)) && ! have sudo; then
    die "missing packages, and neither root nor sudo to install them. As root:
  apt-get update && apt-get install -y ${missing[*]}"
  fi
  say "installing ${missing[*]}"
  apt_log=$(mktemp "${TMPDIR:-/tmp}/prunex-apt.XXXXXX")
  # The lists at hand usually do; they are refreshed when they are absent or too old to be served.
  if ! run_apt install --no-install-recommends "${missing[@]}"; then
    if ! run_apt update || ! run_apt install --no-install-recommends "${missing[@]}"; then
      tail -n 15 "$apt_log" >&2
      die "could not install ${missing[*]}: is there a network, and a package source in /etc/apt? (log: $apt_log)"
    fi
  fi
  rm -f "$apt_log"
}

# ---- tools from PyPI, pinned, in a virtual environment of the tree -----------------------------------

# tool_from_pypi NAME VERSION: prints the path of the command NAME, or fails quietly (no network).
tool_from_pypi() {
  local venv=$repo_root/.venv-tools
  local path=$venv/bin/$1 stamp=$venv/$1-$2.installed
  if [[ ! -e $stamp ]]; then
    [[ -x $venv/bin/pip ]] || /usr/bin/env python3 -m venv "$venv" >/dev/null 2>&1 || return 1
    "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 20 "$1==$2" \
      >"$venv/pip.log" 2>&1 || return 1
    touch "$stamp"
  fi
  echo "$path"
}

# The parts of the CUDA toolkit that compile the kernels, from PyPI, where kernels/cuda/meson.build looks
# for them. Nothing when /usr/local/cuda has them all. Fails quietly (no network).
cuda_from_pypi() {
  local folder=$repo_root/.venv-tools/cuda version=13.0
  local wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)
  if [[ -x /usr/local/cuda/bin/nvcc && -e /usr/local/cuda/lib64/libcudart_static.a ]] &&
    [[ -e /usr/local/cuda/include/cccl/cub/version.cuh || -e /usr/local/cuda/include/cub/version.cuh ]]; then
    return 0
  fi
  [[ ! -e $folder/$version.installed ]] || return 0
  [[ -x $repo_root/.venv-tools/bin/pip ]] || python3 -m venv "$repo_root/.venv-tools" >/dev/null 2>&1 || return 1
  "$repo_root/.venv-tools/bin/pip" install --quiet --disable-pip-version-check --no-deps --retries 1 \
    --timeout 60 --target "$folder" "${wheels[@]}" >"$repo_root/.venv-tools/pip.log" 2>&1 || return 1
  touch "$folder/$version.installed"
}

# ---- building -----------------------------------------------------------------------------------------

# Old distributions: a meson before 1.0 (Ubuntu 22.04) is replaced by one from PyPI.
find_meson() {
  if have meson && [[ $(printf '1.0.0\n%s\n' "$(meson --version)" | sort -V | head -n 1) == 1.0.0 ]]; then
    echo meson
  else
    tool_from_pypi meson 1.0.1 || die "meson 1.0 or newer is needed, and PyPI cannot be reached"
  fi
}

# configured_archs FOLDER: the compute capabilities that a tree builds CUDA kernels for, with commas; nothing where
# there is no such tree yet.
configured_archs() {
  python3 -c 'import json, sys
with open(sys.argv[1], encoding="utf-8") as options:
    print(",".join(next(o["value"] for o in json.load(options) if o["name"] == "nvcc_archs")))' \
    "$1/meson-info/intro-buildoptions.json" 2>/dev/null || true
}

# configure_tree FOLDER OPTION...: sets the folder up, again only if the options changed.
configure_tree() {
  local folder=$repo_root/$1 meson output before state="CC=${CC:-} CXX=${CXX:-} ${*:2}"
  shift
  meson=$(find_meson)
  mkdir -p "$folder"
  before=$(cat "$folder/setup.state" 2>/dev/null || true)
  if [[ -e $folder/build.ninja && $before == "$state" ]]; then return 0; fi
  rm -f "$folder/setup.state"
  # Other options of the same compiler: what is built stays.
  if [[ ${before%% -*} == "${state%% -*}" ]] && "$meson" configure "$folder" "$@" >/dev/null 2>&1; then
    echo "$state" >"$folder/setup.state"
    return 0
  fi
  local wipe=()
  [[ ! -e $folder/meson-private/coredata.dat ]] || wipe=(--wipe)
  if ! output=$("$meson" setup "${wipe[@]}" "$folder" "$repo_root" "$@" 2>&1); then
    tail -n 20 <<<"$output" >&2
    say "configuring ${folder##*/}/ failed (log: $folder/meson-logs/meson-log.txt)"
    return 1
  fi
  echo "$state" >"$folder/setup.state"
}

# Whether clang is here with what its sanitizers and fuzzer link, and finds a C++ library.
clang_works() {
  local program code=0
  have clang++ || return 1
  program=$(mktemp "${TMPDIR:-/tmp}/prunex-clang.XXXXXX")
  clang++ -std=c++20 -fsanitize=fuzzer,address,undefined -x c++ -o "$program" - >/dev/null 2>&1 <<<'
#include <string>
extern "C" int LLVMFuzzerTestOneInput(const char* p, unsigned long n) { return std::string(p, n) == "x" ? -1 : 0; }
' || code=1
  rm -f "$program"
  return $code
}

# configure_sanitized FOLDER address|thread: optimised enough to run the tests in time, with lines for the reports
# and no more (full debug information makes the build a third longer). Precompiled headers save as much again; with
# them g++ warns of the system's own code, so warnings are left to build/. AddressSanitizer is clang's where there is
# one: it needs little more than half of the time that g++ needs, and the fuzz targets link the same library.
configure_sanitized() {
  local options=(-Dtests=true "-Dsanitizer=$2" -Ddebug=false -Doptimization=1 -Dcpp_args=-g1)
  options+=(-Db_pch=true -Dwerror=false)
  if [[ $2 == address ]] && clang_works; then
    CC=clang CXX=clang++ configure_tree "$1" "${options[@]}" -Dfuzz=true -Db_lundef=false
  else
    configure_tree "$1" "${options[@]}"
  fi
}

# ninja_tree FOLDER [TARGET...]: on a terminal ninja's progress is shown, else the output goes to
# FOLDER/build.log and only a failure is printed.
ninja_tree() {
  # Without this a compiler cache refuses what uses precompiled headers.
  local -x CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
  local folder=$repo_root/$1 log=$repo_root/$1/build.log
  shift
  if [[ -t 1 ]]; then
    ninja -C "$folder" -j "$(cores)" "$@" && return 0
    say "building ${folder##*/}/ failed"
  else
    ninja -C "$folder" -j "$(cores)" "$@" >"$log" 2>&1 && return 0
    grep -A 25 '^FAILED' "$log" | head -n 60 >&2 || tail -n 30 "$log" >&2
    say "building ${folder##*/}/ failed (log: $log)"
  fi
  return 1
}

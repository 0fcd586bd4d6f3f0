#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks of the tree and of what was built: one line each, PASS, FAIL or SKIP with the reason.
#
#   scripts/check.sh [--fix] [NAME...]
#
#   --fix    formats the sources first
#   NAME     only these: format includes headers c99 exports needed files environment shell naming docs
#
# Uses build/ (scripts/build.sh) for exports, needed, naming and docs. Details go to build/checks/.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program=check
cd "$repo_root"

readonly skip=77
readonly library=build/plugin/libprunex.so
readonly nccl_plugin=build/plugin/libnccl-net-prunex.so
readonly warnings=(-Wall -Wextra -Wconversion -Wshadow -Werror)

# Names of exported functions that prunex.h does not show: the plugin's and prunex.torch's doors into the library.
readonly unlisted_exports='prunex_internal_table|prunex_internal_admm'
# What a guest in somebody's process may need.
readonly needed_libraries='^(libc\.so\.6|libm\.so\.6|libgcc_s\.so\.1|libstdc\+\+\.so\.6|ld-linux.*\.so\.[0-9])$'

# sources GLOB...: files of the tree by name, in the folders that hold code.
sources() {
  local names=() glob
  for glob in "$@"; do names+=(-o -name "$glob"); done
  for glob in .ci bench include kernels plugin python scripts tests tools topology; do
    [[ ! -d $glob ]] || find "$glob" -type f \( "${names[@]:1}" \) -not -path '*/__pycache__/*'
  done | sort
}

# ---- the checks: details on stdout, 0 for pass, 77 for skip with the reason in the last line -----------

check_format() {
  local tool
  if ! tool=$(tool_from_pypi clang-format 14.0.6); then
    tool=$(command -v clang-format-14) || {
      echo "clang-format 14 is neither installed nor to be had from PyPI"
      return $skip
    }
  fi
  if [[ $fix == true ]]; then sources '*.h' '*.c' '*.cc' '*.cu' '*.cuh' | xargs "$tool" -i; fi
  sources '*.h' '*.c' '*.cc' '*.cu' '*.cuh' | xargs -P "$(cores)" -n 16 "$tool" --dry-run --Werror 2>&1 |
    grep -E 'error|warning' || return 0
  echo "scripts/check.sh --fix format mends it"
  return 1
}

check_includes() { python3 scripts/check_includes.py; }

# Every header is first in some file; here in one of its own. Headers for an instruction set say so in
# their name.
compile_header() {
  local isa=()
  case $1 in
    *avx512*) isa=(-march=x86-64-v4 -mavx512vbmi2) ;;
    *avx2*) isa=(-march=x86-64-v3) ;;
  esac
  g++ -std=c++20 -D_GNU_SOURCE -fsyntax-only -I. -Iinclude "${warnings[@]}" "${isa[@]}" -x c++ /dev/null -include "$1"
}
check_headers() {
  local shell
  shell="$(declare -p warnings); $(declare -f compile_header); compile_header \"\$1\""
  sources '*.h' | grep -v '^tests/' | xargs -P "$(cores)" -n 1 "$BASH" -c "$shell" header
}

check_c99() {
  local language
  for language in 'gcc -std=c99 -x c' 'gcc -std=c17 -x c' 'g++ -std=c++98 -x c++' 'g++ -std=c++20 -x c++'; do
    echo "$language"
    # shellcheck disable=SC2086
    printf '#include "prunex/prunex.h"\nint main(void) { return prunex_version() == PRUNEX_VERSION_MAJOR; }\n' |
      ${language/ / -pedantic -fsyntax-only -Iinclude ${warnings[*]} } - || return 1
  done
}

# Functions declared with PRUNEX_API in the public header.
declared_functions() {
  gcc -E -P -Iinclude -x c include/prunex/prunex.h | tr '\n' ' ' |
    grep -o 'visibility("default"))) [^(;]*(' | grep -o 'prunex_[a-z0-9_]*($' | tr -d '(' | sort -u
}

# Names a library gives to others.
exported_names() { nm -D --defined-only "$1" | awk '{ print $3 }' | sed 's/@.*//' | sort -u; }

check_exports() {
  [[ -e $library && -e $nccl_plugin ]] || { echo "$library and $nccl_plugin are not built" && return $skip; }
  local faults=0 declared exported tables
  declared=$(declared_functions)
  exported=$(exported_names "$library")
  [[ -n $declared ]] || { echo "no PRUNEX_API declarations found" && return 1; }
  comm -23 <(echo "$declared") <(echo "$exported") | sed 's/$/: declared in prunex.h, not exported/' | grep . && faults=1
  comm -13 <(echo "$declared") <(echo "$exported") | grep -vxE "$unlisted_exports|" |
    sed 's/$/: exported, not declared in prunex.h/' | grep . && faults=1
  tables=$(printf '%s\n' ncclNetPlugin_v{6..12} ncclCollNetPlugin_v{6..12} ncclTunerPlugin_v{2..6} | sort)
  diff <(echo "$tables") <(exported_names "$nccl_plugin") ||
    { echo "$nccl_plugin (>) differs from the tables that NCCL looks up (<)" && faults=1; }
  # Unique symbols would keep the library loaded and shared with other copies.
  readelf -Ws --dyn-syms "$library" "$nccl_plugin" | grep ' UNIQUE ' && faults=1
  return $faults
}

# entries FILE TAG: what a library says of itself: NEEDED, SONAME, RUNPATH, ...
entries() { readelf -d "$1" | sed -n "s/.*($2).*\[\(.*\)\]/\1/p"; }

check_needed() {
  [[ -e $library && -e $nccl_plugin ]] || { echo "$library and $nccl_plugin are not built" && return $skip; }
  local faults=0
  entries "$library" NEEDED | grep -vE "$needed_libraries" &&
    echo "needed by $library, and not every machine has it" && faults=1
  entries "$nccl_plugin" NEEDED | grep -vxF libprunex.so | grep -vE "$needed_libraries" &&
    echo "needed by $nccl_plugin, and not every machine has it" && faults=1
  entries "$nccl_plugin" NEEDED | grep -qxF libprunex.so || { echo "$nccl_plugin does not need libprunex.so" && faults=1; }
  [[ $(entries "$nccl_plugin" SONAME) == libnccl-net-prunex.so ]] || { echo "$nccl_plugin: SONAME" && faults=1; }
  entries "$nccl_plugin" RUNPATH | grep -qE '^\$ORIGIN/?$' || { echo "$nccl_plugin: its RUNPATH is not \$ORIGIN" && faults=1; }
  # NCCL closes and reopens plugins while their communicators may still be in use.
  readelf -d "$nccl_plugin" | grep -q NODELETE || { echo "$nccl_plugin could be unloaded" && faults=1; }
  return $faults
}

# Length, licence line, include guard.
check_files() {
  local file faults=0
  while read -r file; do
    awk -v file="$file" 'END { if (NR > 400) { print file ": " NR " lines, at most 400"; exit 1 } }' "$file" || faults=1
    head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || { echo "$file: no SPDX line" && faults=1; }
    [[ $file != *.h || $file == include/* ]] || grep -q '^#pragma once' "$file" || { echo "$file: no #pragma once" && faults=1; }
  done < <(sources '*.h' '*.c' '*.cc' '*.cu' '*.cuh' '*.py' '*.sh' run)
  return $faults
}

# Only config.cc reads the environment; two headers that a library has no use for.
check_environment() {
  local faults=0 files
  mapfile -t files < <(sources '*.h' '*.c' '*.cc' '*.cu' '*.cuh' | grep -E '^(kernels|topology|plugin|include)/')
  grep -nE '\b(secure_)?getenv\b|\benviron\b' "${files[@]}" | grep -v '^plugin/base/config.cc:' && faults=1
  grep -nE '#[[:space:]]*include[[:space:]]*<(iostream|regex)>' "${files[@]}" && faults=1
  return $faults
}

check_shell() {
  have shellcheck || { echo "shellcheck is not installed" && return $skip; }
  sources '*.sh' run | xargs shellcheck -x --severity=warning --exclude=SC2034 # variables of lib.sh are used elsewhere
}

check_naming() {
  [[ -e build/compile_commands.json ]] || { echo "build/ is not there" && return $skip; }
  timeout 900 python3 scripts/check_naming.py --jobs "$(cores)"
}

# The README's example compiles, and its table of variables is the program's.
check_docs() {
  sed -n '/^```c$/,/^```$/{//!p}' README.md |
    gcc -std=c99 -pedantic "${warnings[@]}" -Wextra -Iinclude -fsyntax-only -x c - || return 1
  [[ -x build/tools/prunex ]] || { echo "build/tools/prunex is not built" && return $skip; }
  local table
  table=$(build/tools/prunex info --markdown) || { echo "prunex info --markdown failed: $table" && return 1; }
  diff <(sed -n '/<!-- config:begin -->/,/<!-- config:end -->/{//!p}' README.md) <(echo "$table") && return 0
  echo "README.md (<) differs from prunex info --markdown (>)"
  return 1
}

# ---- running them -------------------------------------------------------------------------------------

passed=0 failed=0 skipped=0
run_check() {
  local code=0 begin details=build/checks/$1.log
  begin=$(now)
  (set +e; "check_$1") >"$details" 2>&1 || code=$?
  case $code in
    0) passed=$((passed + 1)) && echo "PASS $1 ($(since "$begin") s)" ;;
    "$skip") skipped=$((skipped + 1)) && echo "SKIP $1: $(tail -n 1 "$details")" ;;
    *)
      failed=$((failed + 1))
      echo "FAIL $1 ($(since "$begin") s; all of it in $details)"
      head -n 30 "$details" | sed 's/^/  /'
      ;;
  esac
}

all=(format includes headers c99 exports needed files environment shell naming docs)
fix=false chosen=()
while (($#)); do
  case $1 in
    --fix) fix=true ;;
    -h | --help) show_help && exit 0 ;;
    -*) usage_error "unknown option '$1'" ;;
    *)
      [[ " ${all[*]} " == *" $1 "* ]] || usage_error "no check is called '$1'; there are: ${all[*]}"
      chosen+=("$1")
      ;;
  esac
  shift
done
((${#chosen[@]})) || chosen=("${all[@]}")
mkdir -p build/checks
for name in "${chosen[@]}"; do run_check "$name"; done
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))

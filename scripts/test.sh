#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, runs every check and test, and ends with a line of counts:
#
#   scripts/test.sh [--long] [--stage NAME]...
#
#   --long         also the soak tests, huge sizes (meson's suite "long") and more fuzzing
#   --stage NAME   only this one: build, checks, tests, roce, asan, tsan or fuzz; may be repeated
#
# Stages: build, checks (scripts/check.sh), tests, RDMA on Soft-RoCE in a guest, the tests under
# AddressSanitizer with UndefinedBehaviorSanitizer (by clang where there is one) and under ThreadSanitizer,
# fuzzing in the tree of the former. A stage that fails stops no later one.
# All output is kept in build-logs/. Last line: "N passed, N failed, N skipped" (test cases and checks).
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program="test"
cd "$repo_root"

readonly all_stages=(build checks tests roce asan tsan fuzz)
long=false stages=()
while (($#)); do
  case $1 in
    --long) long=true && shift ;;
    --stage)
      [[ " ${all_stages[*]} " == *" ${2:-} "* ]] || usage_error "--stage '${2:-}': one of ${all_stages[*]}"
      stages+=("$2") && shift 2
      ;;
    -h | --help) show_help && exit 0 ;;
    *) usage_error "unknown option '$1'" ;;
  esac
done

# Not inside a build folder: configuring one anew empties it.
readonly logs=$repo_root/build-logs
# What handles memory of others and bytes from the network; the pure parts are fuzzed under it.
readonly asan_suites=(transport api device nccl)
# The engine, whose ranks are threads in its tests; of the plugin's suites what is marked so.
readonly tsan_suites=(collective threads)
fuzz_seconds=10 # of each target
roce_memory=2G roce_environment=()
if [[ $long == true ]]; then
  fuzz_seconds=120
  roce_memory=8G roce_environment=(PRUNEX_TEST_LONG=1)
fi

# ---- stages: details on stdout, the three counts in the file $counts ------------------------------------

stage_build() {
  scripts/build.sh || return 1
  # Tools of the checks; what cannot be had makes its check skip.
  (install_packages "${check_packages[@]}") || true
  # The Python tests' torch; they skip without it.
  scripts/python-env.sh >/dev/null || true
  echo "0 0 0" >"$counts"
}

stage_checks() {
  scripts/check.sh >"$logs/checks.log" || true
  grep -v '^PASS' "$logs/checks.log" | sed '$d'
  tail -n 1 "$logs/checks.log" | tr -cd '0-9 \n' >"$counts"
}

# run_suites FOLDER MESON_TEST_OPTION...
run_suites() {
  local folder=$1 meson
  meson=$(find_meson)
  # Results of earlier runs would count as those of a test that dies.
  rm -f "$folder"/*.xml "$folder/meson-logs/testlog.json"
  [[ $long == true ]] || set -- "$@" --no-suite long
  "${wrapper[@]}" "$meson" test -C "$folder" --no-rebuild --num-processes "$(cores)" "${@:2}" \
    >"$folder/test.log" 2>&1 || true
  if [[ ! -s $folder/meson-logs/testlog.json ]]; then
    tail -n 20 "$folder/test.log"
    return 1
  fi
  local complete=()
  [[ $folder != build || $long == false ]] || complete=(--complete)
  python3 scripts/count_tests.py "$folder" "${complete[@]}" >"$folder/test.counts"
  sed '$d' "$folder/test.counts"
  if grep -q '^failed:' "$folder/test.counts"; then
    grep -hE -A 12 'Failure$|ERROR: |runtime error' "$folder/meson-logs/testlog.txt" | head -n 60 || true
    # The first report of a sanitizer, whole: its second half says with whom a race was.
    sed -n '/WARNING: ThreadSanitizer\|ERROR: AddressSanitizer/,/SUMMARY: /p;/SUMMARY: /q' \
      "$folder/meson-logs/testlog.txt" | cut -c 1-200 | head -n 70
    echo "(all of it: $folder/meson-logs/testlog.txt)"
  fi
  tail -n 1 "$folder/test.counts" >"$counts"
}

stage_tests() {
  wrapper=()
  run_suites build
}

# build_suites FOLDER SANITIZER SUITE...: what the tests of these suites run, no more.
build_suites() {
  local targets
  configure_sanitized "$1" "$2" && ninja_tree "$1" build.ninja >/dev/null || return 1
  mapfile -t targets < <(python3 scripts/count_tests.py "$1" --targets "${@:3}")
  ninja_tree "$1" "${targets[@]}"
}

# In one boot; a guest that did not come up, or died, is started once more. Not on this machine: skipped.
stage_roce() {
  local attempt code limit=420
  [[ $long == false ]] || limit=3600
  (cd "$repo_root" && scripts/soft-roce.sh --prepare) >"$logs/roce.log" 2>&1 || true
  for attempt in 1 2; do
    code=0
    env ${roce_environment[@]+"${roce_environment[@]}"} scripts/soft-roce.sh --memory "$roce_memory" --timeout "$limit" --writable / -- \
      scripts/soft-roce/suite.sh build >"$logs/roce.out" 2>>"$logs/roce.log" || code=$?
    ((code == 124 || code == 125)) || break
  done
  if ((code == 77)); then
    echo "skipped: roce: $(tail -n 1 "$logs/roce.log")"
    echo "0 0 1" >"$counts"
    return 0
  fi
  grep -E '^(failed|skipped) ' "$logs/roce.out" || true
  local passed failed skipped
  passed=$(grep -c '^passed ' "$logs/roce.out" || true)
  failed=$(grep -c '^failed ' "$logs/roce.out" || true)
  skipped=$(grep -c '^skipped ' "$logs/roce.out" || true)
  if ((code != 0)); then
    echo "failed: roce: the guest ended with status $code (all of it: $logs/roce.log)"
    failed=$((failed + 1))
  fi
  echo "$passed $failed $skipped" >"$counts"
}

stage_asan() {
  build_suites build-asan address "${asan_suites[@]}" || return 1
  wrapper=(env UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 ASAN_OPTIONS=detect_stack_use_after_return=1)
  run_suites build-asan --timeout-multiplier 4 "${asan_suites[@]/#/--suite=}"
}

stage_tsan() {
  build_suites build-tsan thread "${tsan_suites[@]}" || return 1
  wrapper=(env TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1)
  # Kernels that randomise 32 bits of mappings are too much for older ThreadSanitizers.
  if setarch -R true 2>/dev/null; then wrapper=(setarch -R "${wrapper[@]}"); fi
  run_suites build-tsan --timeout-multiplier 8 "${tsan_suites[@]/#/--suite=}"
}

# One target for its time; the corpus of the tree is read, what is new goes to build-fuzz/.
fuzz_one() {
  local target=$1 name corpus seeds=()
  name=$(basename "$target")
  corpus=build-fuzz/corpus/$name
  mkdir -p "$corpus" build-fuzz/found
  [[ ! -d tests/fuzz/corpus/$name ]] || seeds=("tests/fuzz/corpus/$name")
  if timeout $((fuzz_seconds + 60)) "$target" -max_total_time="$fuzz_seconds" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="build-fuzz/found/$name-" "$corpus" "${seeds[@]}" >"build-fuzz/$name.log" 2>&1; then
    echo "passed $name"
  else
    echo "failed $name: $(grep -hE 'ERROR:|runtime error|SUMMARY' "build-fuzz/$name.log" | head -n 1) (build-fuzz/$name.log)"
  fi
}

stage_fuzz() {
  local targets results
  if ! clang_works; then
    echo "skipped: fuzzing: clang and its sanitizers' libraries are not installed"
    echo "0 0 1" >"$counts"
    return 0
  fi
  configure_sanitized build-asan address || return 1
  ninja_tree build-asan build.ninja >/dev/null || return 1 # configures anew if a meson.build changed
  mapfile -t targets < <(python3 scripts/count_tests.py build-asan --targets fuzz)
  if ((${#targets[@]} == 0)); then
    echo "failed: no fuzz targets"
    return 1
  fi
  ninja_tree build-asan "${targets[@]}" || return 1
  export -f fuzz_one
  export fuzz_seconds
  results=$(printf '%s\n' "${targets[@]/#/build-asan/}" | xargs -P "$(cores)" -I '{}' "$BASH" -c 'fuzz_one {}')
  grep '^failed' <<<"$results" || true
  echo "$(grep -c '^passed' <<<"$results") $(grep -c '^failed' <<<"$results") 0" >"$counts"
}

# ---- running them -------------------------------------------------------------------------------------

total_passed=0 total_failed=0 total_skipped=0 start=$(now)
run_stage() {
  local name=$1 begin code=0 passed=0 failed=0 skipped=0
  begin=$(now)
  counts=$logs/$name.counts
  rm -f "$counts"
  echo "== $name"
  (set +e; "stage_$name") || code=$?
  [[ ! -s $counts ]] || read -r passed failed skipped <"$counts"
  if ((code != 0 && failed == 0)) || [[ ! -s $counts ]]; then failed=$((failed + 1)); fi
  total_passed=$((total_passed + passed))
  total_failed=$((total_failed + failed))
  total_skipped=$((total_skipped + skipped))
  echo "-- $name: $passed passed, $failed failed, $skipped skipped ($(since "$begin") s)"
}

mkdir -p "$logs"
((${#stages[@]} > 0)) || stages=("${all_stages[@]}")
for stage in "${stages[@]}"; do run_stage "$stage"; done
echo "total time: $(since "$start") s"
echo "$total_passed passed, $total_failed failed, $total_skipped skipped"
((total_failed == 0))

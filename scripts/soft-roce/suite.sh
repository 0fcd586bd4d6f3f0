#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs in a guest of scripts/soft-roce.sh, on rxe0 and rxe1: the transport's conformance and reports, NCCL's
# network table, and the benchmarks, with every byte checked where that goes. A line of each case: "passed NAME", "failed
# NAME" or "skipped NAME: reason"; what a failed one said goes to stderr.
#
#   scripts/soft-roce.sh -- scripts/soft-roce/suite.sh BUILD_FOLDER
set -euo pipefail
build=$(cd "${1:-build}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# gtest SECONDS NAME PROGRAM FILTER: each case counts.
gtest() {
  local code=0
  timeout -k 5 "$1" "$build/$3" --gtest_filter="$4" --gtest_color=no >"$work/log" 2>&1 || code=$?
  sed -nE 's/^\[       OK \] ([^ ]+).*/passed \1/p; s/^\[  SKIPPED \] ([^ ]+) \(.*/skipped \1: see the log/p
    s/^\[  FAILED  \] ([^ ]+) \(.*/failed \1/p' "$work/log" | sed "s,^\([a-z]*\) ,\1 roce_$2: ,"
  ((code == 0)) && return 0
  tail -n 40 "$work/log" >&2
  # One that dies has no line of its own.
  grep -q '^\[  FAILED  \]' "$work/log" || echo "failed roce_$2: $3 ended with status $code"
}

# case SECONDS NAME COMMAND...
case_of() {
  local code=0
  timeout -k 5 "$1" "${@:3}" >"$work/log" 2>&1 || code=$?
  if ((code == 0)); then
    echo "passed roce_$2"
  else
    echo "failed roce_$2: status $code"
    tail -n 20 "$work/log" >&2
  fi
}

# p2p NAME OPTION...: two processes, a device each.
p2p() {
  # shellcheck disable=SC2016
  case_of 90 "p2p_$1" "$BASH" -c '
    prunex=$1 work=$2 && shift 2
    export PRUNEX_WORLD_SIZE=2 PRUNEX_ROOT=127.0.0.1:29511
    PRUNEX_RANK=1 "$prunex" bench p2p --transport verbs --device rxe1 "$@" >"$work/other" 2>&1 & other=$!
    code=0
    PRUNEX_RANK=0 "$prunex" bench p2p --transport verbs --device rxe0 "$@" || code=$?
    ((code == 0)) || kill $other 2>/dev/null || true
    wait $other || code=$?
    ((code == 0)) || cat "$work/other"
    exit $code' p2p "$build/tools/prunex" "$work" --warmup 5 "${@:2}"
}

export PRUNEX_TRANSPORT=verbs
gtest 240 reports tests/transport/roce_test 'Reports.*:Roce.*'
# Not those of two processes that share a transport: roce_test has its own.
gtest 180 conformance tests/transport/transport_test '*Conformance.*/verbs_device-*killed_peer*:*a_sleeper*'
gtest 180 net tests/nccl/nccl_plugin_test '*NetConformance.messages*/6:*NetConformance.order*/6:*NetConformance.less*/6:*NetConformance.sends_go*/6:*NetConformance.large*/6'
p2p bandwidth --check --size 64K,1M --iters 20
p2p latency --check --latency --size 8,4K --iters 50
p2p bidirectional --check --bidirectional --size 256K --iters 20
p2p write --op write --size 64K,1M --iters 40
p2p latency_write --op write --latency --size 8,16K --iters 50
p2p two_queue_pairs --check --qps 2 --size 1M --iters 10
p2p density --check --density 0.4 --size 1M --iters 10
# Two processes, a node and a device each.
# shellcheck disable=SC2016
case_of 90 allreduce "$BASH" -c '
  export PRUNEX_WORLD_SIZE=2 PRUNEX_ROOT=127.0.0.1:29512
  options=(bench allreduce --size 1M --keep 0.5 --iters 3 --warmup 1 --check)
  PRUNEX_NODE_ID=b PRUNEX_IB_HCA=rxe1 PRUNEX_RANK=1 "$1" "${options[@]}" & other=$!
  code=0
  PRUNEX_NODE_ID=a PRUNEX_IB_HCA=rxe0 PRUNEX_RANK=0 "$1" "${options[@]}" || code=$?
  ((code == 0)) || kill $other 2>/dev/null || true
  wait $other || code=$?
  exit $code' allreduce "$build/tools/prunex"

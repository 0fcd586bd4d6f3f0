#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A long run of the NCCL plugin: processes that come and go exchange messages of random sizes and kinds
# (dense, with zero blocks, masked, with masks that are wrong, of NCCL's LL size) with one that stays; some
# are killed, some are closed on. Every byte is checked, and the process that stays must not gain
# descriptors, threads or memory.
#
#   scripts/soak.sh [--minutes 30] [OPTION...]     options of net_soak: --seed N, --api V, --peers N
#
# One process runs in each mode of PRUNEX_NET_MODE, one after the other, a third of the time each. Prints a
# summary of each; exit status 1 at any fault. SOAK_VERBOSE=1 shows what the plugin says.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program=soak
minutes=30
case ${1:-} in -h | --help) show_help && exit 0 ;; esac
if [[ ${1:-} == --minutes ]]; then
  (($# >= 2)) || usage_error "--minutes needs a value"
  minutes=$2
  shift 2
fi
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage_error "--minutes '$minutes' is no number"
cd "$repo_root"
build=${PRUNEX_BUILD:-build}
[[ -e $build/build.ninja ]] || configure_tree "$build" -Dtests=false -Dsanitizer=none
ninja_tree "$build" bench/net_soak plugin/libprunex.so plugin/libnccl-net-prunex.so

seconds=$(awk -v m="$minutes" 'BEGIN { s = m * 60 / 3; print (s < 1 ? 1 : s) }')
failed=0
for mode in auto compact passthrough; do
  say "PRUNEX_NET_MODE=$mode for $seconds s"
  # A run that hangs is a fault too; so are deaths of peers that are noticed late.
  limit=$(awk -v s="$seconds" 'BEGIN { printf "%d", s + 180 }')
  NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} PRUNEX_TIMEOUT=10 PRUNEX_NET_MODE=$mode \
    timeout -k 5 "$limit" "$build/bench/net_soak" --plugin "$build/plugin/libnccl-net-prunex.so" \
    --seconds "$seconds" "$@" || failed=1
done
((failed == 0)) || die "FAILED"
say "passed"

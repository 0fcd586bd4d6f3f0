#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures ib_write_bw and ib_write_lat, or ib_send_bw and ib_send_lat (perftest), between two RDMA devices;
# with --prunex also `prunex bench p2p`, in turn, and prints the ratios.
#
#   scripts/compare-perftest.sh [options]
#
#   --devices A,B          devices of this machine, mlx5_0 (its first port that is up) or mlx5_0:2; without it:
#                          rxe0,rxe1 in a guest of scripts/soft-roce.sh
#   --sizes LIST           of the messages for bandwidth: 64K,1M,8M; none: no bandwidth
#   --latency-sizes LIST   of those for latency: 8,4K; none: no latency
#   --test T               perftest's: write (ib_write_bw's server does nothing meanwhile), or send (both ends poll,
#                          and the server posts receives, as NCCL's networks have to) (write)
#   --qps N                queue pairs, 1 to 16 (1)
#   --runs N               of each measurement; the median counts (5)
#   --iterations N         messages of a run (32 MiB worth of them, at least 5 and at most 1000)
#   --prunex PROGRAM       the program `prunex` to compare with, its messages over as many streams or queue pairs as --qps says
#   --nccl LIBRARY         libnccl.so.2, whose own InfiniBand network is measured as well, in turn and by the same program
#   --density D            share of bytes that are not zero: a third table, of --sizes, has dense messages of --prunex and
#                          such, found by the plugin (blocks) and known from a mask (mask)
#   --spread               of the guest: see soft-roce.sh
#   --transport T          its transport, verbs or socket (verbs); socket needs --prunex-devices
#   --prunex-devices A,B   its devices, where they are not those of --devices (TCP: eth0,eth1)
#   --timeout S            of the guest (1800)
#   --offline              installs and downloads nothing
#
# MB is 10^6 bytes. Bandwidth: the average of a run. Latency: half a round trip, the typical one (the median
# of a run). Behind each median the smallest and largest run. A ratio is that of the two medians, prunex to
# perftest, and of prunex to NCCL: of bandwidths, higher is better, of latencies, lower. In the third table they
# are those to dense messages, of the bytes that messages stand for.
#
# Exit status: 77 where perftest or the guest cannot be had, 1 when a measurement failed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program=compare-perftest

devices='' sizes=64K,1M,8M latency_sizes=8,4K qps=1 runs=5 iterations='' prunex='' transport=verbs test=write nccl='' density=''
prunex_devices='' names=() ports=() guest_limit=1800 offline=() guest_options=()
readonly limit=120 # seconds of one run
readonly sysfs=${COMPARE_PERFTEST_SYSFS:-/sys/class/infiniband} # another one in tests

in_range() {
  # Leading zeros would be octal.
  [[ $2 =~ ^(0|[1-9][0-9]{0,6})$ ]] && (($2 >= $3 && $2 <= $4)) || usage_error "$1 '$2' is not in $3..$4"
}
is_device_pair() {
  local one='[^,:/[:space:]]+(:([1-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5]))?'
  [[ $2 =~ ^$one,$one$ ]] || usage_error "$1 '$2' is not two devices with a comma between, as in mlx5_0,mlx5_1:2"
}
is_pair() { [[ $2 =~ ^[^,[:space:]]+,[^,[:space:]]+$ ]] || usage_error "$1 '$2' is not two names with a comma between"; }
# "64K,1M" -> "65536 1048576"
bytes_of() {
  local size result=()
  [[ $2 != none ]] || return 0
  [[ $2 =~ ^[^,[:space:]]+(,[^,[:space:]]+)*$ ]] || usage_error "$1 '$2' is not a list of sizes, as in 4K,64K,1M"
  local list
  IFS=, read -ra list <<<"$2"
  for size in "${list[@]}"; do
    [[ ${size^^} =~ ^[1-9][0-9]{0,9}[KMG]?$ ]] || usage_error "$1: '$size' is no size"
    result+=("$(numfmt --from=iec "${size^^}")")
    ((result[-1] <= 1 << 30)) || usage_error "$1: '$size' is more than 1G"
  done
  echo "${result[*]}"
}

parse_args() {
  while (($#)); do
    case $1 in
      -h | --help) show_help && exit 0 ;;
      --offline) offline=(--offline) && shift ;;
      --spread) guest_options=(--spread) && shift ;;
      --devices | --sizes | --latency-sizes | --test | --qps | --runs | --iterations | --prunex | --transport | \
        --prunex-devices | --timeout | --nccl | --density)
        (($# >= 2)) || usage_error "$1 needs a value"
        case $1 in
          --devices) devices=$2 ;;
          --sizes) sizes=$2 ;;
          --latency-sizes) latency_sizes=$2 ;;
          --test) test=$2 ;;
          --qps) qps=$2 ;;
          --runs) runs=$2 ;;
          --iterations) iterations=$2 ;;
          --prunex) prunex=$2 ;;
          --transport) transport=$2 ;;
          --prunex-devices) prunex_devices=$2 ;;
          --timeout) guest_limit=$2 ;;
          --nccl) nccl=$2 ;;
          --density) density=$2 ;;
        esac
        shift 2
        ;;
      *) usage_error "unknown option '$1'" ;;
    esac
  done
  [[ $test == write || $test == send ]] || usage_error "--test '$test' is not write or send"
  in_range --qps "$qps" 1 16
  in_range --runs "$runs" 1 1000
  in_range --timeout "$guest_limit" 1 604800
  [[ -z $iterations ]] || in_range --iterations "$iterations" 5 1000000
  [[ -z $devices ]] || is_device_pair --devices "$devices"
  [[ -z $prunex_devices ]] || is_pair --prunex-devices "$prunex_devices"
  [[ -z $prunex || (-f $prunex && -x $prunex) ]] || usage_error "--prunex '$prunex' is not a program"
  [[ -z $nccl || (-f $nccl && -r $nccl) ]] || usage_error "--nccl '$nccl' is not a file that can be read"
  [[ $transport == verbs || $transport == socket ]] || usage_error "--transport '$transport' is not verbs or socket"
  [[ -z $nccl$density || -n $prunex ]] || usage_error "--nccl and --density need --prunex"
  [[ -z $prunex_devices || -n $prunex ]] || usage_error "--prunex-devices needs --prunex"
  [[ $transport == verbs || -z $prunex || -n $prunex_devices ]] ||
    usage_error "--transport socket: name two network interfaces with --prunex-devices, as in eth0,eth1"
  [[ -z $density || $density =~ ^(0?\.[0-9]{1,9}|0|1(\.0{1,9})?)$ ]] || usage_error "--density '$density' is not in 0..1"
  sizes=$(bytes_of --sizes "$sizes")
  latency_sizes=$(bytes_of --latency-sizes "$latency_sizes")
  [[ -n $sizes$latency_sizes ]] || usage_error "--sizes none and --latency-sizes none: nothing to measure"
  [[ -n $sizes || -z $density ]] || usage_error "--density '$density' is of --sizes, which has none"
}

# ---- one run of one program: prints its figure ------------------------------------------------------------

iterations_of() {
  local n=$((32 * 1048576 / $1))
  ((n >= 5)) || n=5
  ((n <= 1000)) || n=1000
  echo "${iterations:-$n}"
}

# find_port DEVICE[:PORT]: the port's number: the one that is named, else the first that is up.
find_port() {
  local folder=$sysfs/${1%%:*}/ports port states=''
  if [[ $1 == *:* ]]; then
    [[ -d $folder/${1#*:} ]] || die "RDMA device '${1%%:*}' has no port ${1#*:}; it has: $(find "$folder" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort -n | paste -sd ' ')"
    echo "${1#*:}"
    return 0
  fi
  for port in $(find "$folder" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort -n); do
    if [[ $(cat "$folder/$port/state") == *ACTIVE ]]; then
      echo "$port"
      return 0
    fi
    states+=" port $port is '$(cat "$folder/$port/state")'"
  done
  die "no port of RDMA device '$1' is up:${states:- it has none}"
}

# gid_option DEVICE PORT: the index of its routable RoCE v2 address, as perftest wants it; nothing on InfiniBand.
gid_option() {
  local port=$sysfs/$1/ports/$2 index
  [[ $(cat "$port/link_layer") == Ethernet ]] || return 0
  for index in {0..255}; do
    if [[ $(cat "$port/gid_attrs/types/$index" 2>/dev/null) == "RoCE v2" &&
      $(cat "$port/gids/$index") == 0000:0000:0000:0000:0000:ffff:* ]]; then
      echo "-x $index"
      return 0
    fi
  done
  say "$1:$2 has no RoCE v2 address of an IPv4 kind: give its network interface one"
  return 1
}

free_port() {
  local port
  for ((port = 20000 + RANDOM % 10000; ; port++)); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
  done
  echo "$port"
}
# Without connecting: perftest would take that for its client.
listening() { grep -qi ":$(printf %04X "$1") [0-9A-F]*:0000 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null; }

# between COMMAND...: the server on the first device, the client on the second; prints what the client did.
between() {
  local port server server_options client_options code=0
  port=$(free_port)
  server_options=$(gid_option "${names[0]}" "${ports[0]}")
  client_options=$(gid_option "${names[1]}" "${ports[1]}")
  # shellcheck disable=SC2086
  timeout -k 5 "$limit" "$@" -d "${names[0]}" -i "${ports[0]}" $server_options -p "$port" >"$work/server" 2>&1 &
  server=$!
  until listening "$port"; do
    kill -0 $server 2>/dev/null || break
    sleep 0.1
  done
  # shellcheck disable=SC2086
  timeout -k 5 "$limit" "$@" -d "${names[1]}" -i "${ports[1]}" $client_options -p "$port" 127.0.0.1 2>"$work/client" || code=$?
  ((code == 0)) || kill $server 2>/dev/null || true
  wait $server || code=$?
  ((code == 0)) && return 0
  say "$1 failed with status $code:"
  tail -n 5 "$work/server" "$work/client" >&2
  return 1
}

perftest_bandwidth() {
  between "ib_${test}_bw" -F -s "$1" -n "$(iterations_of "$1")" -q "$qps" --report_gbits --output=bandwidth |
    awk 'NF { print $1 * 125 }'
}
perftest_latency() {
  between "ib_${test}_lat" -F -s "$1" -n "$(iterations_of "$1")" | awk -v size="$1" '$1 == size && NF >= 6 { print $5 }'
}

# p2p COLUMN SIZE OPTION...: two processes, so that each has a device of its own.
p2p() {
  local column=$1 size=$2 port other code=0 common ours=("${names[@]}") first=() second=()
  if [[ -n $prunex_devices ]]; then
    IFS=, read -ra ours <<<"$prunex_devices"
  else # the port that perftest has
    first=("PRUNEX_IB_HCA==${names[0]}:${ports[0]}" "NCCL_IB_HCA==${names[0]}:${ports[0]}")
    second=("PRUNEX_IB_HCA==${names[1]}:${ports[1]}" "NCCL_IB_HCA==${names[1]}:${ports[1]}")
  fi
  common=("$prunex" bench p2p --op "$test" --size "$size" --iters "$(iterations_of "$size")" --warmup 20 "${@:3}")
  port=$(free_port)
  local world=(env PRUNEX_WORLD_SIZE=2 "PRUNEX_ROOT=127.0.0.1:$port") run=(timeout -k 5 "$limit" "${common[@]}")
  PRUNEX_RANK=1 "${world[@]}" "${second[@]}" "${run[@]}" --device "${ours[1]}" >"$work/server" 2>&1 &
  other=$!
  PRUNEX_RANK=0 "${world[@]}" "${first[@]}" "${run[@]}" --device "${ours[0]}" --csv "$work/csv" >"$work/client" 2>&1 || code=$?
  ((code == 0)) || kill $other 2>/dev/null || true
  wait $other || code=$?
  if ((code != 0)); then
    say "$prunex bench p2p failed with status $code:"
    tail -n 5 "$work/client" >&2
    return 1
  fi
  awk -F, -v column="$column" '
    NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
    NR > 1 && $at["part"] == "local" { print $at[column] }' "$work/csv"
}
of_prunex() {
  local lanes=--qps
  [[ $transport == verbs ]] || lanes=--streams
  p2p "$@" --transport "$transport" "$lanes" "$qps"
}
prunex_bandwidth() { of_prunex bw_average_MBps "$1"; }
prunex_latency() { of_prunex p50_us "$1" --latency; }
blocks_bandwidth() { of_prunex bw_average_MBps "$1" --density "$density" --pattern blocks; }
mask_bandwidth() { of_prunex bw_average_MBps "$1" --density "$density" --pattern mask; }
of_nccl() { p2p "$@" --network IB --plugin "$nccl" --qps "$qps"; }
nccl_bandwidth() { of_nccl bw_average_MBps "$1"; }
nccl_latency() { of_nccl p50_us "$1" --latency; }

# ---- all of them ----------------------------------------------------------------------------------------

# measure FUNCTION SIZE: perftest prints 0 or inf when its own look at the clock failed; once more then.
measure() {
  local figure
  for _ in 1 2 3; do
    # On a busy machine perftest also loses its own connection now and then.
    figure=$("$1" "$2") || { [[ $1 == perftest* ]] && continue || return 1; }
    if [[ $figure =~ ^[0-9.]+(e[-+]?[0-9]+)?$ ]] && awk -v f="$figure" 'BEGIN { exit !(f > 0) }'; then
      echo "$figure"
      return 0
    fi
  done
  say "$1 of $2 bytes gave '$figure'"
  return 1
}

median() { sort -g "$1" | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }
spread() { sort -g "$1" | awk -v m="$(median "$1")" '{ v[NR] = $1 } END { printf "%.1f (%.1f-%.1f)", m, v[1], v[NR] }'; }

ratio() {
  awk -v a="$(median "$work/figures.$1")" -v b="$(median "$work/figures.$2")" 'BEGIN { printf "  %-9.3f", a / b }'
}

# compare WHAT UNIT "SIZE..." "CONTESTANT..." "RATIO/TO..." TITLE...: a title for each contestant.
compare() {
  local what=$1 unit=$2 sizes=$3 contestants=$4 ratios=$5 size run contestant pair
  [[ -n $sizes ]] || return 0
  printf '%12s' bytes
  printf '  %-27s' "${@:6}"
  for pair in $ratios; do printf '  %-9s' "/ ${pair#*/}"; done
  echo " $unit"
  for size in $sizes; do
    rm -f "$work"/figures.*
    for ((run = 0; run < runs; run++)); do
      for contestant in $contestants; do
        measure "${contestant}_$what" "$size" >>"$work/figures.$contestant" || exit 1
      done
    done
    printf '%12s' "$size"
    for contestant in $contestants; do printf '  %-27s' "$(spread "$work/figures.$contestant")"; done
    for pair in $ratios; do ratio "${pair%/*}" "${pair#*/}"; done
    echo
  done
}

main() {
  local device port have_devices
  parse_args "$@"
  ((${#offline[@]})) || (install_packages perftest) || exit 77
  if ! have "ib_${test}_bw" || ! have "ib_${test}_lat"; then
    say "ib_${test}_bw and ib_${test}_lat not found: install the package perftest"
    exit 77
  fi
  if [[ -z $devices ]]; then
    exec "$repo_root/scripts/soft-roce.sh" "${offline[@]}" "${guest_options[@]}" --timeout "$guest_limit" -- "$repo_root/scripts/compare-perftest.sh" "$@" \
      --devices rxe0,rxe1
  fi
  for device in ${devices/,/ }; do
    if [[ ! -d $sysfs/${device%%:*} ]]; then
      have_devices=$(find "$sysfs" -mindepth 1 -maxdepth 1 -printf '%f ' 2>/dev/null) || true
      die "no RDMA device '${device%%:*}'; there are: ${have_devices:-none}"
    fi
    port=$(find_port "$device")
    names+=("${device%%:*}") ports+=("$port")
  done
  work=$(mktemp -d "${TMPDIR:-/tmp}/prunex-compare.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  echo "# ${names[0]}:${ports[0]} and ${names[1]}:${ports[1]}, $qps queue pair(s), median of $runs (smallest-largest)"
  local all=perftest ratios='' titles=()
  if [[ -n $prunex ]]; then
    all+=" prunex" ratios="prunex/perftest" titles=("prunex $transport")
  fi
  if [[ -n $nccl ]]; then
    all+=" nccl" ratios+=" prunex/nccl" titles+=("NCCL's IB")
  fi
  compare bandwidth MB/s "$sizes" "$all" "$ratios" "ib_${test}_bw" "${titles[@]}"
  compare latency us "$latency_sizes" "$all" "$ratios" "ib_${test}_lat" "${titles[@]}"
  if [[ -n $density ]]; then
    compare bandwidth MB/s "$sizes" "prunex blocks mask" "blocks/prunex mask/prunex" dense "blocks, density $density" "mask, density $density"
  fi
}
main "$@"

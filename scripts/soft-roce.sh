#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command against the kernel's real RDMA stack (Soft-RoCE) on a machine without an RDMA NIC: in a
# small virtual machine with Debian's kernel under qemu's software emulation.
#
#   scripts/soft-roce.sh [options] -- COMMAND [ARGUMENT...]
#   scripts/soft-roce.sh --prepare
#
#   --timeout S        the command's time from its start (300)
#   --memory M         of the guest: 2G, 512M (2G)
#   --cpus N           of the guest, 1 to 16 (2)
#   --devices N        rxe0, rxe1, ..., 1 to 8 (2)
#   --spread           a processor for each device's incoming packets, as if on machines of their own: bandwidth is
#                      nearer to theirs, and latency is a multiple, since processors then interrupt each other
#   --writable FOLDER  the folder the guest may write to; / for none (the current folder)
#   --boot-timeout S   a guest that is not up by then is started once more (120)
#   --offline          installs and downloads nothing
#   --verbose          shows the guest's console on stderr at the end
#   --prepare          only makes the boot image
#
# The guest sees this machine's files at the same paths, read-only but for the one folder; /tmp, /run and
# /dev/shm are empty and its own. The command runs as root in the current folder, with this environment
# (without TMPDIR, with SOFT_ROCE=1) and without input or a limit on locked memory. Its stdout, stderr and exit
# status come back (which line of stdout came before which of stderr may get lost). Device rxe<i> sits on eth<i>, 10.77.0.(i+1)/24, MTU 9000; all reach each other.
#
# Packages that are missing are installed, the kernel (70 to 110 MB) is downloaded once and kept in
# build/soft-roce, or in the folder SOFT_ROCE_CACHE names.
#
# Exit status: the command's; 124 when its time was up; 77 where something needed cannot be had; 125 when
# the guest did not come up or died.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=scripts/soft-roce/image.sh
. "$repo_root/scripts/soft-roce/image.sh"
program=soft-roce

readonly packages=(qemu-system-x86 kmod xz-utils zstd iproute2 util-linux ibverbs-providers ibverbs-utils)
# Emulation and a busy host: what the guest itself does about the limit may come late.
readonly grace=30

limit=300 memory=2G cpus=2 devices=2 writable=$(pwd -P) boot_limit=120 may_install=true verbose=false spread=false
prepare_only=false vm='' run='' relays=()

in_range() {
  [[ $2 =~ ^[0-9]{1,6}$ ]] && ((10#$2 >= $3 && 10#$2 <= $4)) || usage_error "$1 '$2' is not in $3..$4"
}

parse_args() {
  while (($#)); do
    case $1 in
      --timeout | --memory | --cpus | --devices | --writable | --boot-timeout)
        (($# >= 2)) || usage_error "$1 needs a value"
        case $1 in
          --timeout) limit=$2 ;;
          --memory) memory=${2^^} ;;
          --cpus) cpus=$2 ;;
          --devices) devices=$2 ;;
          --writable) writable=$2 ;;
          --boot-timeout) boot_limit=$2 ;;
        esac
        shift 2
        ;;
      --offline) may_install=false && shift ;;
      --verbose) verbose=true && shift ;;
      --spread) spread=true && shift ;;
      --prepare) prepare_only=true && shift ;;
      -h | --help) show_help && exit 0 ;;
      --) shift && break ;;
      -*) usage_error "unknown option '$1'" ;;
      *) usage_error "'$1': the command comes after --" ;;
    esac
  done
  command=("$@")
  in_range --timeout "$limit" 1 604800
  in_range --boot-timeout "$boot_limit" 1 3600
  in_range --cpus "$cpus" 1 16
  in_range --devices "$devices" 1 8
  # Leading zeros would be octal.
  limit=$((10#$limit)) boot_limit=$((10#$boot_limit)) cpus=$((10#$cpus)) devices=$((10#$devices))
  [[ $memory =~ ^[1-9][0-9]{0,5}[MG]$ ]] || usage_error "--memory '$memory' is not a number followed by M or G"
  [[ -d $writable ]] || usage_error "--writable '$writable' is not a folder"
  writable=$(cd "$writable" && pwd -P)
  [[ $prepare_only == false || ${#command[@]} -eq 0 ]] || usage_error "--prepare takes no command"
  [[ $prepare_only == true ]] || ((${#command[@]})) || usage_error "no command after --"
  [[ $prepare_only == true ]] || check_memory
}

# ---- what is needed ---------------------------------------------------------------------------------

# The guest has these folders of its own; what it may write to is there nevertheless.
require_folder() {
  local here
  here=$(pwd -P)
  [[ $writable != / && $here/ == "$writable"/* ]] || case $here/ in
    /tmp/* | /run/* | /dev/shm/*)
      cannot "the guest does not see $here, since its /tmp, /run and /dev/shm are its own: run this from elsewhere"
      ;;
  esac
}

require_tools() {
  local tool
  [[ $(uname -m) == x86_64 ]] || cannot "only for x86_64 machines, this one is $(uname -m)"
  if [[ $may_install == true ]]; then
    (install_packages "${packages[@]}") || cannot "without these packages there is no guest: ${packages[*]}"
  fi
  for tool in qemu-system-x86_64 modprobe depmod xz zstd ip rdma setpriv flock; do
    have "$tool" || cannot "$tool not found; needed: the packages ${packages[*]}"
  done
}

# The boot image and a folder for this run. Under the cache's lock: image-making is for one at a time, and
# folders of runs that were killed are those whose own lock is free.
prepare() {
  local cache=${SOFT_ROCE_CACHE:-$repo_root/build/soft-roce} lock folder
  { mkdir -p "$cache" && exec {lock}>"$cache/lock"; } 2>/dev/null ||
    cannot "cannot write to $cache; SOFT_ROCE_CACHE names another folder"
  cache=$(cd "$cache" && pwd -P)
  flock -w 900 "$lock" || cannot "another run has been making the boot image in $cache for 15 minutes"
  prepare_image "$cache" "$may_install" {lock}>&-
  image=$cache/image
  for folder in "$cache"/run.*; do
    [[ ! -d $folder ]] || flock -n "$folder" rm -rf "$folder" || true
  done
  if [[ $prepare_only == false ]]; then
    run=$(mktemp -d "$cache/run.XXXXXX")
    exec {run_lock}<"$run"
    flock "$run_lock"
  fi
  exec {lock}>&-
}

# ---- the guest ----------------------------------------------------------------------------------------

# What guest-init.sh and the guest's bash read.
write_instructions() {
  cp "$repo_root/scripts/soft-roce/guest-init.sh" "$image/busybox" "$run/"
  # By path: busybox has an ip of its own.
  printf 'devices=%d\nspread=%s\nwritable=%q\nip=%q\nrdma=%q\n' "$devices" "$spread" "$writable" "$(command -v ip)" "$(command -v rdma)" >"$run/config"
  (
    unset PWD OLDPWD SHLVL TMPDIR
    export -n SHELLOPTS BASHOPTS
    SOFT_ROCE=1
    export SOFT_ROCE
    export -p
  ) >"$run/environment"
  { printf 'cd %q && exec timeout -k 5 %d' "$(pwd -P)" "$limit" && printf ' %q' "${command[@]}" && echo; } >"$run/command"
}

# In qemu's options a comma in a path is written twice.
share() {
  printf '%s\0' -fsdev "local,id=$1,path=${2//,/,,},security_model=none,multidevs=remap${3:-}" \
    -device "virtio-9p-pci,fsdev=$1,mount_tag=$1"
}

start_guest() {
  local shares=() loglevel=3
  [[ $verbose == false ]] || loglevel=7
  mapfile -d '' -t shares < <(share root / ,readonly=on && share run "$run" && share work "$writable")
  rm -f "$run"/{up,failed,status}
  true >"$run/out"
  true >"$run/err"
  # Dies with this script, however that ends. no_timer_check and the like: what is late under emulation.
  setpriv --pdeathsig KILL qemu-system-x86_64 -M pc -accel tcg,thread=multi -cpu max,la57=off -smp "$cpus" \
    -m "$memory" -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -kernel "$image/vmlinux" -initrd "$image/initrd" \
    -append "console=ttyS0 panic=-1 mitigations=off nokaslr no_timer_check tsc=reliable random.trust_cpu=on audit=0 loglevel=$loglevel" \
    "${shares[@]}" </dev/null >"$run/console" 2>&1 {run_lock}<&- &
  vm=$!
}

stop_guest() {
  [[ -n $vm ]] || return 0
  kill -KILL "$vm" 2>/dev/null || true
  wait "$vm" 2>/dev/null || true
  vm=''
}

# wait_until DEADLINE [FILE]: until the guest ended or FILE has something; 1 when it took too long.
wait_until() {
  while kill -0 "$vm" 2>/dev/null && [[ -z ${2:-} || ! -s $2 ]]; do
    ((SECONDS < $1)) || return 1
    read -rt 0.05 -u "$never" || true
  done
}

# What qemu itself says before the guest runs: it will say the same again.
refusal() { sed -n '/^qemu-system-x86_64: /{ /terminating on signal/! { p; q } }' "$run/console" | tr -d '\r'; }

# Memory that this machine does not have, qemu takes and the kernel then kills somebody for.
check_memory() {
  local unit=1024 wanted have
  [[ $memory != *G ]] || unit=$((1024 * 1024))
  wanted=$((${memory%[MG]} * unit))
  have=$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo)
  [[ -z $have ]] || ((wanted <= have)) || usage_error "--memory $memory is more than this machine has, $((have / 1024))M"
}

show_console() { tail -n "${1:-15}" "$run/console" | tr -d '\r' >&2; }

why_not_up() {
  if [[ -s $run/failed ]]; then
    cat "$run/failed"
  elif [[ -n $(refusal) ]]; then
    echo "qemu refuses it: $(refusal)"
  elif [[ -s $run/console ]]; then
    echo "its console is above"
  else
    echo "its console is still empty; the first lines take some seconds under emulation, and --verbose makes them more"
  fi
}

boot() {
  local attempt ended
  for attempt in 1 2; do
    start_guest
    wait_until $((SECONDS + boot_limit)) "$run/up" || true
    [[ ! -s $run/up ]] || return 0
    kill -0 "$vm" 2>/dev/null && ended=false || ended=true
    stop_guest
    show_console
    say "the guest did not come up$([[ $ended == true ]] || echo " within $boot_limit s (--boot-timeout)"): $(why_not_up)"
    # Seen rarely, on busy machines: an emulated guest that stops without a word.
    [[ ! -s $run/failed && -z $(refusal) ]] || break
    ((attempt == 2)) || say "once more"
  done
  exit 125
}

finish() {
  local code=$?
  trap '' INT TERM HUP
  stop_guest
  ((${#relays[@]} == 0)) || kill "${relays[@]}" 2>/dev/null || true
  [[ -z $run ]] || rm -rf "$run"
  exit "$code"
}

# Relays output while the command runs, and its status.
follow() {
  local begin=$SECONDS late=false code relay=(tail -q -s 0.1 "--pid=$vm" -f -c +1)
  "${relay[@]}" "$run/out" {run_lock}<&- &
  relays=("$!")
  "${relay[@]}" "$run/err" >&2 {run_lock}<&- &
  relays+=("$!")
  wait_until $((SECONDS + limit + grace)) || late=true
  stop_guest
  wait "${relays[@]}" 2>/dev/null || true
  relays=()
  [[ $verbose == false ]] || show_console +1
  if [[ $late == true ]]; then
    show_console
    say "stopped at the limit of $limit s; the guest itself no longer answered"
    exit 124
  fi
  if [[ ! -s $run/status ]]; then
    show_console
    say "the guest died; its console is above"
    exit 125
  fi
  code=$(cat "$run/status")
  # timeout's own, unless the command was quicker than that; 137 when it did not listen.
  if ((code == 124 || code == 137)) && ((SECONDS - begin >= limit - 1)); then
    say "stopped at the limit of $limit s"
    code=124
  fi
  exit "$code"
}

main() {
  parse_args "$@"
  PATH=$PATH:/usr/sbin:/sbin
  trap finish EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  trap 'exit 129' HUP
  [[ $prepare_only == true ]] || require_folder
  require_tools
  prepare
  [[ $prepare_only == false ]] || exit 0
  exec {never}<> <(:)
  write_instructions
  boot
  follow
}
# Tests read the functions.
[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"

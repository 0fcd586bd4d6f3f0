#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command once per node of an emulated cluster on this machine.
#
#   scripts/netlab.sh --nodes K [options] -- COMMAND [ARGUMENT...]
#
#   --nodes K        nodes, 1 to 64
#   --rate RATE      of each link and direction: 1gbit, 100mbit, 2.5gbit; without it: as fast as it goes
#   --mtu N          of the links (9000)
#   --rails N        links per node, eth0, eth1, ... each in a network of its own (1)
#   --linger S       after the first failure the other nodes get S seconds to end by themselves (2)
#   --kill-after S   then SIGTERM, and S seconds later SIGKILL (5)
#   --loopback       no network namespaces: see below
#
# Every node has its own network namespace, host name (node0, node1, ...), /dev/shm and /sys, and a link
# to a switch that belongs to the lab alone. Node i has the address 10.77.RAIL.(i+1). The rate holds for
# both directions of each link once 1 ms worth of it went through. Nodes reach each other and nothing
# else. Nothing is named on the host, so labs may run side by side, and all ends with the lab: processes,
# namespaces and links, also when this script is killed. Works as root and in a user namespace (where the
# command believes to be root).
#
# The command finds PRUNEX_NODE_ID=node<i>, NODE_RANK=<i>, NNODES=<K>, PRUNEX_ROOT=<address of
# node0>:<port>, MASTER_ADDR, MASTER_PORT (another port: torch's), PRUNEX_SOCKET_IFNAME, NETLAB_ADDR (its own
# address), NETLAB_MODE=netns and NETLAB_RATE (the rate, or "none").
# Exit status: that of the first node that failed, else 0.
#
# Where the system permits no namespaces, or with --loopback, the nodes share this machine's loopback
# interface: NETLAB_MODE=loopback, addresses 127.0.0.1, said on stderr. There is no link then, so
# NETLAB_RATE=none; but PRUNEX_PACING_RATE=RATE makes PruneX send no faster than a link of that rate would
# let it (other programs, a link's delay and its queue: not emulated).
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program=netlab
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
original_args=("$@")

nodes='' rate='' mtu=9000 rails=1 linger=2 kill_after=5 mode=netns

parse_args() {
  while (($#)); do
    case $1 in
      --nodes | --rate | --mtu | --rails | --linger | --kill-after)
        (($# >= 2)) || usage_error "$1 needs a value"
        case $1 in
          --nodes) nodes=$2 ;;
          --rate) rate=${2,,} ;;
          --mtu) mtu=$2 ;;
          --rails) rails=$2 ;;
          --linger) linger=$2 ;;
          --kill-after) kill_after=$2 ;;
        esac
        shift 2
        ;;
      --loopback) mode=loopback && shift ;;
      -h | --help) show_help && exit 0 ;;
      --) shift && break ;;
      *) usage_error "unknown option '$1'" ;;
    esac
  done
  command=("$@")
  [[ -n $nodes ]] || usage_error "--nodes is missing"
  in_range --nodes "$nodes" 1 64
  in_range --mtu "$mtu" 576 65535
  in_range --rails "$rails" 1 16
  is_seconds --linger "$linger"
  is_seconds --kill-after "$kill_after"
  [[ -z $rate || $rate =~ ^[0-9]+(\.[0-9]+)?[kmg]bit$ ]] ||
    usage_error "--rate '$rate' is not a number followed by kbit, mbit or gbit"
  ((${#command[@]})) || usage_error "no command after --"
}
in_range() {
  [[ $2 =~ ^[0-9]{1,6}$ ]] && ((10#$2 >= $3 && 10#$2 <= $4)) || usage_error "$1 '$2' is not in $3..$4"
}
is_seconds() { [[ $2 =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage_error "$1 '$2' is not a number of seconds"; }

# ---- what runs beside the supervisor --------------------------------------------------------------

# The janitor outlives the supervisor. Its standard input is a pipe only the supervisor holds, with one
# line per node, "inode" of the network namespace (or "group id" on loopback); at its end, however the
# supervisor came to it, whatever still runs on the nodes is ended.
janitor() {
  trap '' INT TERM HUP QUIT
  local kind id deadline names=() groups=()
  while read -r kind id; do
    case $kind in
      netns) names+=(-o -lname "net:\\[$id\\]") ;;
      group) groups+=("$id") ;;
    esac
  done
  members() {
    ((${#names[@]} == 0)) ||
      find /proc/[0-9]*/ns/net -maxdepth 0 \( "${names[@]:1}" \) -printf '%h\n' 2>/dev/null |
      sed 's,/proc/\([0-9]*\)/.*,\1,' || true
    local group
    for group in "${groups[@]}"; do
      if kill -0 -- "-$group" 2>/dev/null; then echo "-$group"; fi
    done
  }
  end_all() {
    local pid
    for pid in $(members); do kill "-$1" -- "$pid" 2>/dev/null || true; done
  }
  end_all TERM
  end_all CONT
  deadline=$((SECONDS + ${1%.*} + 1))
  while [[ -n $(members) ]] && ((SECONDS < deadline)); do sleep 0.05; done
  # New processes may appear while we look, so more than once; what sits in the kernel cannot be waited for.
  for _ in {1..20}; do
    [[ -n $(members) ]] || return 0
    end_all KILL
    sleep 0.05
  done
}

# Runs in a node's new namespaces and stays there as long as the lab lasts, so that what the command sent
# last is still delivered after its end. Argument: host name, lines for /etc/hosts, status descriptor.
hold_node() {
  # A shared-memory mount, hosts file and /sys of the node's own, if mounts are permitted and stay here.
  if mount --make-rprivate / 2>/dev/null && mount -t tmpfs -o mode=1777 shm /dev/shm 2>/dev/null; then
    if printf '127.0.0.1 localhost\n%s' "$2" >/dev/shm/hosts &&
      mount --bind /dev/shm/hosts /etc/hosts 2>/dev/null; then
      hostname "$1" 2>/dev/null || echo "$1" 2>/dev/null >/proc/sys/kernel/hostname || true
    fi
    umount -l /dev/shm && mount -t tmpfs -o mode=1777 shm /dev/shm
    mkdir /dev/shm/sys
    if mount -t sysfs sysfs /dev/shm/sys 2>/dev/null; then
      mount --rbind /sys/fs/cgroup /dev/shm/sys/fs/cgroup 2>/dev/null || true
      mount --move /dev/shm/sys /sys 2>/dev/null || umount -l /dev/shm/sys 2>/dev/null || true
    fi
    rmdir /dev/shm/sys 2>/dev/null || true
  fi
  echo ready >&"$3"
  eval "exec $3>&-"
  exec </dev/null >/dev/null 2>&1
  exec sleep infinity
}

# ---- building the lab -------------------------------------------------------------------------------

address() { echo "10.77.$2.$(($1 + 1))"; }

# tbf arguments. Burst: 1 ms of the rate (on a busy machine timers are late; with less the link loses
# bandwidth), two frames at least. Queue: 20 ms.
tbf() {
  awk -v rate="$rate" -v mtu="$mtu" 'BEGIN {
    unit["k"] = 1e3; unit["m"] = 1e6; unit["g"] = 1e9
    bytes = rate * unit[substr(rate, length(rate) - 3, 1)] / 8
    burst = bytes * 0.001; if (burst < 2 * (mtu + 100)) burst = 2 * (mtu + 100)
    queue = bytes * 0.020; if (queue < 16 * (mtu + 100)) queue = 16 * (mtu + 100)
    printf "root tbf rate %s burst %d limit %d", rate, burst, queue }'
}

# Can this machine do all a lab needs? $@: how to enter a network namespace.
probe() {
  local limit=:
  [[ -z $rate ]] || limit='tc qdisc add dev probe0 root tbf rate 1gbit burst 125000 limit 1000000'
  "$@" sh -ec "ip link add probe type bridge; ip link add probe0 type veth peer name probe1
    $limit; unshare --net --uts --mount --propagation unchanged true" </dev/null >/dev/null 2>&1
}

# Continues this script inside the switch's network namespace, or says why that cannot be.
enter_switch() {
  local tool enter
  for tool in ip tc unshare nsenter; do
    PATH=$PATH:/usr/sbin:/sbin have $tool || die "$tool not found: install iproute2 and util-linux (scripts/build.sh does)"
  done
  for enter in "--net" "--user --map-root-user --net"; do
    # shellcheck disable=SC2086
    if probe unshare $enter; then
      NETLAB_STAGE=switch exec unshare $enter -- "$BASH" "$self" "${original_args[@]}"
    fi
  done
  say "this system permits no network namespaces: be root, start a container with --privileged, or allow"
  say "unprivileged user namespaces"
  mode=loopback
}

start_janitor() {
  exec {life}> >(exec setsid --wait "$BASH" -c "$(declare -f janitor); janitor $kill_after" netlab-janitor)
  janitor_pid=$!
  exec {status}<> <(:)
}

build_lab() {
  local i r hosts='' holder line
  ip link set lo up
  for ((r = 0; r < rails; r++)); do
    ip link add "switch$r" mtu "$mtu" type bridge mcast_snooping 0
    ip link set "switch$r" up
  done
  for ((i = 0; i < nodes; i++)); do hosts+="$(address "$i" 0) node$i"$'\n'; done
  for ((i = 0; i < nodes; i++)); do
    unshare --net --uts --mount --propagation unchanged -- "$BASH" -c "$(declare -f hold_node); hold_node \"\$@\"" netlab-node \
      "node$i" "$hosts" "$status" {life}>&- &
    holder=$!
    holders+=("$holder")
    read -r -t 20 -u "$status" line && [[ $line == ready ]] || die "node$i did not come up"
    echo "netns $(stat -L -c %i "/proc/$holder/ns/net")" >&"$life"
    for ((r = 0; r < rails; r++)); do
      # A bridge takes the smallest MTU of its ports, and all ports have this one.
      ip link add "node${i}r$r" mtu "$mtu" type veth peer name "eth$r" mtu "$mtu" netns "$holder"
      ip link set "node${i}r$r" master "switch$r" up
      # shellcheck disable=SC2046
      [[ -z $rate ]] || tc qdisc add dev "node${i}r$r" $(tbf)
    done
    nsenter --net="/proc/$holder/ns/net" "$BASH" -euc "
      ip link set lo up
      for ((r = 0; r < $rails; r++)); do
        ip addr add 10.77.\$r.$((i + 1))/24 dev eth\$r
        ip link set eth\$r up
        ${rate:+tc qdisc add dev eth\$r $(tbf)}
      done"
  done
}

# Two ports that nobody listens on now.
free_ports() {
  local port found=()
  for ((port = 20000 + RANDOM % 10000; ${#found[@]} < 2; port++)); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || found+=("$port")
  done
  echo "${found[@]}"
}

# ---- running the command ----------------------------------------------------------------------------

start_nodes() {
  local i root torch_port root_port addr interfaces=lo
  if [[ $mode == netns ]]; then
    root=$(address 0 0) root_port=29400 torch_port=29500 interfaces=eth0
    for ((i = 1; i < rails; i++)); do interfaces+=",eth$i"; done
  else
    root=127.0.0.1
    read -r root_port torch_port < <(free_ports)
  fi
  left=$nodes
  # Own process groups: the command keeps the default SIGINT (a shell's background jobs ignore it otherwise).
  set -m
  for ((i = 0; i < nodes; i++)); do
    addr=$root
    [[ $mode == loopback ]] || addr=$(address "$i" 0)
    local wrap=(env -u NETLAB_STAGE -u NCCL_SOCKET_IFNAME -C "$PWD"
      PRUNEX_NODE_ID="node$i" NODE_RANK="$i" NNODES="$nodes"
      PRUNEX_ROOT="$root:$root_port" MASTER_ADDR="$root" MASTER_PORT="$torch_port"
      NETLAB_MODE="$mode" NETLAB_RATE="${rate:-none}"
      PRUNEX_SOCKET_IFNAME="$interfaces" NETLAB_ADDR="$addr")
    if [[ $mode == netns ]]; then
      local ns=/proc/${holders[$i]}/ns
      # The root too: entering a mount namespace leaves a chroot.
      wrap=(nsenter --net="$ns/net" --uts="$ns/uts" --mount="$ns/mnt" --root="${ns%/ns}/root" -- "${wrap[@]}")
    fi
    (
      set +em
      exec {life}>&- {errors}>&2 2>/dev/null # the shell's own "Killed" is not the command's output
      (exec {status}>&- 2>&"$errors" {errors}>&- "${wrap[@]}" "${command[@]}") </dev/null
      echo "$i $?" >&"$status"
    ) &
    groups+=("$!")
    [[ $mode == netns ]] || echo "group $!" >&"$life"
  done
  set +m
}

# 137 -> 137 (SIGKILL)
describe() {
  local name=''
  if (($1 > 128)); then name=$(kill -l "$1" 2>/dev/null || true); fi
  echo "$1${name:+ (SIG$name)}"
}

# Waits for all nodes, or for the first failure and then --linger seconds for the rest.
wait_nodes() {
  local i code deadline=
  while ((left > 0)); do
    if [[ -z $deadline ]]; then
      # No timeout: one that strikes in the middle of a line would lose it.
      read -r -u "$status" i code
    elif ! read -r -t "$linger" -u "$status" i code; then
      break
    fi
    left=$((left - 1))
    if ((code != 0)) && [[ -z $deadline ]]; then
      result=$code deadline=set
      ((left == 0)) || say "node$i ended with status $(describe "$code"); the others end too"
    fi
  done
}

# Ctrl-C: the command decides how it ends, within --linger.
interrupt() {
  local group
  trap '' INT
  for group in "${groups[@]}"; do kill -INT -- "-$group" 2>/dev/null || true; done
  while ((left > 0)) && read -r -t "$linger" -u "$status"; do left=$((left - 1)); done
  exit 130
}

finish() {
  local code=$?
  trap '' INT TERM HUP
  exec {life}>&-
  wait "$janitor_pid" || true
  exit "$code"
}

main() {
  parse_args "$@"
  if [[ ${NETLAB_STAGE:-} != switch && $mode == netns ]]; then enter_switch; fi
  PATH=$PATH:/usr/sbin:/sbin
  if [[ $mode == loopback ]]; then
    if [[ -n $rate ]]; then
      say "the nodes share the loopback interface; PruneX's own connections are paced to $rate per node"
      say "(PRUNEX_PACING_RATE), nothing else is: no link's delay, no queue, no other program"
      export PRUNEX_PACING_RATE=$rate
      rate=''
    else
      say "the nodes share the loopback interface, as fast as it goes"
    fi
  fi
  holders=() groups=() left=0 result=0
  start_janitor
  trap finish EXIT
  trap interrupt INT
  trap 'exit 143' TERM
  trap 'exit 129' HUP
  [[ $mode == loopback ]] || build_lab
  start_nodes
  wait_nodes
  exit "$result"
}
main "$@"

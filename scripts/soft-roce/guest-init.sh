#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Process 1 of the guest, in the host's root: network, rxe devices, the command, power off. Talks to
# scripts/soft-roce.sh through files in /run/soft-roce.
# shellcheck shell=dash
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
run=/run/soft-roce
# shellcheck source=/dev/null
. $run/config
: "${devices:?}" "${spread:?}" "${writable:?}" "${ip:?}" "${rdma:?}"

power_off() {
  sync
  reboot -f
  $run/busybox reboot -f
}
give_up() {
  echo "$*" >$run/failed
  power_off
}

mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts pts /dev/pts
ln -s /proc/self/fd /dev/fd
for i in 0:in 1:out 2:err; do ln -s "/proc/self/fd/${i%:*}" "/dev/std${i#*:}"; done
if [ "$writable" != / ]; then
  mkdir -p "$writable"
  mount -t 9p -o cache=mmap,trans=virtio,version=9p2000.L,msize=512000 work "$writable" ||
    give_up "$writable could not be mounted"
fi
echo soft-roce >/proc/sys/kernel/hostname
echo "127.0.0.1 localhost soft-roce" >/run/hosts
mount --bind /run/hosts /etc/hosts

rails=$(seq 0 $((devices - 1)))
{
  echo "link set lo up"
  echo "link add br0 mtu 9000 type bridge"
  echo "link set br0 up"
  for i in $rails; do
    echo "link add eth$i mtu 9000 type veth peer name port$i mtu 9000"
    echo "link set port$i master br0 up"
    echo "link set eth$i up"
    echo "addr add 10.77.0.$((i + 1))/24 dev eth$i"
  done
} | $ip -batch - || give_up "the network could not be set up"
# One host, several ports in one subnet: each answers for its own address, and takes what another one sent.
for i in $rails; do
  settings=/proc/sys/net/ipv4/conf/eth$i
  echo 1 >"$settings/accept_local"
  echo 1 >"$settings/arp_ignore"
  echo 2 >"$settings/arp_announce"
  echo 0 >"$settings/rp_filter"
done
if [ "$spread" = true ]; then
  cpus=$(nproc)
  for i in $rails; do printf '%x' $((1 << i % cpus)) >"/sys/class/net/eth$i/queues/rx-0/rps_cpus"; done
fi
for i in $rails; do echo "link add rxe$i type rxe netdev eth$i"; done | $rdma -b - || give_up "rdma link add failed"
# GIDs appear in the background.
for i in $rails; do
  port=/sys/class/infiniband/rxe$i/ports/1
  tries=100
  until grep -q ACTIVE "$port/state" && cat "$port"/gids/[0-9] | grep -q ffff:0a4d; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || give_up "rxe$i did not become active"
    usleep 50000
  done
done

# Pipes, as commands expect them: a file would be emptied by `echo >/dev/stderr`.
mkfifo -m 666 /run/stdout /run/stderr
(cat /run/stdout >>$run/out && true >/run/stdout.end) &
(cat /run/stderr >>$run/err && true >/run/stderr.end) &
cat /proc/uptime >$run/up
# In a subshell: else the shell's own "Killed" would go to the command's stderr.
(
  exec /bin/bash -c 'ulimit -l unlimited; ulimit -c 0; . /run/soft-roce/environment; . /run/soft-roce/command' \
    </dev/null >/run/stdout 2>/run/stderr
)
echo $? >/run/status
# What the command left running may hold the pipes open.
tries=40
until [ -e /run/stdout.end ] && [ -e /run/stderr.end ] || [ $tries = 0 ]; do
  tries=$((tries - 1))
  usleep 50000
done
cp /run/status $run/status
power_off

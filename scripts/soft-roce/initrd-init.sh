#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# /init of the guest: modules, the host's root over 9p, and on to guest-init.sh there.
# shellcheck shell=dash
b=/bin/busybox
options=trans=virtio,version=9p2000.L,msize=512000
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
for module in $($b cat /modules/order); do $b insmod "/modules/$module"; done
# Before anything runs in there: a /proc of the guest's own, since busybox starts itself anew through it.
$b mount -t 9p -o "ro,cache=loose,$options" root /root &&
  $b mount -t proc proc /root/proc &&
  $b mount -t sysfs sys /root/sys &&
  $b mount -t devtmpfs dev /root/dev &&
  $b mount -t tmpfs -o mode=755 run /root/run &&
  $b mount -t tmpfs -o mode=1777 tmp /root/tmp &&
  $b mkdir /root/run/soft-roce &&
  $b mount -t 9p -o "cache=none,$options" run /root/run/soft-roce &&
  exec $b chroot /root /run/soft-roce/busybox sh /run/soft-roce/guest-init.sh
$b echo "soft-roce: the host's file system could not be mounted"
$b reboot -f

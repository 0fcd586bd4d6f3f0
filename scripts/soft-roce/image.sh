# SPDX-License-Identifier: Apache-2.0
# What scripts/soft-roce.sh boots, made from Debian's packages without installing them; sourced, after
# lib.sh.
# shellcheck shell=bash
: "${repo_root:?}"

# Modules of the guest with what they depend on. crc32_generic: rdma_rxe asks for it by name, so no
# dependency says so; newer kernels have it built in.
guest_modules=(virtio_pci 9pnet_virtio 9p veth bridge crc32_generic rdma_rxe rdma_ucm)
# Another number: what older scripts put into the cache does not do.
readonly image_format=1

# cannot WHAT: something cannot be had here.
cannot() {
  say "$*"
  exit 77
}

# fetch_package NAME FOLDER: puts the package's file there. The lists are refreshed when they are too old.
fetch_package() {
  (cd "$2" && apt-get download -qq "$1") >/dev/null 2>&1 && return 0
  apt_log=$2/apt.log
  if ! run_apt update || ! (cd "$2" && apt-get download -qq "$1") >"$apt_log" 2>&1; then
    tail -n 3 "$apt_log" >&2
    cannot "cannot download the package $1: is there a network, and Debian's package source in /etc/apt?"
  fi
}

kernel_package() { apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }'; }

# unpack_kernel VMLINUZ RESULT: the kernel proper, because the guest's own decompression costs seconds
# under emulation. Compressed in another way than Debian 12 (xz) and 13 (zstd) do it: the whole file.
unpack_kernel() {
  local offset magic
  for magic in '\xFD7zXZ\x00' '\x28\xB5\x2F\xFD'; do
    for offset in $(LC_ALL=C grep -aobP "$magic" "$1" | cut -d: -f1); do
      # What follows the compressed kernel is not for the tools, and they say so.
      if [[ $magic == *XZ* ]]; then
        tail -c +$((offset + 1)) "$1" | xz -dc --single-stream >"$2" 2>/dev/null || true
      else
        tail -c +$((offset + 1)) "$1" | zstd -dcq >"$2" 2>/dev/null || true
      fi
      if head -c 4 "$2" | LC_ALL=C grep -aq '^.ELF'; then return 0; fi
    done
  done
  cp "$1" "$2"
}

# make_kernel FOLDER: vmlinux, modules with their order, and busybox go there. Downloads.
make_kernel() {
  local package release work=$1/work module file
  mkdir -p "$work/root/usr/lib/modules"
  package=$(kernel_package)
  if [[ -z $package ]]; then
    apt_log=$work/apt.log
    run_apt update || true
    package=$(kernel_package)
  fi
  [[ -n $package ]] || cannot "no package source in /etc/apt has Debian's linux-image-amd64"
  release=${package#linux-image-}
  say "downloading $package and unpacking it into ${1%/*} (once)"
  fetch_package "$package" "$work"
  fetch_package busybox-static "$work"
  # Debian 12 has them in /lib and as they are, Debian 13 in /usr/lib and compressed.
  dpkg-deb --fsys-tarfile "$work/$package"_*.deb | tar -x -C "$work/root" --wildcards './boot/vmlinuz*' '*/modules.*' \
    '*/kernel/drivers/'{infiniband/core,infiniband/sw/rxe,virtio,net/veth}'*' '*/kernel/net/'{9p,802,llc,bridge}'/*' \
    '*/kernel/net/ipv'{4,6}'/*udp_tunnel*' '*/kernel/fs/'{9p,netfs,fscache,configfs}'*' '*/kernel/crypto/crc32*' \
    '*/kernel/lib/*' 2>/dev/null || true
  if [[ -d $work/root/lib ]]; then
    cp -a "$work/root/lib/." "$work/root/usr/lib/"
    rm -r "$work/root/lib"
  fi
  ln -s usr/lib "$work/root/lib"
  find "$work/root" -name '*.ko.xz' -exec xz -d '{}' +
  [[ -n $(find "$work/root" -name rdma_rxe.ko) && -e $work/root/boot/vmlinuz-$release ]] ||
    cannot "$package has no module rdma_rxe, or not where Debian 12 and 13 have it"
  unpack_kernel "$work/root/boot/vmlinuz-$release" "$1/vmlinux"
  depmod -b "$work/root" "$release" 2>/dev/null
  mkdir "$1/modules"
  for module in "${guest_modules[@]}"; do
    while read -r file; do
      [[ ! -e $1/modules/${file##*/} ]] || continue
      cp "$file" "$1/modules/"
      echo "${file##*/}" >>"$1/modules/order"
    done < <(modprobe -d "$work/root" -S "$release" --show-depends "$module" 2>/dev/null | awk '$1 == "insmod" { print $2 }')
  done
  dpkg-deb --fsys-tarfile "$work"/busybox-static_*.deb | tar -xO --wildcards '*/bin/busybox' >"$1/busybox"
  chmod +x "$1/busybox"
  echo "$release" >"$1/release"
  rm -r "$work"
}

# make_initrd FOLDER: from what make_kernel left there; milliseconds.
make_initrd() {
  local tree=$1/initrd.tree
  rm -rf "$tree"
  mkdir -p "$tree"/{bin,proc,dev,root}
  cp -r "$1/modules" "$tree/modules"
  cp "$1/busybox" "$tree/bin/busybox"
  cp "$repo_root/scripts/soft-roce/initrd-init.sh" "$tree/init"
  chmod +x "$tree/init"
  (cd "$tree" && "$1/busybox" find . | "$1/busybox" cpio -o -H newc) >"$1/initrd.new" 2>/dev/null
  mv "$1/initrd.new" "$1/initrd"
  rm -rf "$tree"
}

# prepare_image CACHE MAY_DOWNLOAD: CACHE/image then holds vmlinux, initrd and busybox. With the cache's
# lock held.
prepare_image() {
  local image=$1/image
  if [[ $(cat "$image/format" 2>/dev/null) != "$image_format" ]]; then
    [[ $2 == true ]] || cannot "no boot image in $1; scripts/soft-roce.sh --prepare makes one"
    rm -rf "$1/image.new" "$image"
    mkdir "$1/image.new"
    make_kernel "$1/image.new"
    echo "$image_format" >"$1/image.new/format"
    mv "$1/image.new" "$image"
  fi
  if [[ ! $image/initrd -nt $repo_root/scripts/soft-roce/initrd-init.sh ]]; then make_initrd "$image"; fi
}

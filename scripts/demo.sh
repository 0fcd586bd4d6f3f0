#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job on this machine: two emulated nodes of two ranks, joined by a link of 1 Gbit/s, all-reduce
# ResNet-50's parameters, dense and then with masks that keep 0.4 of the groups; every element is checked.
# Installs what is missing and builds first.
#
#   scripts/demo.sh [BENCH_OPTION...]
#
# Options go to `prunex bench allreduce`: --keep 0.2, --model resnet18, --iters 50, ...
# Ends with a table: bytes between nodes, inter-node time, total time, speed-up, and the bound 1/density.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program=demo
case ${1:-} in -h | --help) show_help && exit 0 ;; esac
cd "$repo_root"

install_packages "${build_packages[@]}"
# A build folder that is there stays as it is; the tests are not needed here.
[[ -e build/build.ninja ]] || configure_tree build -Dtests=false -Dsanitizer=none
ninja_tree build tools/prunex plugin/libprunex.so

job=(build/tools/prunex bench allreduce --ranks-per-node 2 --model resnet50 --keep 0.4 --check
  --warmup 3 --iters 15 --baseline tcp --progress --json build/demo.json)
scripts/netlab.sh --nodes 2 --rate 1gbit -- "${job[@]}" "$@"
say "the numbers are in build/demo.json; scripts/netlab.sh --help says how the nodes are emulated"
if [[ $(scripts/netlab.sh --nodes 1 -- printenv NETLAB_MODE 2>/dev/null) != netns ]]; then
  say "NOTE: these nodes were joined by the loopback interface, and PruneX's connections were paced to the"
  say "rate. As root, or in a container started with --privileged, it is a link with a queue of its own."
fi

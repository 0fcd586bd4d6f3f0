#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains a residual network on two emulated nodes of two ranks joined by a link of 100 Mbit/s: dense DDP,
# Top-K, PowerSGD and PruneX, each for the same time. Installs what is missing (torch too) and builds first.
#
#   scripts/train-demo.sh [--full] [OPTION...]
#
#   --full   three seeds on 1 Gbit/s and 100 Mbit/s, the same number of iterations each: about an hour
#
# Other options go to python/examples/compare_training.py (--help shows them). Results: build/training/.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program='train-demo'
case ${1:-} in -h | --help) show_help && exit 0 ;; esac
cd "$repo_root"

install_packages "${build_packages[@]}"
[[ -e build/build.ninja ]] || configure_tree build -Dtests=false -Dsanitizer=none
ninja_tree build plugin/libprunex.so
python=$(scripts/python-env.sh --examples --check 2>/dev/null) || python=$(scripts/python-env.sh --examples)
exec "$python" python/examples/compare_training.py "$@"

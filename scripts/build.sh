#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing (Debian and Ubuntu packages, as root or through sudo), configures and builds.
#
#   scripts/build.sh [--sanitizer address|thread] [--no-tests] [--all-archs]
#
#   --sanitizer address   into build-asan/: AddressSanitizer and UndefinedBehaviorSanitizer, by clang where there is one
#   --sanitizer thread    into build-tsan/: ThreadSanitizer
#   --no-tests            neither builds the tests nor installs GoogleTest (not with a sanitizer)
#   --all-archs           CUDA kernels for sm_80, sm_90 and sm_100, not sm_90 alone; fetches nvcc from PyPI
#                         where there is none. The tree keeps them from then on
#
# Without options into build/, optimised. Again: only what changed, and without network.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program=build

sanitizer=none tests=true folder=build all_archs=false
while (($#)); do
  case $1 in
    --sanitizer)
      case ${2:-} in
        address) folder=build-asan ;;
        thread) folder=build-tsan ;;
        *) usage_error "--sanitizer '${2:-}' is neither address nor thread" ;;
      esac
      sanitizer=$2
      shift 2
      ;;
    --no-tests) tests=false && shift ;;
    --all-archs) all_archs=true && shift ;;
    -h | --help) show_help && exit 0 ;;
    *) usage_error "unknown option '$1'" ;;
  esac
done

[[ $sanitizer == none || $tests == true ]] || usage_error "a build with a sanitizer is for the tests"
packages=("${build_packages[@]}")
[[ $tests == false ]] || packages+=("${unit_packages[@]}")
install_packages "${packages[@]}"

if [[ $all_archs == true ]]; then
  [[ $sanitizer == none ]] || usage_error "the kernels are not built with a sanitizer"
  cuda_from_pypi || die "no CUDA toolkit in /usr/local/cuda, and PyPI cannot be reached"
  cuda=(-Dcuda=enabled "-Dnvcc_archs=80,90,100")
else
  archs=$(configured_archs "$repo_root/$folder")
  cuda=(-Dcuda=auto "-Dnvcc_archs=${archs:-90}")
fi
if [[ $sanitizer == none ]]; then
  configure_tree "$folder" "-Dtests=$tests" -Dsanitizer=none -Db_pch=false "${cuda[@]}"
else
  configure_sanitized "$folder" "$sanitizer"
fi
ninja_tree "$folder"

archs=$(configured_archs "$repo_root/$folder")
[[ ! -e $repo_root/$folder/plugin/libprunex-cuda.so ]] || echo "CUDA kernels: sm_${archs//,/ sm_}"
[[ $tests == true ]] || say "tests were not built"
for result in tools/prunex plugin/libprunex.so plugin/libnccl-net-prunex.so plugin/libprunex-cuda.so; do
  [[ ! -e $repo_root/$folder/$result ]] || echo "$folder/$result"
done

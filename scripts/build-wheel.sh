#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Python wheel from what scripts/build.sh built: the package with libprunex.so and
# libnccl-net-prunex.so beside each other in prunex/lib/.
#
#   scripts/build-wheel.sh [--build FOLDER] [--out FOLDER]
#
#   --build FOLDER   the build folder (build)
#   --out FOLDER     where the wheel goes (out)
#
# Needs python3 with pip and setuptools; PYTHON names another interpreter. Without network, setuptools must
# be installed for it. The platform tag is manylinux_X_Y with the newest glibc the libraries need.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program='build-wheel'
cd "$repo_root"

build=build out=out python=${PYTHON:-python3}
while (($#)); do
  case $1 in
    --build) build=${2:?} && shift 2 ;;
    --out) out=${2:?} && shift 2 ;;
    -h | --help) show_help && exit 0 ;;
    *) usage_error "unknown option '$1'" ;;
  esac
done

libraries=("$build/plugin/libprunex.so" "$build/plugin/libnccl-net-prunex.so")
for library in "${libraries[@]}"; do
  [[ -e $library ]] || die "$library is missing: run scripts/build.sh first"
done
# The stage is a copy: the checkout keeps no libraries beside its sources, where they would age.
stage=$(mktemp -d "${TMPDIR:-/tmp}/prunex-wheel.XXXXXX")
trap 'rm -rf "$stage"' EXIT
cp python/pyproject.toml python/setup.py python/README.md "$stage/"
(cd python && find prunex \( -name '*.py' -o -name py.typed \) -exec cp --parents {} "$stage" \;)
mkdir -p "$stage/prunex/lib"
[[ ! -e $build/plugin/libprunex-cuda.so ]] || libraries+=("$build/plugin/libprunex-cuda.so")
cp -L "${libraries[@]}" "$stage/prunex/lib/"
if have strip; then strip --strip-unneeded "$stage"/prunex/lib/*.so; fi

machine=$(uname -m)
glibc=$(objdump -T "$stage"/prunex/lib/*.so | grep -o 'GLIBC_2\.[0-9]*' | sort -t. -k2 -n | tail -1)
[[ -n $glibc ]] || die "cannot tell which glibc the libraries need: is objdump (binutils) installed?"
export WHEEL_PLATFORM=manylinux_2_${glibc#GLIBC_2.}_$machine

mkdir -p "$out"
isolation=()
"$python" -c 'import setuptools, sys; sys.exit(int(setuptools.__version__.split(".")[0]) < 61)' \
  2>/dev/null && isolation=(--no-build-isolation)
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps "${isolation[@]}" \
  --wheel-dir "$out" "$stage" >&2 || die "pip could not make the wheel"
ls "$out"/prunex-*-py3-none-"$WHEEL_PLATFORM".whl

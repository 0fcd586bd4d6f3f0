#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs one test file with an interpreter that has torch, numpy and pytest; 77 (skip) where there is none.
#
#   python/tests/run.sh LIBRARY FILE [PYTEST ARGUMENTS]
set -euo pipefail

library=$(realpath "$1") file=$2  # tests change folders
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if ! python=$("$root/scripts/python-env.sh" --check 2>/dev/null); then
  echo "SKIP: no Python with torch, numpy and pytest; scripts/python-env.sh makes one"
  exit 77
fi
export PRUNEX_LIBRARY=$library PYTHONDONTWRITEBYTECODE=1
exec "$python" -m pytest -q -p no:cacheprovider "$root/python/tests/$file" "$@"
